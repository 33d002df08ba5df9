"""The weighted mean of what clients changed: from the deltas on each rank to the same mean on all.

    deltas of this rank ─► × weight ─► fixed point, added up ─► buckets ─► sums over ranks (on their way) ─► mean

Whole numbers are added, so the mean does not depend on how many ranks there are or how clients are shared out. Each
bucket is on its way while the next is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from heartlm.distributed.communicator import Communicator, Pending
from heartlm.federated.client import Update
from heartlm.federated.fixed_point import FixedPoint, FixedPointSum
from heartlm.federated.meter import CommunicationMeter


@dataclass(frozen=True)
class Share:
    """A client's part in the mean of a round.

    Attributes:
        client: its number in the study.
        weight: its samples over those of all clients asked in the round.
        update: what it gives.
    """

    client: int
    weight: float
    update: Update


@dataclass(frozen=True)
class Mean:
    """What a round gave.

    Attributes:
        delta: weighted mean of the deltas of clients that took part, `[P]`; None where none did. It may lie where the
            next mean will be made.
        num_samples: of clients that took part.
    """

    delta: FixedPoint | None
    num_samples: int


class PendingMean(Protocol):
    """A mean on its way."""

    @property
    def wants_tests(self) -> bool:
        """Whether it gets on, or its end is noted, when it is tested."""

    def test(self) -> bool:
        """Whether it is there; some progress is made."""

    def wait(self) -> Mean:
        """Wait for it."""


@dataclass(frozen=True)
class Here:
    """A mean that is there already.

    Attributes:
        mean: the mean.
        wants_tests: it does not.
    """

    mean: Mean
    wants_tests: bool = False

    def test(self) -> bool:
        """It is there."""
        return True

    def wait(self) -> Mean:
        """Return it."""
        return self.mean


class Aggregator(Protocol):
    """Makes the mean of a round; all ranks call it alike."""

    def start(
        self, round_index: int, shares: Sequence[Share], asked_samples: int, at_once: bool = False
    ) -> PendingMean:
        """Send the shares of this rank's clients on their way.

        Args:
            round_index: from 0.
            shares: of this rank, by client; may be empty.
            asked_samples: of all clients asked in the round, which the weights are shares of.
            at_once: whether nothing is computed meanwhile, so that the sum may be waited for here.
        """


class Flight:
    """What the mean of a round is made of, on its way.

    Args:
        communicator: it is on its way with.
        pending: what has to be there.
        meter: told of what is waited for.
        mean: makes the mean of what `pending` gave.

    Attributes:
        wants_tests: whether it gets on, or its end is noted, when it is tested.
    """

    def __init__(
        self,
        communicator: Communicator,
        pending: Sequence[Pending],
        meter: CommunicationMeter,
        mean: Callable[[Sequence[Tensor]], Mean],
    ) -> None:
        self.wants_tests = not communicator.gets_on_alone
        self._pending, self._meter, self._mean = pending, meter, mean

    def test(self) -> bool:
        """Whether it is there; some progress is made."""
        with self._meter.exposed(), self._meter.call():
            there = all(each.test() for each in self._pending)
        self.wants_tests = self.wants_tests and not there
        return there

    def wait(self) -> Mean:
        """Wait for it."""
        with self._meter.exposed():
            with self._meter.call():
                there = [each.wait() for each in self._pending]
            self._meter.landed(max(each.there_s for each in self._pending))
            return self._mean(there)


class _Bucket(NamedTuple):
    """Parameters that are sent as one: from `begin` to `end`, their sums, and what these weigh.

    The last bucket has the samples behind its parameters.
    """

    begin: int
    end: int
    sums: Tensor
    num_bytes: int


class ExactMean:
    """Adds up in fixed point, see `heartlm.federated.fixed_point`.

    Args:
        communicator: of the ranks.
        num_parameters: P.
        bucket_bytes: that are sent as one.
        meter: told of everything that is sent and waited for.
    """

    def __init__(
        self, communicator: Communicator, num_parameters: int, bucket_bytes: int, meter: CommunicationMeter
    ) -> None:
        self._communicator, self._meter = communicator, meter
        self._sum = FixedPointSum(num_parameters + 1)
        self._deltas = self._sum.whole[:num_parameters]
        size, self._buckets = max(1, bucket_bytes // self._sum.whole.element_size()), list[_Bucket]()
        for begin in range(0, num_parameters + 1, size):
            sums = self._sum.whole[begin : begin + size]
            self._buckets.append(_Bucket(begin, min(begin + size, num_parameters), sums, sums.nbytes))

    def start(
        self, round_index: int, shares: Sequence[Share], asked_samples: int, at_once: bool = False
    ) -> PendingMean:
        """Send what this rank's clients changed; the samples of those that took part travel as the last number."""
        pending = list[Pending]()
        with self._meter.exposed():
            parts = [(share.update.delta, share.weight) for share in shares]
            self._sum[-1] = sum(share.update.num_samples for share in shares)
            if at_once:
                self._sum.fill(0, len(self._deltas), parts)
                with self._meter.call():
                    self._communicator.sum(self._sum.whole)
                self._meter.sent(self._sum.whole.nbytes, arrived=True)
                return Here(self._mean(asked_samples))
            for bucket in self._buckets:
                self._sum.fill(bucket.begin, bucket.end, parts)
                with self._meter.call():
                    pending.append(self._communicator.start_sum(bucket.sums))
                self._meter.sent(bucket.num_bytes)
        return Flight(self._communicator, pending, self._meter, lambda _: self._mean(asked_samples))

    def _mean(self, asked_samples: int) -> Mean:
        num_samples = self._sum[-1]
        if num_samples == 0:
            return Mean(None, 0)
        return Mean(FixedPoint(self._deltas, asked_samples / num_samples), num_samples)
