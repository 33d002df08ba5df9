"""A lead as amplitude levels on a grid of times, from the past alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel
from heartlm.kernels.waveform import SPARE

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

GRID_HZ = 100.0
"""Grid points a second."""
NUM_LEVELS = 128
LIMIT = 1.5
"""Amplitude of the outermost levels' outer edge, in running amplitudes."""
STEP = 2 * LIMIT / NUM_LEVELS
"""Height of a level, in running amplitudes."""
BASELINE_S = 1.0
"""Time constant of the average that is taken away."""
KEEP = math.exp(-1 / (BASELINE_S * GRID_HZ))
"""What the average keeps of itself from a grid point to the next."""
SCALE_SECONDS = 8
"""How many whole past seconds the running amplitude looks back."""
FIRST_SCALE_MV, LEAST_SCALE_MV = 1.5, 1e-3
"""What the first second is divided by, before any amplitude is known, and the least amplitude there is."""


def amplitude_levels(
    signal: Floats, rate_hz: float, weights: Doubles
) -> tuple[NDArray[np.uint16], NDArray[np.int64], Floats]:
    """Levels of a lead at every grid point.

    Args:
        signal: float32 `[num_samples]`, no NaN.
        rate_hz: samples a second.
        weights: of the samples around each, an odd number.

    Returns:
        levels uint16 `[num_points]`, the sample nearest to each int64, and the amplitude it was divided by, float32.
    """
    second, num_samples = round(GRID_HZ), len(signal)
    num_points = math.ceil(num_samples * GRID_HZ / rate_hz)
    codes, sample = np.empty(num_points, np.uint16), np.empty(num_points, np.int64)
    scale = np.empty(num_points, np.float32)
    signal = np.ascontiguousarray(signal, np.float32)
    stretches = np.empty((2, math.ceil(rate_hz) + len(weights) + SPARE), np.float32)
    ranges, ordered = np.empty(num_points // second + 1), np.empty(SCALE_SECONDS)
    kernel("amplitude_levels")(
        *(signal, num_samples, weights, len(weights)),
        *(rate_hz / GRID_HZ, second, KEEP, SCALE_SECONDS),
        *(FIRST_SCALE_MV, LEAST_SCALE_MV, LIMIT, STEP, NUM_LEVELS, num_points),
        *(*stretches, ranges, ordered, codes, sample, scale),
    )
    return codes, sample, scale
