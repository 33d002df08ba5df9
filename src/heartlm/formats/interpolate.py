"""Leads of another rate than the recording's are resampled to it, on reading and only the requested samples."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Samples of a lead that are converted at once.
_PIECE = 1 << 16
# Zeros of the interpolating function on each side.
_ZEROS = 8


def interpolate(
    read: Callable[[int, NDArray[np.float32]], None],
    layout: tuple[int, int, int],
    first: int,
    out: NDArray[np.float32],
) -> None:
    """Fill `out` with a lead at the recording's rate, from sample `first`.

    Band-limited interpolation: a windowed sinc, which has its first zero at the lower of the two rates. Beyond the ends
    of the lead, its first and last sample are repeated.

    Args:
        read: `read(low, values)` fills `values` with samples of the lead at its own rate, from `low`.
        layout: samples of the lead in a unit of time, samples of the lead in all, samples of the recording in that
            unit of time.
        first: first sample at the recording's rate.
        out: samples at the recording's rate.
    """
    own, length, target = layout
    ratio = own / target  # own samples a sample of the recording
    width = max(1.0, ratio)
    reach = math.ceil(_ZEROS * width)
    common = math.gcd(own, target)
    num_phases = target // common
    taps = np.arange(1 - reach, reach + 1)
    step = _PIECE // (2 * reach) + 1
    for piece in range(0, len(out), step):
        place = np.arange(first + piece, first + min(piece + step, len(out)))
        # own sample before each place, and how far behind it in steps of 1 / num_phases; both `[num_places]`
        near, phase = divmod(place * (own // common), num_phases)
        phases, which = np.unique(phase, return_inverse=True)
        # one row of weights for each phase that occurs, `[num_phases, num_taps]`, instead of one for each sample
        distance = (taps - phases[:, np.newaxis] / num_phases) / width
        weights = np.sinc(distance) * np.sinc(distance / _ZEROS) * (np.abs(distance) < _ZEROS)
        weights /= weights.sum(axis=1, keepdims=True)
        low, high = max(int(near[0]) + 1 - reach, 0), min(int(near[-1]) + reach, length - 1)
        values = np.empty(high + 1 - low, np.float32)
        read(low, values)
        # `[num_places, num_taps]`; beyond the ends of the lead its first and last sample
        around = values[(near[:, np.newaxis] + taps).clip(low, high) - low]
        out[piece : piece + len(place)] = np.einsum("ij,ij->i", around, weights[which])
