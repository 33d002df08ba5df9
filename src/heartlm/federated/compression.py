"""Fewer bytes for an update: bfloat16, or blocks of int8 with stochastic rounding.

Neither needs memory between rounds: bfloat16 keeps eight bits of every value, and stochastic rounding is right on
average.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.errors import HeartlmError

BLOCK = 256
"""Values that share one scale of int8."""


def encode(name: str, delta: Tensor, seed: Sequence[int] = (0,)) -> bytes:
    """Write a vector as a message.

    Args:
        name: bf16, rounded to the nearest, ties to even; or int8-by-chance, whole numbers from -127 to 127 times the
            scale of their block, behind all scales.
        delta: the update, float64 `[size]`.
        seed: numbers that choose the chances of int8-by-chance, for example the study's seed, client and round.
    """
    vector = delta.float()
    if name == "bf16":
        return vector.bfloat16().view(torch.uint8).numpy().tobytes()
    blocks = np.zeros((-(-len(vector) // BLOCK), BLOCK), np.float32)
    blocks.reshape(-1)[: len(vector)] = vector.numpy()
    scale: NDArray[np.float32] = np.abs(blocks).max(axis=1, initial=0.0) / np.float32(127)
    steps = blocks / np.where(scale > 0, scale, 1)[:, None]
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(list(seed))))
    whole = np.floor(steps + generator.random(steps.shape, np.float32))
    return scale.tobytes() + np.clip(whole, -127, 127).astype(np.int8).tobytes()[: len(vector)]


def decode(name: str, message: bytes, size: int) -> Tensor:
    """Read a message as float64 `[size]`.

    Raises:
        HeartlmError: the message has another length.
    """
    scales = 4 * -(-size // BLOCK)
    expected = 2 * size if name == "bf16" else scales + size
    if len(message) != expected:
        raise HeartlmError(f"an update of {len(message)} bytes is damaged: {expected} expected for {size} values")
    if name == "bf16":
        return torch.frombuffer(bytearray(message), dtype=torch.bfloat16).double()
    scale = np.repeat(np.frombuffer(message[:scales], np.float32), BLOCK)[:size]
    return torch.from_numpy(np.frombuffer(message[scales:], np.int8) * scale).double()
