"""From samples to waveforms: smoothing, reading off at fractional positions, and cutting out beats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

LEAST_SCALE = 1e-3
"""A flat lead has no amplitude: a microvolt keeps it at zero instead of dividing by nothing."""
SPARE = 64
"""Samples beyond a stretch that the kernel may read and write."""


def cut_beats(
    signal: Floats, sample: NDArray[np.int64], offsets: Doubles, weights: Doubles, *, scale_beats: int, clip: float
) -> tuple[Floats, Floats, Floats]:
    """Cut out the waveform of every beat, take its median away and divide by the running amplitude.

    Args:
        signal: one lead, float32 `[num_samples]`, no NaN.
        sample: where the beats are, `[num_beats]`.
        offsets: places of the points relative to a beat, in samples, ascending, `[num_points]`.
        weights: of the samples around each, an odd number.
        scale_beats: how many beats the running amplitude, the median of their ranges, looks back.
        clip: values are kept within ± `clip` running amplitudes.

    Returns:
        the waveforms float32 `[num_beats, num_points]`, what was subtracted and what was divided by `[num_beats]`.
    """
    signal, sample = np.ascontiguousarray(signal, np.float32), np.ascontiguousarray(sample, np.int64)
    num_beats, num_points = len(sample), len(offsets)
    shape = np.empty((num_beats, num_points), np.float32)
    if num_beats == 0:
        return shape, np.empty(0, np.float32), np.empty(0, np.float32)
    reach = int(offsets[-1] - offsets[0]) + len(weights) + SPARE
    stretches, of_beats = np.empty((2, reach), np.float32), np.empty((2, num_beats), np.float32)
    keys, positions = np.empty(num_points, np.int32), np.empty(num_points)
    ranges, ordered = np.empty(num_beats), np.empty(scale_beats)
    kernel("cut_beats")(
        *(signal, len(signal), sample, num_beats, offsets, num_points, weights, len(weights)),
        *(scale_beats, LEAST_SCALE, clip),
        *(*stretches, positions, keys, ranges, ordered, shape, *of_beats),
    )
    return shape, of_beats[0], of_beats[1]


def smooth(signal: Floats, weights: Doubles) -> Floats:
    """Weighted sums of the samples around each, the edge values held beyond the ends; float32, as long as `signal`."""
    if len(weights) == 1 or len(signal) == 0:
        return signal
    half = len(weights) // 2
    padded = np.empty(len(signal) + 2 * half)  # np.pad takes longer than the sum for a short signal
    padded[:half], padded[half : half + len(signal)], padded[half + len(signal) :] = signal[0], signal, signal[-1]
    total = np.zeros(len(signal))
    for place, weight in enumerate(weights):
        total += weight * padded[place : place + len(signal)]
    return total.astype(np.float32)


def interpolate(signal: Floats, position: Doubles) -> Floats:
    """Linear interpolation at fractional sample positions, the edge values held beyond the ends."""
    position = np.clip(position, 0, len(signal) - 1)
    left = np.minimum(position.astype(np.int64), max(len(signal) - 2, 0))
    right = np.minimum(left + 1, len(signal) - 1)
    weight = (position - left).astype(np.float32)
    between: Floats = signal[left] * (1 - weight) + signal[right] * weight
    return between
