"""Statistics that run along a series with gaps: NaN is left out, and NaN is the answer where nothing is known."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels import running as kernels
from heartlm.kernels.running import mean_around

__all__ = ["correlation", "mean_around", "trailing_median"]

Number = TypeVar("Number", np.float32, np.float64)


def trailing_median(values: NDArray[Number], width: int) -> NDArray[Number]:
    """Median of each value and the up to `width - 1` values before it; the shape and type of `values`."""
    median = kernels.trailing_median(values.astype(np.float64), width)
    return median.astype(values.dtype, copy=False)


def correlation(first: NDArray[Number], second: NDArray[Number]) -> NDArray[Number]:
    """Pearson correlation along rows, 0 where either is constant; `[n, width]`, `[n or 1, width]` → `[n]`."""
    first = first - first.mean(axis=1, keepdims=True)
    second = second - second.mean(axis=1, keepdims=True)
    power = np.sqrt(np.sum(first**2, axis=1) * np.sum(second**2, axis=1))
    constant = np.where(np.isnan(power), power, np.zeros_like(power))
    found: NDArray[Number] = np.divide(np.sum(first * second, axis=1), power, out=constant, where=power > 1e-9)
    return found
