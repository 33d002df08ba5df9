"""From samples to one normalised waveform a beat.

Around each R peak the signal is sampled on a fixed grid of times, whatever the recording's rate, after a short
low-pass that keeps what the grid can hold. The median of the window is its baseline; the scale is the median
peak-to-peak amplitude of the last beats. Nothing later is looked at than the window of the beat itself and, for the
low-pass, about one grid step (8 ms) beyond it, so a stream and a file give the same waveforms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.tokenizers.running import trailing_median

Floats = NDArray[np.float32]

DOMINANT_BEATS, DOMINANT_EVERY = 300, 32


@dataclass(frozen=True)
class BeatWindow:
    """The grid of times around an R peak, and how the scale is found.

    Attributes:
        before_s: seconds before the R peak where the window begins.
        after_s: seconds after the R peak where it ends.
        rate_hz: grid points a second.
        scale_beats: how many beats, the present one included, the running amplitude looks back.
        clip: largest absolute value of a normalised sample, in running amplitudes.
    """

    before_s: float = 0.28
    after_s: float = 0.48
    rate_hz: float = 125.0
    scale_beats: int = 64
    clip: float = 4.0

    @property
    def times_s(self) -> NDArray[np.float64]:
        """Grid times relative to the R peak, float64 `[num_points]`."""
        return np.arange(-round(self.before_s * self.rate_hz), round(self.after_s * self.rate_hz) + 1) / self.rate_hz


@dataclass(frozen=True)
class BeatWaveforms:
    """Waveforms of consecutive beats.

    Attributes:
        shape: baseline-free, in running amplitudes, float32 `[num_beats, num_points]`.
        baseline_mv: what was subtracted, float32 `[num_beats]`.
        scale_mv: what it was divided by, float32 `[num_beats]`.
    """

    shape: Floats
    baseline_mv: Floats
    scale_mv: Floats


def beat_waveforms(signal_mv: Floats, sample: NDArray[np.int64], rate_hz: float, window: BeatWindow) -> BeatWaveforms:
    """Cut and normalise the waveform of every beat.

    Args:
        signal_mv: one lead, float32 `[num_samples]`; NaN is read as the last valid value.
        sample: R-peak positions `[num_beats]`, ascending.
        rate_hz: rate of `signal_mv`.
        window: the grid and the scale.
    """
    smooth = low_pass(fill_gaps(signal_mv), rate_hz, window.rate_hz)
    raw = interpolate(smooth, sample[:, None] + window.times_s[None] * rate_hz)
    baseline = np.median(raw, axis=1)
    scale = trailing_median(np.ptp(raw, axis=1), window.scale_beats)
    scale = np.maximum(scale, 1e-3)  # a flat lead has no amplitude: 1 µV keeps it at zero instead of dividing by it
    shape = np.clip((raw - baseline[:, None]) / scale[:, None], -window.clip, window.clip)
    return BeatWaveforms(shape, baseline, scale)


def deviations(shape: Floats, causal: bool) -> Floats:
    """What sets each beat apart from the beat that dominates around it; float32 `[num_beats, num_points]`.

    The dominant beat is the median waveform of some 300 beats on either side or, with `causal`, of the 600 before:
    enough that a long run of ectopic beats does not become what is usual. It is taken anew every 32 beats.
    """
    deviation = np.empty_like(shape)
    for begin in range(0, len(shape), DOMINANT_EVERY):
        end = begin + DOMINANT_EVERY
        near = slice(max(0, begin - 2 * DOMINANT_BEATS), begin + 1)
        if not causal:
            near = slice(max(0, begin - DOMINANT_BEATS), end + DOMINANT_BEATS)
        deviation[begin:end] = shape[begin:end] - np.median(shape[near], axis=0)
    return deviation


def fill_gaps(signal: Floats) -> Floats:
    """Replace each NaN by the last valid value before it (by 0 at the very start)."""
    invalid = np.isnan(signal)
    if not invalid.any():
        return signal
    last_valid = np.maximum.accumulate(np.where(invalid, -1, np.arange(len(signal))))
    filled: Floats = np.where(last_valid < 0, np.float32(0), signal[np.maximum(last_valid, 0)])
    return filled


def low_pass(signal: Floats, rate_hz: float, grid_hz: float) -> Floats:
    """Smooth with a Hann window two grid steps wide, which the grid can then sample without aliasing."""
    half = round(rate_hz / grid_hz)
    if half < 2 or len(signal) == 0:
        return signal
    weights = np.hanning(2 * half + 1)[1:-1]
    padded = np.pad(signal, len(weights) // 2, mode="edge")
    return np.convolve(padded, weights / weights.sum(), mode="valid").astype(np.float32)


def interpolate(signal: Floats, position: NDArray[np.float64]) -> Floats:
    """Linear interpolation at fractional sample positions, the edge values held beyond the ends."""
    position = np.clip(position, 0, len(signal) - 1)
    left = np.minimum(position.astype(np.int64), max(len(signal) - 2, 0))
    right = np.minimum(left + 1, len(signal) - 1)
    weight = (position - left).astype(np.float32)
    between: Floats = signal[left] * (1 - weight) + signal[right] * weight
    return between
