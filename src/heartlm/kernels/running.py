"""Medians that run along a series."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_MOST_PLACES = 1024
_ROWS_AT_ONCE = 4096
"""Rows that the kernel turns into columns at once: what a processor keeps near, however many rows there are."""


def trailing_median(values: Doubles, width: int) -> Doubles:
    """Median of each value and the up to `width - 1` values before it, NaN left out; NaN where all are.

    Args:
        values: float64 `[num_values]`.
        width: at least 1.
    """
    values = np.ascontiguousarray(values, np.float64)
    median, ordered = np.empty_like(values), np.empty(width)
    kernel("trailing_median")(values, len(values), width, ordered, median)
    return median


def stretch_medians(rows: Floats, first: NDArray[np.int64], last: NDArray[np.int64]) -> Floats:
    """Median of every place over stretches of rows.

    Args:
        rows: float32 `[num_rows, row_length]`, no NaN.
        first: row each stretch begins with, ascending, `[num_stretches]`.
        last: row it ends before, more than `first` and ascending.

    Returns:
        float32 `[num_stretches, row_length]`.
    """
    assert rows.shape[1] <= _MOST_PLACES, "longer rows than the kernel holds"
    rows, medians = np.ascontiguousarray(rows, np.float32), np.empty((len(first), rows.shape[1]), np.float32)
    if len(first) == 0:
        return medians
    assert first[0] >= 0 and last[-1] <= len(rows) and (first < last).all()
    longest = int((last - np.append(first[:1], first[:-1])).max())
    rows_at_once = min(max(longest, _ROWS_AT_ONCE), int(last[-1] - first[0]))
    columns = np.empty(rows_at_once * rows.shape[1], np.int32)
    kernel("stretch_medians")(rows, rows.shape[1], first, last, len(first), rows_at_once, columns, medians)
    return medians


def mean_around(values: Doubles, before: int, after: int) -> Doubles:
    """Mean of the known values from `before` places back to `after` places ahead; the shape of `values`."""
    known = ~np.isnan(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    place = np.arange(len(values))
    first, last = np.maximum(place - before, 0), np.minimum(place + after + 1, len(values))
    with np.errstate(invalid="ignore"):
        mean: Doubles = (total[last] - total[first]) / (count[last] - count[first])
    return mean
