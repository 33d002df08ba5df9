"""Indices of many beats in few bytes, for the lines of a journal."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError

FEW = 32
"""Number of indices up to which they are written as a list."""

Rows = NDArray[np.int64]


def packed(rows: Rows) -> list[int] | str:
    """Return ascending indices as a list, or as base64 of the compressed differences, which runs make short."""
    if len(rows) <= FEW:
        return [int(row) for row in rows]
    return base64.b64encode(zlib.compress(np.diff(rows, prepend=0).astype("<i4").tobytes())).decode()


def unpacked(value: Any) -> Rows:
    """Return the indices of `packed`.

    Raises:
        HeartlmError: it is none.
    """
    try:
        if isinstance(value, str):
            return np.cumsum(np.frombuffer(zlib.decompress(base64.b64decode(value)), "<i4").astype(np.int64))
        return np.array(value, np.int64).reshape(-1)
    except (ValueError, zlib.error, TypeError) as error:
        raise HeartlmError(f"rows: {str(value)[:40]!r} found, indices of beats expected") from error
