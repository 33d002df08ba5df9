"""Statistics that run along a series with gaps: NaN is left out, and NaN is the answer where nothing is known."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels import running as kernels

Number = TypeVar("Number", np.float32, np.float64)


def trailing_median(values: NDArray[Number], width: int) -> NDArray[Number]:
    """Median of each value and the up to `width - 1` values before it; the shape and type of `values`."""
    median = kernels.trailing_median(values.astype(np.float64), width)
    return median.astype(values.dtype, copy=False)


def mean_around(values: NDArray[np.float64], before: int, after: int) -> NDArray[np.float64]:
    """Mean of the known values from `before` places back to `after` places ahead; the shape of `values`."""
    known = ~np.isnan(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    place = np.arange(len(values))
    first, last = np.maximum(place - before, 0), np.minimum(place + after + 1, len(values))
    with np.errstate(invalid="ignore"):
        mean: NDArray[np.float64] = (total[last] - total[first]) / (count[last] - count[first])
    return mean
