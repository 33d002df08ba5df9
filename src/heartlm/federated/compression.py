"""Fewer bytes for an update: bfloat16, blocks of int8, the k largest, and the memory that makes up for the loss.

    update ─ + what was not sent before ─► encode ─► bytes ─► decode ─► what the others get
                     ▲                                          │
                     └────────────── the difference ◄───────────┘

The difference is error feedback (Seide et al. 2014; Karimireddy et al. 2019, arXiv 1901.09847): nothing is lost, it
only comes later. Rounding by chance needs no such memory, because it is right on average.

Bytes are those of the message as it is sent: values, scales, places and the head of it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError

Vector = NDArray[np.float32]

BLOCK = 256
"""Values that share one scale of int8."""

_HEAD = struct.Struct("<BIB")  # which compressor, values, parts
_PART = struct.Struct("<BI")  # type, bytes
_TYPES = (np.dtype("<f4"), np.dtype("<u2"), np.dtype("i1"), np.dtype("<u4"), np.dtype("u1"))


@dataclass(frozen=True)
class Encoded:
    """An update as it is sent.

    Attributes:
        kind: place of its compressor in `NAMES`.
        size: values of the update.
        parts: arrays of one dimension, of the types of `_TYPES`.
    """

    kind: int
    size: int
    parts: tuple[NDArray[np.generic], ...]

    @property
    def num_bytes(self) -> int:
        """Length of the message."""
        return _HEAD.size + sum(_PART.size + part.nbytes for part in self.parts)

    def to_bytes(self) -> bytes:
        """The message."""
        words = [_HEAD.pack(self.kind, self.size, len(self.parts))]
        for part in self.parts:
            words += [_PART.pack(_TYPES.index(part.dtype), part.nbytes), part.tobytes()]
        return b"".join(words)

    @classmethod
    def from_bytes(cls, message: bytes) -> Encoded:
        """Read a message.

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
            if place != len(message) or kind >= len(NAMES):
                raise ValueError(f"{place} bytes")
        except (struct.error, ValueError, IndexError) as error:
            raise HeartlmError(
                f"an update of {len(message)} bytes is damaged ({error}); a whole one expected"
            ) from error
        return cls(kind, size, tuple(parts))


class Compressor(Protocol):
    """A way to write an update in fewer bytes, and to read it again."""

    def encode(self, vector: Vector) -> Encoded:
        """Write a vector float32 `[size]`."""

    def decode(self, encoded: Encoded) -> Vector:
        """Read it as float32 `[size]`."""


class Exact:
    """All 32 bits of every value."""

    def encode(self, vector: Vector) -> Encoded:
        """Write a vector."""
        return Encoded(NAMES.index("none"), len(vector), (np.asarray(vector, "<f4"),))

    def decode(self, encoded: Encoded) -> Vector:
        """Read it."""
        return encoded.parts[0].astype(np.float32)


class Bfloat16:
    """The upper 16 bits of every value, rounded to the nearest, ties to even: a relative error of at most 2⁻⁸."""

    def encode(self, vector: Vector) -> Encoded:
        """Write a vector."""
        bits = np.ascontiguousarray(vector, np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return Encoded(NAMES.index("bf16"), len(vector), (rounded.astype("<u2"),))

    def decode(self, encoded: Encoded) -> Vector:
        """Read it."""
        return (encoded.parts[0].astype(np.uint32) << 16).view(np.float32)


class Int8:
    """Whole numbers from -127 to 127 times a scale, the largest magnitude of `BLOCK` values over 127.

    Args:
        generator: of the chances of rounding up, which make what is read right on average; None rounds to the nearest.
    """

    def __init__(self, generator: np.random.Generator | None = None) -> None:
        self._generator = generator

    def encode(self, vector: Vector) -> Encoded:
        """Write a vector."""
        padded = np.zeros(-(-len(vector) // BLOCK) * BLOCK, np.float32)
        padded[: len(vector)] = vector
        blocks = padded.reshape(-1, BLOCK)
        scale = (np.abs(blocks).max(axis=1, initial=0.0) / np.float32(127)).astype("<f4")
        steps = blocks / np.where(scale > 0, scale, 1)[:, None]
        if self._generator is None:
            whole = np.rint(steps)
        else:
            whole = np.floor(steps + self._generator.random(steps.shape, np.float32))
        codes = np.clip(whole, -127, 127).astype(np.int8).reshape(-1)[: len(vector)]
        kind = "int8" if self._generator is None else "int8-by-chance"
        return Encoded(NAMES.index(kind), len(vector), (codes, scale))

    def decode(self, encoded: Encoded) -> Vector:
        """Read it."""
        codes, scale = encoded.parts
        every = np.repeat(scale.astype(np.float32), BLOCK)[: encoded.size]
        return codes.astype(np.float32) * every


class TopK:
    """The values of largest magnitude, with their places: four bytes each, or a bit for every value where that is less.

    Args:
        share: of the values that are sent, in (0, 1].
    """

    def __init__(self, share: float) -> None:
        if not 0 < share <= 1:
            raise HeartlmError(f"top_k: {share:g} found, a share of the values in (0, 1] expected, for example 0.01")
        self._share = share

    def encode(self, vector: Vector) -> Encoded:
        """Write a vector."""
        number = min(len(vector), max(1, round(self._share * len(vector))))
        first = max(0, len(vector) - number)
        places = np.sort(np.argpartition(np.abs(vector), first)[first:]) if number else np.zeros(0, np.intp)
        values = np.asarray(vector, "<f4")[places]
        where: NDArray[np.generic] = places.astype("<u4")
        if -(-len(vector) // 8) < where.nbytes:
            chosen = np.zeros(len(vector), bool)
            chosen[places] = True
            where = np.packbits(chosen)
        return Encoded(NAMES.index("top-k"), len(vector), (values, where))

    def decode(self, encoded: Encoded) -> Vector:
        """Read it."""
        values, where = encoded.parts
        vector = np.zeros(encoded.size, np.float32)
        if where.dtype == np.uint8:
            vector[np.unpackbits(where.astype(np.uint8), count=encoded.size) > 0] = values
        else:
            vector[where.astype(np.intp)] = values
        return vector


NAMES = ("none", "bf16", "int8", "int8-by-chance", "top-k")
"""Compressors by the names of study files."""

REMEMBERS = ("int8", "top-k")
"""Those that are wrong on average, and so come with error feedback."""


def compressor(name: str, *, top_k: float = 0.01, seed: Sequence[int] = (0,)) -> Compressor:
    """The compressor of that name.

    Args:
        name: one of `NAMES`.
        top_k: share of the values that top-k sends.
        seed: numbers that choose the chances of int8-by-chance, for example the study's seed, client and round.

    Raises:
        HeartlmError: there is none, or the share is impossible.
    """
    if name not in NAMES:
        raise HeartlmError(f"compression: {name!r} found, one of {', '.join(NAMES)} expected")
    if name == "top-k":
        return TopK(top_k)
    if name == "int8-by-chance":
        return Int8(np.random.Generator(np.random.Philox(np.random.SeedSequence(list(seed)))))
    plain: dict[str, Compressor] = {"none": Exact(), "bf16": Bfloat16(), "int8": Int8()}
    return plain[name]


class ErrorFeedback:
    """The memory of one client: what its messages did not say is added to its next update.

    Attributes:
        residual: float32 `[size]`, what was not yet sent; None before the first update.
    """

    def __init__(self, residual: Vector | None = None) -> None:
        self.residual = residual

    def encode(self, vector: Vector, by: Compressor) -> Encoded:
        """Write an update, with what is owed of those before it."""
        owed = vector if self.residual is None else vector + self.residual
        encoded = by.encode(owed)
        self.residual = owed - by.decode(encoded)
        return encoded
