"""The weighted mean of client updates: from the updates of each rank to the same mean on all ranks.

    updates of this rank ─► (clip, noise) ─► × weight ─► fixed point ─► all-reduce ─► mean

Integers are added, so the mean does not depend on the number of ranks or on which rank has which client. Noise comes
before masks, so they cost no privacy.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from heartlm.errors import HeartlmError
from heartlm.extensions.federated.client import Update, sample_clients
from heartlm.extensions.federated.communicator import Communicator, Pending
from heartlm.extensions.federated.fixed_point import FixedPoint, sum_in_fixed_point
from heartlm.extensions.federated.meter import CommunicationMeter
from heartlm.extensions.federated.partition import Member
from heartlm.extensions.federated.privacy import clip_and_noise, guarantee, privacy_of, secret_generator
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.storage.atomic import write_json


@dataclass(frozen=True)
class PendingMean:
    """The mean of a round, whose sums may be in transit.

    Attributes:
        totals: sums over clients of weighted deltas, and of samples as the last number; int64 `[P + 1]`.
        asked_samples: of all clients sampled in the round, to which the weights relate.
        meter: notes what this rank waits for.
        pending: the sum that has to arrive; None if it has.
    """

    totals: Tensor
    asked_samples: int
    meter: CommunicationMeter
    pending: Pending | None = None
    sent_s: float = field(default_factory=time.perf_counter)

    def wait(self) -> FixedPoint | None:
        """Return the weighted mean of the deltas of clients that took part, `[P]`; None if none did.

        The next round overwrites it.
        """
        if self.pending is not None:
            begin_s = time.perf_counter()
            with self.meter:
                self.pending.wait()
            self.meter.hidden_s += max(0.0, min(self.pending.completed_s, begin_s) - self.sent_s)
        num_samples = int(self.totals[-1])
        return FixedPoint(self.totals[:-1], self.asked_samples / num_samples) if num_samples else None


MaskedSum = Callable[[int, Collection[int], int], Tensor]
"""From a round, the clients in the sum and the samples of all clients asked, to the totals of a `PendingMean`."""


class Aggregator:
    """Makes the mean of each round, as the study's privacy settings say.

    Args:
        study: settings.
        communicator: of the ranks.
        num_parameters: P.
        num_clients: of the study.
        masked_sum: sums the updates that nodes keep and mask; without it, updates are summed over ranks.

    Raises:
        HeartlmError: the privacy that the study asks for is impossible with this number of clients.

    Attributes:
        meter: notes what is sent and waited for.
        num_rounds_by_client: number of rounds that each client took part in, with differential privacy.
    """

    def __init__(
        self,
        study: FederatedConfig,
        communicator: Communicator,
        num_parameters: int,
        num_clients: int,
        masked_sum: MaskedSum | None = None,
    ) -> None:
        self._study, self._communicator, self._masked_sum = study, communicator, masked_sum
        self.meter = CommunicationMeter()
        self._totals = torch.zeros(num_parameters + 1, dtype=torch.int64)
        self._privacy, self._noise, self.num_rounds_by_client = privacy_of(study), secret_generator(), Counter[int]()
        if self._privacy is not None and not 0 < self._privacy.delta < 1 / num_clients:
            raise HeartlmError(
                f"privacy_delta: {self._privacy.delta:g} found, less than 1 over {num_clients} clients expected: a "
                "promise that may fail for one of them is none"
            )

    def start(self, round_index: int, updates: Mapping[int, Update], asked_samples: int) -> PendingMean:
        """Send the updates of this rank's clients; all ranks call it alike.

        Args:
            round_index: from 0.
            updates: of this rank, by client; may be empty.
            asked_samples: of all clients sampled in the round.
        """
        study, totals, pending = self._study, self._totals, None
        if self._privacy is not None:
            clients = [client for rank in self._communicator.gather_objects(list(updates)) for client in rank]
            self.num_rounds_by_client.update(clients)
            # Each counts as one sample, so that none has more influence than the noise hides.
            asked_samples = len(clients)
        if self._masked_sum is not None:
            return PendingMean(self._masked_sum(round_index, updates, asked_samples), asked_samples, self.meter)
        ready = [with_privacy(update, study, asked_samples, self._noise) for update in updates.values()]
        with self.meter:
            add_up(totals, ready, asked_samples)
            self.meter.num_bytes += totals.nbytes
            if study.staleness:
                pending = self._communicator.start_sum(totals)
            else:
                self._communicator.sum(totals)
        return PendingMean(totals, asked_samples, self.meter, pending)

    def replay_accounting(self, members: Sequence[Member], num_rounds: int) -> None:
        """Count the rounds before a study was resumed: all sampled clients are taken to have taken part."""
        for round_index in range(num_rounds):
            self.num_rounds_by_client.update(sample_clients(self._study, members, round_index).keys())

    def write_privacy(self, folder: Path) -> None:
        """Write `privacy.json` into the folder of a study and print its sentence; nothing without privacy.

        Raises:
            HeartlmError: Opacus is not installed, or the file cannot be written.
        """
        if self._privacy is not None and self.num_rounds_by_client:
            promise = asdict(self._privacy) | guarantee(self._privacy, max(self.num_rounds_by_client.values()))
            write_json(folder / "privacy.json", promise)
            print(
                f"privacy: each client, with all its patients: epsilon {promise['epsilon']:.2f} at delta "
                f"{promise['delta']:g} after {promise['num_rounds']} rounds of its own "
                f"({promise['epsilon_per_round']:.2f} each), to who sees global weights only",
                file=sys.stderr,
                flush=True,
            )


def with_privacy(update: Update, study: FederatedConfig, num_clients: int, generator: torch.Generator) -> Update:
    """Return a clipped update with its part of the noise of `num_clients`, which all count as one sample.

    Without differential privacy it is returned as it is.
    """
    privacy = privacy_of(study)
    if privacy is None:
        return update
    return replace(update, delta=clip_and_noise(update.delta, privacy, num_clients, generator), num_samples=1)


def add_up(totals: Tensor, updates: Iterable[Update], asked_samples: int) -> None:
    """Set `totals`, int64 `[P + 1]`, to the sums of deltas, weighted by their part of `asked_samples`, and of samples.

    Raises:
        HeartlmError: an update is not finite or too large: training has diverged.
    """
    updates = list(updates)
    sum_in_fixed_point(totals, [(update.delta, update.num_samples / asked_samples) for update in updates])
    totals[-1] = sum(update.num_samples for update in updates)
