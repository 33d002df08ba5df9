"""The weighted mean of client updates: from the updates of each rank to the same mean on all ranks.

    updates of this rank ─► (clip, noise) ─┬─► × weight ─► fixed point (─► masks) ─► all-reduce by buckets ─┬─► mean
                                           └─► compressed messages ─► gathered by all ranks ─► added up ────┘

Integers are added, so the mean does not depend on the number of ranks or on which rank has which client. Each bucket
is in transit while the next one is prepared. Compressed updates cannot be added in transit, so every rank gathers the
messages of all clients, and waits for them; a server, as Flower has one, receives each message once. Noise comes before
masks and compression, so neither costs privacy. Keys of masks are agreed after training: a client that died is in no
mask.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.distributed.communicator import Communicator, Pending
from heartlm.federated.client import Update, sample_clients
from heartlm.federated.compression import REMEMBERS, Vector, decode, encode
from heartlm.federated.fixed_point import FixedPoint, FixedPointSum, to_fixed_point
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.partition import Member
from heartlm.federated.privacy import Ledger, clip_and_noise, privacy_of, secret_generator
from heartlm.federated.secure_sum import MaskingClient
from heartlm.federated.study_file import FederatedConfig
from heartlm.files import write_json

LEAST_CLIENTS = 2
"""A masked sum of fewer clients would show an update, so nothing is sent, and the global weights stay as they are."""


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
class Mean:
    """The result of a round.

    Attributes:
        delta: weighted mean of the deltas of clients that took part, `[P]`; None if none did. The next round may
            overwrite it.
        num_samples: of clients that took part.
    """

    delta: FixedPoint | None
    num_samples: int

    def wait(self) -> Mean:
        """Return the mean."""
        return self


def mean_of(totals: Tensor, asked_samples: int) -> Mean:
    """The mean from the sums over clients of weighted deltas, and of samples as the last number; int64 `[P + 1]`."""
    num_samples = int(totals[-1])
    return Mean(FixedPoint(totals[:-1], asked_samples / num_samples) if num_samples else None, num_samples)


@dataclass(frozen=True)
class PendingReduce:
    """A mean whose sums are in transit.

    Attributes:
        pending: sums that have to arrive.
        meter: notes what this rank waits for.
        totals: that `pending` are parts of; int64 `[P + 1]`, as `mean_of` takes them.
        asked_samples: of all clients sampled in the round.
    """

    pending: Sequence[Pending]
    meter: CommunicationMeter
    totals: Tensor
    asked_samples: int

    def wait(self) -> Mean:
        """Wait for the sums and return the mean."""
        with self.meter:
            for each in self.pending:
                each.wait()
            self.meter.landed(max(each.there_s for each in self.pending))
            return mean_of(self.totals, self.asked_samples)


PendingMean = Mean | PendingReduce


class Aggregator:
    """Makes the mean of each round, as the study's `compression`, `secure_sum` and privacy settings say.

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
        ledger: how often each client took part; None without differential privacy.
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
        self._owed = dict[int, Vector]()  # what messages of each client have left out
        privacy = privacy_of(study)
        self.ledger = None if privacy is None else Ledger(privacy, num_clients)

    def start(
        self, round_index: int, updates: Sequence[WeightedUpdate], asked_samples: int, at_once: bool = False
    ) -> PendingMean:
        """Send the updates of this rank's clients; all ranks call it alike.

        Args:
            round_index: from 0.
            updates: of this rank, by client; may be empty.
            asked_samples: of all clients sampled in the round, to which the weights relate.
            at_once: whether nothing is computed meanwhile, so that the sum may be waited for here.
        """
        if self.ledger is not None:
            here = [each.client for each in updates]
            clients = [client for rank in self._communicator.gather_objects(here) for client in rank]
            self.ledger.rounds_of.update(clients)
            asked_samples = len(clients)
            updates = [with_privacy(each, self._study, len(clients), self._noise) for each in updates]
        with self._meter:
            if self._study.compression != "none":
                return self._gathered(round_index, updates, asked_samples)
            if self._study.secure_sum:
                if not self._fill_masked(round_index, updates):
                    return Mean(None, 0)
                parts = None
            else:
                parts = [(each.update.delta, each.weight) for each in updates]
                self._sum.whole[-1] = sum(each.update.num_samples for each in updates)
            totals, pending = self._sum.whole, list[Pending]()
            num_parameters = len(totals) - 1
            if at_once:
                if parts is not None:
                    self._sum.fill(0, num_parameters, parts)
                self._communicator.sum(totals)
                self._meter.sent(totals.nbytes, arrived=True)
                return mean_of(totals, asked_samples)
            size = max(1, round(self._study.bucket_mib * 2**20) // totals.element_size())
            for begin in range(0, len(totals), size):
                bucket = totals[begin : begin + size]
                if parts is not None:
                    self._sum.fill(begin, min(begin + size, num_parameters), parts)
                pending.append(self._communicator.start_sum(bucket))
                self._meter.sent(bucket.nbytes)
        return PendingReduce(pending, self._meter, totals, asked_samples)

    def _fill_masked(self, round_index: int, updates: Sequence[WeightedUpdate]) -> bool:
        """Agree on keys and fill the sums with masked numbers; False if too few clients are left to hide one."""
        clients = {each.client: MaskingClient(str(each.client)) for each in updates}
        own_keys = {client.name: client.public_key for client in clients.values()}
        keys = {name: key for each in self._communicator.gather_objects(own_keys) for name, key in each.items()}
        self._meter.sent(sum(map(len, own_keys.values())))
        if len(keys) < LEAST_CLIENTS:
            if clients:
                print(f"round {round_index + 1}: one client is left, its update is not sent", file=sys.stderr)
            return False
        self._sum.whole.zero_()
        for each in updates:
            masked = clients[each.client].masked(numbers_of(each), keys, mask_context(self._study, round_index))
            self._sum.whole += torch.from_numpy(masked)
        return True

    def _gathered(self, round_index: int, updates: Sequence[WeightedUpdate], asked_samples: int) -> Mean:
        """Compress the updates of this rank, send them to every rank, and add up what all sent."""
        sent = [
            (
                compressed(each.update.delta, self._study, each.client, round_index, self._owed),
                each.weight,
                each.update.num_samples,
            )
            for each in updates
        ]
        self._meter.sent(sum(len(message) for message, *_ in sent), arrived=True)
        arrived = [each for rank in self._communicator.gather_objects(sent) for each in rank]
        totals = self._sum.whole
        parts = [(decompressed(message), weight) for message, weight, _ in arrived]
        self._sum.fill(0, len(totals) - 1, parts)
        totals[-1] = sum(num_samples for *_, num_samples in arrived)
        return mean_of(totals, asked_samples)

    def residual_state(self, client: int) -> dict[str, Tensor]:
        """Return the error-feedback residual of `client`, float32 `[P]`; empty if there is none."""
        return {"owed": torch.from_numpy(self._owed[client])} if client in self._owed else {}

    def restore_residual(self, client: int, kept: dict[str, Tensor]) -> dict[str, Tensor]:
        """Restore the result of `residual_state` from `kept`, and return the remaining state of the client."""
        own = dict(kept)
        if (owed := own.pop("owed", None)) is not None:
            self._owed[client] = owed.numpy()
        return own

    def replay_accounting(self, members: Sequence[Member], num_rounds: int) -> None:
        """Count the rounds before a study was resumed: all sampled clients are taken to have taken part."""
        if self.ledger is not None:
            for round_index in range(num_rounds):
                self.ledger.rounds_of.update(sample_clients(self._study, members, round_index).keys())

    def write_privacy(self, folder: Path) -> None:
        """Write `privacy.json` into the folder of a study and print its sentence; nothing without privacy.

        Raises:
            HeartlmError: Opacus is not installed, or the file cannot be written.
        """
        if self.ledger is not None and self.ledger.rounds_of:
            found = asdict(self.ledger.privacy) | self.ledger.statement()
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


def compressed(delta: Tensor, study: FederatedConfig, client: int, round_index: int, owed: dict[int, Vector]) -> bytes:
    """The message of a client: its delta, float64 `[P]`, and what its earlier messages left out, kept in `owed`."""
    vector = delta.numpy().astype(np.float32)
    if client in owed:
        vector += owed[client]
    message = encode(study.compression, vector, top_k=study.top_k, seed=(study.seed, client, round_index))
    if study.compression in REMEMBERS:
        owed[client] = vector - decode(message)
    return message


def decompressed(message: bytes) -> Tensor:
    """Return the delta in a message, float64 `[P]`."""
    return torch.from_numpy(decode(message)).double()
