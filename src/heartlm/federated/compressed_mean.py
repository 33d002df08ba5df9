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

from heartlm.distributed.communicator import Communicator
from heartlm.federated.aggregate import Flight, Mean, PendingMean, Share
from heartlm.federated.compression import NAMES, REMEMBERS, Encoded, ErrorFeedback, compressor
from heartlm.federated.fixed_point import FixedPoint, to_fixed_point
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.study_file import StudyConfig

_HEAD = struct.Struct("<IdQ")  # bytes of the message, weight, samples


def compressed(delta: Tensor, study: StudyConfig, client: int, round_index: int, memory: ErrorFeedback) -> bytes:
    """The message of a client: its delta, float64 `[P]`, as `study` says; what is lost goes to `memory`."""
    by = compressor(study.compression, top_k=study.top_k, seed=(study.seed, client, round_index))
    vector = delta.numpy().astype(np.float32)
    remembers = study.compression in REMEMBERS
    return (memory.encode(vector, by) if remembers else by.encode(vector)).to_bytes()


def decompressed(message: bytes) -> Tensor:
    """The delta that a message says, float64 `[P]`."""
    encoded = Encoded.from_bytes(message)
    return torch.from_numpy(compressor(NAMES[encoded.kind]).decode(encoded)).double()


class CompressedMean:
    """Adds up what compressed messages say.

    Args:
        communicator: of the ranks.
        num_parameters: P.
        meter: told of everything that is sent and waited for.
        study: names the compressor.
    """

    def __init__(
        self, communicator: Communicator, num_parameters: int, meter: CommunicationMeter, study: StudyConfig
    ) -> None:
        self._communicator, self._meter, self._num_parameters = communicator, meter, num_parameters
        self._study = study
        self._memories = dict[int, ErrorFeedback]()

    def start(
        self, round_index: int, shares: Sequence[Share], asked_samples: int, at_once: bool = False
    ) -> PendingMean:
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
        return Flight(self._communicator, [pending], self._meter, lambda there: self._mean(there[0], asked_samples))

    def kept(self, client: int) -> dict[str, Tensor]:
        """What a client still owes, float32 `[P]`; empty where it owes nothing."""
        memory = self._memories.get(client)
        return {} if memory is None or memory.residual is None else {"owed": torch.from_numpy(memory.residual)}

    def load_kept(self, client: int, kept: dict[str, Tensor]) -> None:
        """Take up what `kept` gave."""
        self._memories[client] = ErrorFeedback(kept["owed"].numpy())

    def _message(self, share: Share, round_index: int) -> bytes:
        memory = self._memories.setdefault(share.client, ErrorFeedback())
        message = compressed(share.update.delta, self._study, share.client, round_index, memory)
        return _HEAD.pack(len(message), share.weight, share.update.num_samples) + message

    def _mean(self, gathered: Tensor, asked_samples: int) -> Mean:
        """The mean of all messages in uint8 `[size, n]`."""
        total, num_samples = torch.zeros(self._num_parameters, dtype=torch.int64), 0
        for row in gathered:
            text, place = row.numpy().tobytes(), 0
            while place < len(text) and (head := _HEAD.unpack_from(text, place))[0]:
                length, weight, samples = head
                place += _HEAD.size + length
                total += to_fixed_point(decompressed(text[place - length : place]) * weight)
                num_samples += samples
        if num_samples == 0:
            return Mean(None, 0)
        return Mean(FixedPoint(total, asked_samples / num_samples), num_samples)
