"""Masked sums over a Flower grid: the server sees sums of nodes under masks, and the sum of all without.

    train ─► node keeps deltas and private keys, tells public keys ─► server
    mask  ─► all public keys ─► node: deltas × weights, in fixed point, under masks, added up ─► server: the sum

Clients that died while they trained have sent no key and are in no mask. A node that goes between the two messages
costs the round: it is abandoned, and nothing is sent again. With privacy, clients bound their updates and add their
shares of the noise before the masks, so each sees only the sum of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import Context
from torch import Tensor

from heartlm.distributed.communicator import LocalCommunicator
from heartlm.federated.aggregate import (
    LEAST_CLIENTS,
    Aggregator,
    Mean,
    PendingMean,
    WeightedUpdate,
    mask_context,
    mean_of,
    numbers_of,
    with_privacy,
)
from heartlm.federated.client import Update
from heartlm.federated.flower_messages import Told, keep_in, kept_in
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.privacy import secret_generator
from heartlm.federated.secure_sum import MaskingClient, RoundAbandoned
from heartlm.federated.study_file import FederatedConfig

if TYPE_CHECKING:
    from heartlm.federated.flower_fleet import Fleet


def announce(number: int, delta: Tensor, context: Context) -> str:
    """Put a client's delta and a new private key aside on its node; return its public key, hexadecimal."""
    client = MaskingClient(str(number))
    key = torch.from_numpy(np.frombuffer(client.private_bytes(), np.uint8).copy())
    keep_in(context, f"masks-{number}", {"delta": delta, "key": key})
    return client.public_key.hex()


def masked_sum(study: FederatedConfig, told: Told, num_samples: dict[int, int], context: Context) -> Tensor:
    """The masked numbers of this node's clients, added up, int64 `[P + 1]`; keys and deltas are forgotten."""
    keys = {name: bytes.fromhex(key) for name, key in told["public_keys"].items()}
    noise = secret_generator()
    total: Tensor | None = None
    for name, weight in told["weights"].items():
        kept = kept_in(context, f"masks-{name}")
        del context.state[f"masks-{name}"]
        update = Update(kept["delta"], num_samples[int(name)], 0, 0.0, 0.0)
        weighted = with_privacy(WeightedUpdate(int(name), weight, update), study, len(keys), noise)
        client = MaskingClient(name, kept["key"].numpy().tobytes())
        masked = torch.from_numpy(client.masked(numbers_of(weighted), keys, mask_context(study, told["round"])))
        total = masked if total is None else total + masked
    assert total is not None, "nodes are asked for clients of theirs"
    return total


class RemoteMaskedMean(Aggregator):
    """The mean of a round from sums that nodes masked.

    Args:
        fleet: the clients.
        study: settings.
        num_parameters: P.
        meter: unused, because nodes communicate.
    """

    def __init__(self, fleet: Fleet, study: FederatedConfig, num_parameters: int, meter: CommunicationMeter) -> None:
        super().__init__(study, LocalCommunicator(), num_parameters, len(fleet.members), meter)
        self._fleet = fleet

    def start(
        self, round_index: int, updates: Sequence[WeightedUpdate], asked_samples: int, at_once: bool = False
    ) -> PendingMean:
        """Let nodes mask and add up the updates that they keep."""
        if len(updates) < LEAST_CLIENTS:
            print(f"round {round_index + 1}: {len(updates)} clients are left, nothing is sent", file=sys.stderr)
            return Mean(None, 0)
        if self.ledger is not None:
            self.ledger.took_part(each.client for each in updates)
            asked_samples = len(updates)
        try:
            totals = self._fleet.masked_sum(round_index, {each.client: each.weight for each in updates})
        except RoundAbandoned as error:
            print(f"round {round_index + 1}: {error}", file=sys.stderr)
            return Mean(None, 0)
        return mean_of(totals, asked_samples)
