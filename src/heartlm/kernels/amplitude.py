"""A lead as amplitude levels on a grid of times, from the past alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import float32, float32s, float64, float64s, int64, int64s, kernel, uint16s
from heartlm.kernels.running import trailing_median_reference
from heartlm.kernels.waveform import SPARE, interpolate, smooth

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

    def quantize(self, amplitude: Floats) -> NDArray[np.uint16]:
        """Level of each amplitude; what lies beyond ± `limit` falls into the outermost levels."""
        level = np.clip(np.floor((amplitude + self.limit) / self.step), 0, self.num_levels - 1)
        code: NDArray[np.uint16] = level.astype(np.uint16)
        return code

    def normalise(self, grid: Floats) -> tuple[Floats, Floats]:
        """Take the running average of `grid` `[num_points]` away and divide by the running amplitude, given too."""
        from scipy.signal import lfilter

        if len(grid) == 0:
            return grid, grid
        average, _ = lfilter([1 - self.keep], [1, -self.keep], grid, zi=[self.keep * float(grid[0])])
        centred = (grid - average).astype(np.float32)
        scale = self._running_amplitude(centred)
        return centred / scale, scale

    def _running_amplitude(self, centred: Floats) -> Floats:
        """Median range of the last whole seconds; each second uses those before it."""
        second = round(self.grid_hz)
        num_seconds = len(centred) // second
        ranges = np.ptp(centred[: num_seconds * second].reshape(num_seconds, second), axis=1).astype(np.float64)
        median = trailing_median_reference(ranges, self.scale_seconds).astype(np.float32)
        known = np.concatenate([[self.first_scale_mv], np.maximum(median, self.least_scale_mv)])
        return np.repeat(known, second)[: len(centred)].astype(np.float32)


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
    if run is None or second > _MOST_POINTS:
        return amplitude_levels_reference(signal, rate_hz, weights, levels)
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


def amplitude_levels_reference(
    signal: Floats, rate_hz: float, weights: Doubles, levels: AmplitudeLevels
) -> tuple[NDArray[np.uint16], NDArray[np.int64], Floats]:
    """The same in NumPy."""
    num_points = math.ceil(len(signal) * levels.grid_hz / rate_hz)
    position = np.arange(num_points, dtype=np.float64) * (rate_hz / levels.grid_hz)
    sample = np.minimum(np.round(position).astype(np.int64), len(signal) - 1)
    normalised, scale = levels.normalise(interpolate(smooth(signal, weights), position))
    return levels.quantize(normalised), sample, scale
