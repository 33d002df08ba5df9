"""The weighted mean of what clients changed: from the deltas on each rank to the same mean on all.

    deltas of this rank ─► × weight ─► fixed point, added up ─► buckets ─► sums over ranks (on their way) ─► mean

Whole numbers are added, so the mean does not depend on how many ranks there are or how clients are shared out. Each
bucket is on its way while the next is prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from heartlm.federated.client import Update
from heartlm.federated.communicator import Communicator, Pending
from heartlm.federated.fixed_point import add_in_fixed_point, from_fixed_point
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
        delta: weighted mean of the deltas of clients that took part, float64 `[P]`; None where none did.
        num_samples: of clients that took part.
    """

    delta: Tensor | None
    num_samples: int


class PendingMean(Protocol):
    """A mean on its way."""

    def test(self) -> bool:
        """Whether it is there; some progress is made."""

    def wait(self) -> Mean:
        """Wait for it."""


@dataclass(frozen=True)
class Here:
    """A mean that is there already.

    Attributes:
        mean: the mean.
    """

    mean: Mean

    def test(self) -> bool:
        """It is there."""
        return True

    def wait(self) -> Mean:
        """Return it."""
        return self.mean


class Aggregator(Protocol):
    """Makes the mean of a round; all ranks call it alike."""

    def start(self, round_index: int, shares: Sequence[Share], asked_samples: int) -> PendingMean:
        """Send the shares of this rank's clients on their way.

        Args:
            round_index: from 0.
            shares: of this rank, by client; may be empty.
            asked_samples: of all clients asked in the round, which the weights are shares of.
        """


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
        self._totals = torch.zeros(num_parameters + 1, dtype=torch.int64)
        size = max(1, bucket_bytes // self._totals.element_size())
        self._buckets = [self._totals[begin : begin + size] for begin in range(0, len(self._totals), size)]

    def start(self, round_index: int, shares: Sequence[Share], asked_samples: int) -> PendingMean:
        """Send what this rank's clients changed; the samples of those that took part travel as the last number."""
        pending, begin = list[Pending](), 0
        with self._meter.exposed():
            for bucket in self._buckets:
                self._fill(bucket, begin, shares)
                begin += len(bucket)
                with self._meter.call():
                    pending.append(self._communicator.start_sum(bucket))
                self._meter.sent(bucket.nbytes)
        return _Pending(self._totals, pending, asked_samples, self._meter)

    def _fill(self, bucket: Tensor, begin: int, shares: Sequence[Share]) -> None:
        bucket.zero_()
        num = min(len(bucket), len(self._totals) - 1 - begin)
        for share in shares:
            add_in_fixed_point(bucket[:num], share.update.delta[begin : begin + num], share.weight)
        if num < len(bucket):
            bucket[num] = sum(share.update.num_samples for share in shares)


class _Pending:
    def __init__(
        self, totals: Tensor, pending: Sequence[Pending], asked_samples: int, meter: CommunicationMeter
    ) -> None:
        self._totals, self._pending, self._asked = totals, list(pending), asked_samples
        self._meter = meter

    def test(self) -> bool:
        if self._pending:
            with self._meter.exposed(), self._meter.call():
                self._pending = [each for each in self._pending if not each.test()]
            if not self._pending:
                self._meter.landed()
        return not self._pending

    def wait(self) -> Mean:
        with self._meter.exposed():
            with self._meter.call():
                for each in self._pending:
                    each.wait()
            if self._pending:
                self._pending = []
                self._meter.landed()
            num_samples = int(self._totals[-1])
            if num_samples == 0:
                return Mean(None, 0)
            return Mean(from_fixed_point(self._totals[:-1], self._asked / num_samples), num_samples)
