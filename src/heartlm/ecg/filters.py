"""Filters that every analysis needs. `scipy.signal` takes longer to import than a minute of ECG to analyse."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def filtered(x: NDArray[np.floating], sections: Doubles, at_rest: Doubles) -> Doubles:
    """Apply a recursive filter to rows, as `scipy.signal.sosfilt`.

    Args:
        x: `[..., num_samples]`.
        sections: b0, b1, b2, a1 and a2 of each section, float64 `[num_sections, 5]`.
        at_rest: state of each section for a constant input of 1, float64 `[num_sections, 2]`; each row begins as if
            its first sample had always been there.
    """
    out = np.array(x, np.float64, order="C")
    if out.size:
        kernel("filter_sections")(sections, at_rest, len(sections), out.size // out.shape[-1], out.shape[-1], out)
    return out


def filtered_both_ways(x: NDArray[np.floating], sections: Doubles, at_rest: Doubles) -> Doubles:
    """Apply a recursive filter without delay: forwards, then backwards, as `scipy.signal.sosfiltfilt`.

    Args:
        x: `[num_rows, num_samples]`, more than 3 samples for each of the 2 coefficients of a section, and 3.
        sections, at_rest: see `filtered`.
    """
    edge = 3 * (2 * len(sections) + 1)
    ends = 2 * x[:, :1] - x[:, edge:0:-1], 2 * x[:, -1:] - x[:, -2 : -edge - 2 : -1]  # rotated by half a turn
    forwards = filtered(np.concatenate([ends[0], x, ends[1]], axis=1), sections, at_rest)
    backwards = filtered(forwards[:, ::-1], sections, at_rest)
    return backwards[:, ::-1][:, edge:-edge]


@lru_cache(maxsize=16)
def _low_pass(up: int, down: int) -> Floats:
    """Return the filter of `resampled`, a windowed sinc, float32 `[20 max(up, down) + 1]`."""
    most = max(up, down)
    time = np.arange(-10 * most, 10 * most + 1) / most
    taps = np.sinc(time) * np.kaiser(len(time), 5.0)
    return np.asarray(up * taps / taps.sum(), np.float32)


def resampled(x: Floats, ratio: Fraction) -> Floats:
    """Return rows at `ratio` times their rate, `[num_rows, ceil(ratio num_samples)]`: `scipy.signal.resample_poly`."""
    up, down = ratio.numerator, ratio.denominator
    if up == down:
        return x
    taps, reach = _low_pass(up, down), 10 * max(up, down)
    num = -(-x.shape[1] * up // down)
    out = np.empty((len(x), num), np.float32)
    most = reach // up + 1  # samples on each side that an output sees
    padded = np.pad(x, ((0, 0), (most, most + down)))
    # Outputs `up` apart see samples `down` apart by the same taps.
    for first in range(min(up, num)):
        nearest, phase = divmod(first * down, up)
        index = reach + phase - up * np.arange(-most, most + 1)
        inside = (index >= 0) & (index < len(taps))
        own = np.where(inside, taps[np.clip(index, 0, len(taps) - 1)], np.float32(0))
        seen = np.lib.stride_tricks.sliding_window_view(padded[:, nearest:], len(own), axis=1)[:, ::down]
        out[:, first::up] = (seen @ own)[:, : -(-(num - first) // up)]
    return out
