"""The weighted mean of client updates: from the updates of each rank to the same mean on all ranks.

    updates of this rank ─► (clip, noise) ─► × weight ─► fixed point ─► all-reduce ─► mean

Integers are added, so the mean does not depend on the number of ranks or on which rank has which client. Noise comes
before masks, so they cost no privacy.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.distributed.communicator import Communicator, Pending
from heartlm.errors import HeartlmError
from heartlm.federated.client import Update, sample_clients
from heartlm.federated.fixed_point import FixedPoint, FixedPointSum, to_fixed_point
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.partition import Member
from heartlm.federated.privacy import clip_and_noise, guarantee, privacy_of, secret_generator
from heartlm.federated.study_file import FederatedConfig
from heartlm.files import write_json


@dataclass(frozen=True)
class WeightedUpdate:
    """An update and its weight in the mean of a round.

    Attributes:
        client: number of the client in the study.
        weight: samples of the client divided by those of all clients sampled in the round.
        update: update of the client.
    """

    client: int
    weight: float
    update: Update


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
            self.meter.hidden_s += max(0.0, min(self.pending.there_s, begin_s) - self.sent_s)
        num_samples = int(self.totals[-1])
        return FixedPoint(self.totals[:-1], self.asked_samples / num_samples) if num_samples else None


class Aggregator:
    """Makes the mean of each round, as the study's privacy settings say.

    Args:
        study: settings.
        communicator: of the ranks.
        num_parameters: P.
        num_clients: of the study.
        meter: notes what is sent and waited for.
        noise: makes the generator of the noise of differential privacy.

    Raises:
        HeartlmError: the privacy that the study asks for is impossible with this number of clients.

    Attributes:
        rounds_of: number of rounds that each client took part in, with differential privacy.
    """

    def __init__(
        self,
        study: FederatedConfig,
        communicator: Communicator,
        num_parameters: int,
        num_clients: int,
        meter: CommunicationMeter,
        noise: Callable[[], torch.Generator] = secret_generator,
    ) -> None:
        self._study, self._communicator, self._meter, self._noise = study, communicator, meter, noise()
        self._sum = FixedPointSum(num_parameters + 1)  # the last number: samples of clients that took part
        self._privacy, self.rounds_of = privacy_of(study), Counter[int]()
        if self._privacy is not None and not 0 < self._privacy.delta < 1 / num_clients:
            raise HeartlmError(
                f"privacy_delta: {self._privacy.delta:g} found, less than 1 over {num_clients} clients expected: a "
                "promise that may fail for one of them is none"
            )

    def start(self, round_index: int, updates: Sequence[WeightedUpdate], asked_samples: int) -> PendingMean:
        """Send the updates of this rank's clients; all ranks call it alike.

        Args:
            round_index: from 0.
            updates: of this rank, by client; may be empty.
            asked_samples: of all clients sampled in the round, to which the weights relate.
        """
        study, totals, pending = self._study, self._sum.whole, None
        if self._privacy is not None:
            here = [each.client for each in updates]
            clients = [client for rank in self._communicator.gather_objects(here) for client in rank]
            self.rounds_of.update(clients)
            asked_samples = len(clients)
            updates = [with_privacy(each, study, len(clients), self._noise) for each in updates]
        with self._meter:
            self._sum.fill([(each.update.delta, each.weight) for each in updates])
            totals[-1] = sum(each.update.num_samples for each in updates)
            self._meter.num_bytes += totals.nbytes
            if study.staleness:
                pending = self._communicator.start_sum(totals)
            else:
                self._communicator.sum(totals)
        return PendingMean(totals, asked_samples, self._meter, pending)

    def replay_accounting(self, members: Sequence[Member], num_rounds: int) -> None:
        """Count the rounds before a study was resumed: all sampled clients are taken to have taken part."""
        for round_index in range(num_rounds):
            self.rounds_of.update(sample_clients(self._study, members, round_index).keys())

    def write_privacy(self, folder: Path) -> None:
        """Write `privacy.json` into the folder of a study and print its sentence; nothing without privacy.

        Raises:
            HeartlmError: Opacus is not installed, or the file cannot be written.
        """
        if self._privacy is not None and self.rounds_of:
            found = asdict(self._privacy) | guarantee(self._privacy, max(self.rounds_of.values()))
            write_json(folder / "privacy.json", found)
            print(
                f"privacy: each client, with all its patients: epsilon {found['epsilon']:.2f} at delta "
                f"{found['delta']:g} after {found['num_rounds']} rounds of its own "
                f"({found['epsilon_per_round']:.2f} each), to who sees global weights only",
                file=sys.stderr,
                flush=True,
            )


def with_privacy(
    weighted: WeightedUpdate, study: FederatedConfig, num_clients: int, generator: torch.Generator
) -> WeightedUpdate:
    """A clipped update with its part of the noise and the same weight as all `num_clients` of the round.

    Without differential privacy it is returned as it is.
    """
    privacy = privacy_of(study)
    if privacy is None:
        return weighted
    delta = clip_and_noise(weighted.update.delta, privacy, num_clients, generator)
    return WeightedUpdate(weighted.client, 1 / num_clients, replace(weighted.update, delta=delta, num_samples=1))


def numbers_of(weighted: WeightedUpdate) -> NDArray[np.int64]:
    """What a client adds to a masked sum: weighted delta in fixed point, then samples; int64 `[P + 1]`."""
    samples = torch.tensor([weighted.update.num_samples])
    return torch.cat([to_fixed_point(weighted.update.delta * weighted.weight), samples]).numpy()


def mask_context(study: FederatedConfig, round_index: int) -> bytes:
    """Return the context from which masks of a round are derived, in addition to the keys."""
    return f"seed {study.seed} round {round_index}".encode()
