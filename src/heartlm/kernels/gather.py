"""Windows of tokens, gathered from a memory map into one buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel


def gather_windows(
    corpus: NDArray[Any],
    first: NDArray[np.int64],
    length: NDArray[np.int64],
    width: int,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Copy windows of `width` tokens out of `corpus`; one with fewer valid tokens repeats its last.

    Args:
        corpus: `[num_tokens, ...]`, contiguous; it may be a memory map.
        first: first token of each window, `[B]`.
        length: valid tokens of each, 1 to `width`, `[B]`.
        width: T.
        out: where to write, `[B, T, ...]`, reused from step to step; by default a new array.

    Returns:
        `[B, T, ...]` of the corpus' type.
    """
    shape = (len(first), width, *corpus.shape[1:])
    out = np.empty(shape, corpus.dtype) if out is None else out
    assert out.shape == shape and out.dtype == corpus.dtype and corpus.flags.c_contiguous and out.flags.c_contiguous
    tokens = corpus.ctypes.data, len(corpus)
    copied = kernel("gather_windows")(*tokens, first, length, len(first), width, corpus.strides[0], out.ctypes.data)
    assert copied == len(first), f"window {copied} lies outside the corpus"
    return out


def gather_codes(
    codes: NDArray[np.uint16], first: NDArray[np.int64], length: NDArray[np.int64], width: int
) -> NDArray[np.int64]:
    """`gather_windows` of codes uint16 `[num_tokens, F]`, widened as models take them: int64 `[B, width, F]`."""
    shape = len(first), width, codes.shape[1]
    out = np.empty(shape, np.int64)
    copied = kernel("gather_codes")(codes, len(codes), first, length, len(first), width, shape[2], out)
    assert copied == len(first), f"window {copied} lies outside the corpus"
    return out
