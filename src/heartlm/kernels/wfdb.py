"""Samples out of the bytes of WFDB signal files (formats 212, 16, 61, 80, 24 and 32), and annotations out of theirs.

Formats: signal(5) and annot(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/signal-5.htm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel

GROUP: dict[str, tuple[int, ...]] = {
    "212": (0, 2, 3),
    "16": (0, 2),
    "61": (0, 2),
    "80": (0, 1),
    "24": (0, 3),
    "32": (0, 4),
}
"""The formats decoded here: the bytes that 0, 1, ... samples take, up to those that fill a group."""

_NUM_BITS = {"212": 12, "16": 16, "61": 16, "80": 8, "24": 24, "32": 32}
"""Of a sample; the lowest that they hold marks a missing value."""

MAX_WIDTH = 2048
"""Samples a frame that the kernel takes; it works in blocks that hold whole frames."""


def num_bytes(group: tuple[int, ...], num_samples: int) -> int:
    """Bytes that `num_samples` take in a format of that `GROUP`."""
    groups, rest = divmod(num_samples, len(group) - 1)
    return groups * group[-1] + group[rest]


def adu_type(fmt: str) -> type[np.int16] | type[np.int32]:
    """The type of the samples of a format; of 80 int16 too, for fewer types."""
    return np.int16 if _NUM_BITS[fmt] <= 16 else np.int32


def decode(
    content: NDArray[np.uint8],
    fmt: str,
    width: int,
    columns: Sequence[int],
    out: NDArray[Any],
    skip: int = 0,
    calibration: NDArray[np.float64] | None = None,
    sums: NDArray[np.uint16] | None = None,
) -> None:
    """Decode some columns of frames of `width` samples, as many frames as `out` has samples.

    Args:
        content: bytes of the file, from the start of a group of its format.
        fmt: a key of `GROUP`.
        width: samples a frame.
        columns: which samples of a frame are wanted, `[num_columns]`.
        out: `[num_columns, num_frames]`, contiguous along frames: of `adu_type` of the format for adu, float32 for
            physical values, NaN where the sample marks a missing one.
        skip: samples of the first group that come before the first frame.
        calibration: baseline, gain and a factor of each column, `[num_columns, 3]`: physical is
            `(adu - baseline) / gain * factor`, in float64 and rounded once. None for adu.
        sums: `[num_columns]`; the sum of each column's adu is added, modulo 65536.
    """
    num_frames = out.shape[1]
    assert (
        width <= MAX_WIDTH
        and out.shape[0] == len(columns)
        and out.dtype == (adu_type(fmt) if calibration is None else np.float32)
    )
    assert len(content) >= num_bytes(GROUP[fmt], skip + num_frames * width) and all(
        0 <= column < width for column in columns
    )
    assert out.strides[1] == out.itemsize or num_frames < 2
    kernel("wfdb_decode")(
        *(content, int(fmt), skip, num_frames, width, np.array(columns, np.int64), len(columns)),
        *(calibration, out.ctypes.data, out.strides[0] // out.itemsize, sums),
    )


class DecodedAnnotations(NamedTuple):
    """The annotations of a file, in its order.

    Attributes:
        sample: position in ticks, int64 `[num_annotations]`.
        code: what was annotated, uint8 `[num_annotations]`.
        texts: of each AUX text the annotation it belongs to (-1: none), its first byte and its length, int64
            `[num_texts, 3]`.
        subtype: the annotation's subtype, 0 where none is stated, int8 `[num_annotations]`.
    """

    sample: NDArray[np.int64]
    code: NDArray[np.uint8]
    texts: NDArray[np.int64]
    subtype: NDArray[np.int8]


def decode_annotations(content: bytes) -> DecodedAnnotations | None:
    """Decode an annotation file; None where it ends before its end mark."""
    num_words = len(content) // 2
    sample, code = np.empty(num_words, np.int64), np.empty(num_words, np.uint8)
    texts, num_texts = np.empty((num_words, 3), np.int64), np.zeros(1, np.int64)
    subtype = np.zeros(num_words, np.int8)
    found = kernel("wfdb_annotations")(content, num_words, sample, code, texts, num_texts, subtype)
    return (
        None if found < 0 else DecodedAnnotations(sample[:found], code[:found], texts[: num_texts[0]], subtype[:found])
    )
