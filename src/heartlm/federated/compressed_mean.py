"""The mean of a round from compressed updates: every rank gets every client's message and adds up what they say.

Compressed numbers cannot be added up on their way, so they are gathered, not summed: each rank receives the messages of
all clients of the round. That is the price of an all-to-all; a server, as Flower has one, receives each message once.
What a message says is brought into fixed point before it is added, so the mean is the same on any number of ranks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from heartlm.federated.aggregate import Mean, PendingMean, Share
from heartlm.federated.communicator import Communicator, Pending
from heartlm.federated.compression import REMEMBERS, Encoded, ErrorFeedback, compressor
from heartlm.federated.fixed_point import from_fixed_point, to_fixed_point
from heartlm.federated.meter import CommunicationMeter

_HEAD = struct.Struct("<IdQ")  # bytes of the message, weight, samples


class CompressedMean:
    """Adds up what compressed messages say.

    Args:
        communicator: of the ranks.
        num_parameters: P.
        meter: told of everything that is sent and waited for.
        name: of the compressor.
        top_k: share of the values that top-k sends.
        seed: of the study, for rounding by chance.
    """

    def __init__(
        self,
        communicator: Communicator,
        num_parameters: int,
        meter: CommunicationMeter,
        name: str,
        *,
        top_k: float = 0.01,
        seed: int = 0,
    ) -> None:
        self._communicator, self._meter, self._num_parameters = communicator, meter, num_parameters
        self._name, self._top_k, self._seed = name, top_k, seed
        self._memories = dict[int, ErrorFeedback]()
        compressor(name, top_k=top_k)

    def start(self, round_index: int, shares: Sequence[Share], asked_samples: int) -> PendingMean:
        """Compress what this rank's clients changed and send it to every rank."""
        with self._meter.exposed():
            messages = b"".join(self._message(share, round_index) for share in shares)
            with self._meter.call():
                longest = max(self._communicator.gather_objects(len(messages)))
            payload = torch.zeros(longest, dtype=torch.uint8)
            payload[: len(messages)] = torch.from_numpy(np.frombuffer(messages, np.uint8).copy())
            with self._meter.call():
                pending = self._communicator.start_gather(payload)
            self._meter.sent(longest)
        return _Pending(self, pending, asked_samples)

    def state(self) -> dict[str, Tensor]:
        """What clients still owe, float32 `[P]` each."""
        return {
            str(client): torch.from_numpy(memory.residual)
            for client, memory in self._memories.items()
            if memory.residual is not None
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take up what `state` gave."""
        self._memories = {int(client): ErrorFeedback(residual.numpy()) for client, residual in state.items()}

    def _message(self, share: Share, round_index: int) -> bytes:
        by = compressor(self._name, top_k=self._top_k, seed=(self._seed, share.client, round_index))
        vector = share.update.delta.numpy().astype(np.float32)
        if self._name in REMEMBERS:
            encoded = self._memories.setdefault(share.client, ErrorFeedback()).encode(vector, by)
        else:
            encoded = by.encode(vector)
        message = encoded.to_bytes()
        return _HEAD.pack(len(message), share.weight, share.update.num_samples) + message

    def mean_of(self, gathered: Tensor, asked_samples: int) -> Mean:
        """The mean of all messages in uint8 `[size, n]`."""
        by = compressor(self._name, top_k=self._top_k)
        total, num_samples = torch.zeros(self._num_parameters, dtype=torch.int64), 0
        for row in gathered:
            text, place = row.numpy().tobytes(), 0
            while place < len(text) and (head := _HEAD.unpack_from(text, place))[0]:
                length, weight, samples = head
                place += _HEAD.size + length
                vector = by.decode(Encoded.from_bytes(text[place - length : place]))
                total += to_fixed_point(torch.from_numpy(vector).double() * weight)
                num_samples += samples
        if num_samples == 0:
            return Mean(None, 0)
        return Mean(from_fixed_point(total) * (asked_samples / num_samples), num_samples)

    @property
    def meter(self) -> CommunicationMeter:
        """Told of everything that is sent and waited for."""
        return self._meter


class _Pending:
    def __init__(self, mean: CompressedMean, pending: Pending, asked_samples: int) -> None:
        self._mean, self._pending, self._asked, self._landed = mean, pending, asked_samples, False

    def test(self) -> bool:
        with self._mean.meter.exposed(), self._mean.meter.call():
            there = self._pending.test()
        if there:
            self._land()
        return there

    def wait(self) -> Mean:
        meter = self._mean.meter
        with meter.exposed():
            with meter.call():
                gathered = self._pending.wait()
            self._land()
            return self._mean.mean_of(gathered, self._asked)

    def _land(self) -> None:
        if not self._landed:
            self._landed = True
            self._mean.meter.landed()
