"""The mean of a round from masked numbers: to the last bit the one that `ExactMean` gives.

Clients agree on keys after training, so that one that died while it trained is in no mask. Who reads the messages of a
rank, or the sums on their way, sees noise; only the sum over all clients means something.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from heartlm.distributed.communicator import Communicator
from heartlm.federated.aggregate import Flight, Here, Mean, PendingMean, Share
from heartlm.federated.fixed_point import FixedPoint, to_fixed_point
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.secure_sum import MaskingClient

LEAST_CLIENTS = 2
"""Fewer would show an update, so nothing is sent, and the global weights stay as they are."""


class MaskedMean:
    """Adds up in fixed point under masks that cancel, see `heartlm.federated.secure_sum`.

    Args:
        communicator: of the ranks.
        num_parameters: P.
        meter: told of everything that is sent and waited for.
        study: what the keys are for, so that those of two studies are never the same.
    """

    def __init__(
        self, communicator: Communicator, num_parameters: int, meter: CommunicationMeter, study: str = ""
    ) -> None:
        self._communicator, self._meter, self._study = communicator, meter, study
        self._totals = torch.zeros(num_parameters + 1, dtype=torch.int64)

    def start(
        self, round_index: int, shares: Sequence[Share], asked_samples: int, at_once: bool = False
    ) -> PendingMean:
        """Agree on keys, mask what this rank's clients changed, and send it on its way."""
        with self._meter.exposed():
            clients = {share.client: MaskingClient(str(share.client)) for share in shares}
            own_keys = {client.name: client.public_key for client in clients.values()}
            with self._meter.call():
                keys = {name: key for each in self._communicator.gather_objects(own_keys) for name, key in each.items()}
            self._meter.sent(sum(map(len, own_keys.values())))
            if len(keys) < LEAST_CLIENTS:
                if clients:
                    print(f"round {round_index + 1}: one client is left, its update is not sent", file=sys.stderr)
                return Here(Mean(None, 0))
            context = f"{self._study} round {round_index}".encode()
            self._totals.zero_()
            for share in shares:
                numbers = numbers_of(share).numpy()
                self._totals += torch.from_numpy(clients[share.client].masked(numbers, keys, context))
            if at_once:
                with self._meter.call():
                    self._communicator.sum(self._totals)
                self._meter.sent(self._totals.nbytes, arrived=True)
                return Here(summed(self._totals, asked_samples))
            with self._meter.call():
                pending = self._communicator.start_sum(self._totals)
            self._meter.sent(self._totals.nbytes)
        return Flight(self._communicator, [pending], self._meter, lambda there: summed(there[0], asked_samples))


def numbers_of(share: Share) -> Tensor:
    """What a client gives to the sum: its weighted delta in fixed point and its samples, int64 `[P + 1]`."""
    samples = torch.tensor([share.update.num_samples])
    return torch.cat([to_fixed_point(share.update.delta * share.weight), samples])


def summed(totals: Tensor, asked_samples: int) -> Mean:
    """The mean from the sum over clients of what `numbers_of` gave."""
    num_samples = int(totals[-1])
    return Mean(FixedPoint(totals[:-1], asked_samples / num_samples), num_samples)
