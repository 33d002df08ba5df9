"""Fewer bytes for an update: bfloat16, blocks of int8, the k largest, and the memory that makes up for the loss.

    update ─ + what was not sent before ─► encode ─► bytes ─► decode ─► what the others get
                     ▲                                          │
                     └────────────── the difference ◄───────────┘

The difference is error feedback (Seide et al. 2014; Karimireddy et al. 2019, arXiv 1901.09847): what a message leaves
out is sent later. Rounding by chance needs no such memory, because it is right on average.

A message has a head (compressor, number of values, number of parts) and its parts: values, scales, places.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError

Vector = NDArray[np.float32]

NAMES = ("none", "bf16", "int8", "int8-by-chance", "top-k")
"""Compressors by the names of study files; a message has the index."""

REMEMBERS = ("int8", "top-k")
"""Those that are wrong on average, and so come with error feedback."""

BLOCK = 256
"""Values that share one scale of int8."""

_HEAD = struct.Struct("<BIB")  # which compressor, values, parts
_PART = struct.Struct("<BI")  # type, bytes
_TYPES = (np.dtype("<f4"), np.dtype("<u2"), np.dtype("i1"), np.dtype("<u4"), np.dtype("u1"))


def encode(name: str, vector: Vector, *, top_k: float = 0.01, seed: Sequence[int] = (0,)) -> bytes:
    """Write a vector float32 `[size]` as a message.

    Args:
        name: one of `NAMES`: all 32 bits of every value; the upper 16, rounded to the nearest, ties to even; whole
            numbers from -127 to 127 times a scale; or the values of largest magnitude with their places.
        vector: the update.
        top_k: fraction of the values that top-k sends, in (0, 1].
        seed: numbers that choose the chances of int8-by-chance, for example the study's seed, client and round.
    """
    parts: tuple[NDArray[np.generic], ...]
    if name == "none":
        parts = (np.asarray(vector, "<f4"),)
    elif name == "bf16":
        bits = np.ascontiguousarray(vector, np.float32).view(np.uint32)
        parts = (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2"),)
    elif name == "top-k":
        parts = _largest(vector, top_k)
    else:
        padded = np.zeros(-(-len(vector) // BLOCK) * BLOCK, np.float32)
        padded[: len(vector)] = vector
        blocks = padded.reshape(-1, BLOCK)
        scale = (np.abs(blocks).max(axis=1, initial=0.0) / np.float32(127)).astype("<f4")
        steps = blocks / np.where(scale > 0, scale, 1)[:, None]
        if name == "int8":
            whole = np.rint(steps)
        else:
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(list(seed))))
            whole = np.floor(steps + generator.random(steps.shape, np.float32))
        parts = (np.clip(whole, -127, 127).astype(np.int8).reshape(-1)[: len(vector)], scale)
    words = [_HEAD.pack(NAMES.index(name), len(vector), len(parts))]
    for part in parts:
        words += [_PART.pack(_TYPES.index(part.dtype), part.nbytes), part.tobytes()]
    return b"".join(words)


def _largest(vector: Vector, fraction: float) -> tuple[NDArray[np.generic], ...]:
    """The values of largest magnitude and their places: four bytes each, or a bit a value where that is less."""
    number = min(len(vector), max(1, round(fraction * len(vector))))
    first = max(0, len(vector) - number)
    places = np.sort(np.argpartition(np.abs(vector), first)[first:]) if number else np.zeros(0, np.intp)
    values = np.asarray(vector, "<f4")[places]
    if -(-len(vector) // 8) >= 4 * len(places):
        return values, places.astype("<u4")
    chosen = np.zeros(len(vector), bool)
    chosen[places] = True
    return values, np.packbits(chosen)


def decode(message: bytes) -> Vector:
    """Read a message as float32 `[size]`.

    Raises:
        HeartlmError: it is cut short, or no such message.
    """
    try:
        kind, size, num_parts = _HEAD.unpack_from(message)
        place, parts = _HEAD.size, list[NDArray[np.generic]]()
        for _ in range(num_parts):
            number, num_bytes = _PART.unpack_from(message, place)
            place += _PART.size + num_bytes
            parts.append(np.frombuffer(message[place - num_bytes : place], _TYPES[number]))
        if place != len(message):
            raise ValueError(f"{place} bytes")
        name, values = NAMES[kind], parts[0]
        if name == "none":
            return values.astype(np.float32)
        if name == "bf16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        if name != "top-k":
            return values.astype(np.float32) * np.repeat(parts[1].astype(np.float32), BLOCK)[:size]
        vector, where = np.zeros(size, np.float32), parts[1]
        if where.dtype == np.uint8:
            where = np.flatnonzero(np.unpackbits(where.astype(np.uint8), count=size))
        vector[where.astype(np.intp)] = values
        return vector
    except (struct.error, ValueError, IndexError) as error:
        raise HeartlmError(f"an update of {len(message)} bytes is damaged ({error}); a whole one expected") from error
