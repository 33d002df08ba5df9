"""A lead as amplitude levels on a grid of times, from the past alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import float32, float32s, float64, float64s, int64, int64s, kernel, uint16s
from heartlm.kernels.waveform import SPARE

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_MOST_POINTS = 1024


@dataclass(frozen=True)
class AmplitudeLevels:
    """How levels are made.

    Attributes:
        grid_hz: grid points a second, a whole number.
        num_levels: how many levels there are.
        limit: amplitude of the outermost levels' outer edge, in running amplitudes.
        baseline_s: time constant of the average that is taken away.
        scale_seconds: how many whole past seconds the running amplitude looks back.
        first_scale_mv: the amplitude that the first second is divided by.
        least_scale_mv: the least amplitude there is.
    """

    grid_hz: float
    num_levels: int
    limit: float
    baseline_s: float
    scale_seconds: int
    first_scale_mv: float
    least_scale_mv: float = 1e-3

    @property
    def step(self) -> float:
        """Height of a level, in running amplitudes."""
        return 2 * self.limit / self.num_levels

    @property
    def keep(self) -> float:
        """What the average keeps of itself from a grid point to the next."""
        return math.exp(-1 / (self.baseline_s * self.grid_hz))


def amplitude_levels(
    signal: Floats, rate_hz: float, weights: Doubles, levels: AmplitudeLevels, variant: str | None = None
) -> tuple[NDArray[np.uint16], NDArray[np.int64], Floats]:
    """Levels of a lead at every grid point.

    Args:
        signal: float32 `[num_samples]`, no NaN.
        rate_hz: samples a second.
        weights: of the samples around each, an odd number.
        levels: the grid and the levels.
        variant: of the kernel; by default the best.

    Returns:
        levels uint16 `[num_points]`, the sample nearest to each int64, and the amplitude it was divided by, float32.
    """
    run = kernel("amplitude_levels", *_ARGUMENTS, variant=variant)
    second, num_samples = round(levels.grid_hz), len(signal)
    assert second <= _MOST_POINTS, "more points a second than the kernel holds"
    num_points = math.ceil(num_samples * levels.grid_hz / rate_hz)
    codes, sample = np.empty(num_points, np.uint16), np.empty(num_points, np.int64)
    scale = np.empty(num_points, np.float32)
    signal = np.ascontiguousarray(signal, np.float32)
    stretches = np.empty((2, math.ceil(rate_hz) + len(weights) + SPARE), np.float32)
    ranges, ordered = np.empty(num_points // second + 1), np.empty(levels.scale_seconds)
    run(
        *(signal, num_samples, weights, len(weights)),
        *(rate_hz / levels.grid_hz, second, levels.keep, levels.scale_seconds),
        *(levels.first_scale_mv, levels.least_scale_mv, levels.limit, levels.step, levels.num_levels, num_points),
        *(*stretches, ranges, ordered, codes, sample, scale),
    )
    return codes, sample, scale


_ARGUMENTS = (
    *(float32s, int64, float64s, int64),
    *(float64, int64, float64, int64),
    *(float32, float32, float32, float32, int64, int64),
    *(float32s, float32s, float64s, float64s, uint16s, int64s, float32s),
)
