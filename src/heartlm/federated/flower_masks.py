"""Masked sums over a Flower grid: the server sees sums of nodes under masks, and the sum of all without.

    train ─► node keeps deltas and private keys, tells public keys ─► server
    mask  ─► all public keys ─► node: deltas × weights, in fixed point, under masks, added up ─► server: the sum

Clients that died while they trained have told no key and are in no mask. A node that goes between the two messages
costs the round: it is abandoned, and nothing is sent again. With privacy, clients bound their updates and add their
shares of the noise before the masks, so nobody sees less of it than all of them together.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import Context
from torch import Tensor

from heartlm.federated.aggregate import Here, Mean, PendingMean, Share
from heartlm.federated.client import Update
from heartlm.federated.flower_messages import Told, keep_in, kept_in
from heartlm.federated.masked_mean import LEAST_CLIENTS, numbers_of, summed
from heartlm.federated.privacy import Ledger, clip_and_noise, privacy_of, secret_generator
from heartlm.federated.secure_sum import MaskingClient, RoundAbandoned
from heartlm.federated.study_file import StudyConfig

if TYPE_CHECKING:
    from heartlm.federated.flower_fleet import Fleet


def announce(number: int, delta: Tensor, context: Context) -> str:
    """Put a client's delta and a new private key aside on its node; return its public key, hexadecimal."""
    client = MaskingClient(str(number))
    key = torch.from_numpy(np.frombuffer(client.private_bytes(), np.uint8).copy())
    keep_in(context, f"masks-{number}", {"delta": delta, "key": key})
    return client.public_key.hex()


def masked_sum(study: StudyConfig, told: Told, num_samples: dict[int, int], context: Context) -> Tensor:
    """The masked numbers of this node's clients, added up, int64 `[P + 1]`; keys and deltas are forgotten."""
    keys = {name: bytes.fromhex(key) for name, key in told["public_keys"].items()}
    words = f"seed {study.seed} round {told['round']}".encode()
    total: Tensor | None = None
    for name, weight in told["weights"].items():
        kept = kept_in(context, f"masks-{name}")
        del context.state[f"masks-{name}"]
        share = _share(study, int(name), weight, kept["delta"], num_samples[int(name)], len(keys))
        client = MaskingClient(name, kept["key"].numpy().tobytes())
        masked = torch.from_numpy(client.masked(numbers_of(share).numpy(), keys, words))
        total = masked if total is None else total + masked
    assert total is not None, "nodes are asked for clients of theirs"
    return total


def _share(study: StudyConfig, number: int, weight: float, delta: Tensor, samples: int, num_clients: int) -> Share:
    """What a client gives to the sum; with privacy a bounded update with noise, of the same weight for all."""
    update, privacy = Update(delta, samples, 0, 0.0, 0.0), privacy_of(study)
    if privacy is None:
        return Share(number, weight, update)
    noisy = clip_and_noise(delta, privacy, num_clients, secret_generator())
    return Share(number, 1 / num_clients, replace(update, delta=noisy, num_samples=1))


class RemoteMaskedMean:
    """The mean of a round from sums that nodes masked.

    Args:
        fleet: the clients.
        study: settings.

    Raises:
        HeartlmError: privacy that cannot be promised to so many clients.

    Attributes:
        ledger: who took part how often, where something is promised.
    """

    def __init__(self, fleet: Fleet, study: StudyConfig) -> None:
        privacy = privacy_of(study)
        self._fleet = fleet
        self.ledger = None if privacy is None else Ledger(privacy, len(fleet.members))

    def start(
        self, round_index: int, shares: Sequence[Share], asked_samples: int, at_once: bool = False
    ) -> PendingMean:
        """Let nodes mask and add up what they have put aside."""
        if len(shares) < LEAST_CLIENTS:
            print(f"round {round_index + 1}: {len(shares)} clients are left, nothing is sent", file=sys.stderr)
            return Here(Mean(None, 0))
        if self.ledger is not None:
            self.ledger.took_part(share.client for share in shares)
            asked_samples = len(shares)
        try:
            totals = self._fleet.masked_sum(round_index, {share.client: share.weight for share in shares})
        except RoundAbandoned as error:
            print(f"round {round_index + 1}: {error}", file=sys.stderr)
            return Here(Mean(None, 0))
        return Here(summed(totals, asked_samples))
