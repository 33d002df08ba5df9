"""Extract one normalised waveform per beat from the samples.

Around each R peak the signal is resampled on a fixed time grid, independent of the recording's rate, after a short
anti-aliasing low-pass. The baseline is the median of the window; the scale is the median peak-to-peak amplitude of the
last beats. No sample is used after the window of the beat, except about one grid step (8 ms) for the low-pass.
Therefore a stream and a file have the same waveforms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

LEAST_SCALE_MV = 1e-3
"""Minimum of the running amplitude, so that a flat lead stays at zero."""
SPARE = 64
"""Samples beyond a stretch that the kernels may read and write."""

DOMINANT_BEATS, DOMINANT_EVERY = 300, 32
BLOCK_BEATS = 128 * DOMINANT_EVERY
"""Maximum number of beats in a block: about an hour."""

_MOST_PLACES = 1024
# Rows that the kernel turns into columns at once: what a processor keeps near, however many rows there are.
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class BeatWindow:
    """Time grid around an R peak, and parameters of the scale.

    Attributes:
        before_s: start of the window in seconds before the R peak.
        after_s: end of the window in seconds after the R peak.
        rate_hz: rate of the grid in Hz.
        scale_beats: number of beats in the running amplitude, including the current beat.
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
        shape: baseline-free waveforms in running amplitudes, float32 `[num_beats, num_points]`.
        baseline_mv: subtracted baseline, float32 `[num_beats]`.
        scale_mv: running amplitude by which the waveform was divided, float32 `[num_beats]`.
    """

    shape: Floats
    baseline_mv: Floats
    scale_mv: Floats


def beat_waveforms(signal_mv: Floats, sample: NDArray[np.int64], rate_hz: float, window: BeatWindow) -> BeatWaveforms:
    """Extract and normalise the waveform of every beat.

    Args:
        signal_mv: one lead, float32 `[num_samples]`; NaN is replaced by the last valid value.
        sample: R-peak positions `[num_beats]`, ascending.
        rate_hz: sampling rate of `signal_mv` in Hz.
        window: parameters of the grid and the scale.
    """
    return _cut(fill_gaps(signal_mv), sample, rate_hz, window)


def _cut(signal_mv: Floats, sample: NDArray[np.int64], rate_hz: float, window: BeatWindow) -> BeatWaveforms:
    """Extract the waveforms from a lead without NaN."""
    signal_mv, sample = np.ascontiguousarray(signal_mv, np.float32), np.ascontiguousarray(sample, np.int64)
    offsets, weights = _grid(window, rate_hz)
    num_beats, num_points = len(sample), len(offsets)
    shape = np.empty((num_beats, num_points), np.float32)
    baseline, scale = np.empty((2, num_beats), np.float32)
    if num_beats:
        stretches = np.empty((2, int(offsets[-1] - offsets[0]) + len(weights) + SPARE), np.float32)
        keys, positions = np.empty(num_points, np.int32), np.empty(num_points)  # these and the next: room to work in
        ranges, ordered = np.empty(num_beats), np.empty(window.scale_beats)
        kernel("cut_beats")(
            *(signal_mv, len(signal_mv), sample, num_beats, offsets, num_points, weights, len(weights)),
            *(window.scale_beats, LEAST_SCALE_MV, window.clip),
            *(*stretches, positions, keys, ranges, ordered, shape, baseline, scale),
        )
    return BeatWaveforms(shape, baseline, scale)


@lru_cache
def _grid(window: BeatWindow, rate_hz: float) -> tuple[Doubles, Doubles]:
    return window.times_s * rate_hz, hann_weights(rate_hz, window.rate_hz)


def deviations(shape: Floats, causal: bool) -> Floats:
    """Return the difference of each beat from the dominant beat around it; float32 `[num_beats, num_points]`.

    The dominant beat is the median waveform of about 300 beats on either side or, with `causal`, of the previous 600
    beats. A long run of ectopic beats therefore does not become dominant. It is recomputed every 32 beats.
    """
    return _deviations(shape, slice(0, len(shape)), 0, len(shape), causal)


@dataclass(frozen=True)
class BeatBlock:
    """Consecutive beats of a recording.

    Attributes:
        beats: their places in the recording.
        scale_mv: as in `BeatWaveforms`.
        deviation: as `deviations` gives it, float32 `[num_beats, num_points]`.
        around: waveforms of these beats and of those that they are compared with, `[num_around, num_points]`.
        first: the place of the first of `around` in the recording.
    """

    beats: slice
    scale_mv: Floats
    deviation: Floats
    around: Floats
    first: int

    @property
    def shape(self) -> Floats:
        """Their waveforms, float32 `[num_beats, num_points]`."""
        return self.around[self.beats.start - self.first : self.beats.stop - self.first]


def beat_blocks(
    signal_mv: Floats, sample: NDArray[np.int64], rate_hz: float, window: BeatWindow, causal: bool
) -> Iterator[BeatBlock]:
    """What `beat_waveforms` and `deviations` give, in blocks of nearly equal length of at most `BLOCK_BEATS`."""
    signal_mv, num_beats = fill_gaps(signal_mv), len(sample)
    around, first, stop = np.empty((0, len(window.times_s)), np.float32), 0, 0
    scale_mv = np.empty(num_beats, np.float32)
    groups = -(-num_beats // DOMINANT_EVERY)  # beats with one dominant beat: no block divides them
    size = DOMINANT_EVERY * -(-groups // max(1, -(-num_beats // BLOCK_BEATS)))
    for begin in range(0, num_beats, size or 1):  # without beats the size is 0, which `range` refuses
        beats = slice(begin, min(begin + size, num_beats))
        # dominant beats are looked for on both sides, or in twice as many beats before
        before, after = (2 * DOMINANT_BEATS, 0) if causal else (DOMINANT_BEATS, DOMINANT_BEATS)
        near = slice(max(begin - before, 0), min(beats.stop + after, num_beats))
        again = min(window.scale_beats - 1, stop)  # beats cut once more, as the running amplitude looks back at them
        cut = _cut(signal_mv, sample[stop - again : near.stop], rate_hz, window)
        around = np.concatenate([around[near.start - first :], cut.shape[again:]])
        scale_mv[stop : near.stop] = cut.scale_mv[again:]
        first, stop = near.start, near.stop
        deviation = _deviations(around, beats, first, num_beats, causal)
        yield BeatBlock(beats, scale_mv[beats], deviation, around, first)


def _deviations(shape: Floats, beats: slice, first_beat: int, num_beats: int, causal: bool) -> Floats:
    """Deviations of `beats`; `shape` holds the waveforms from `first_beat` on, of all beats that are compared."""
    begin = np.arange(beats.start, beats.stop, DOMINANT_EVERY)
    first = np.maximum(begin - (2 * DOMINANT_BEATS if causal else DOMINANT_BEATS), 0)
    # All beats of a group have one dominant beat, so a causal one may look no further than the first of them.
    last = begin + 1 if causal else np.minimum(begin + DOMINANT_EVERY + DOMINANT_BEATS, num_beats)
    dominant = stretch_medians(shape, first - first_beat, last - first_beat)
    own = shape[beats.start - first_beat : beats.stop - first_beat]
    deviation: Floats = own - np.repeat(dominant, DOMINANT_EVERY, axis=0)[: len(own)]
    return deviation


def fill_gaps(signal: Floats) -> Floats:
    """Replace each NaN by the last valid value before it (by 0 at the very start)."""
    if len(signal) == 0 or not np.isnan(signal.min()):  # the minimum is NaN if any sample is
        return signal
    invalid = np.isnan(signal)
    last_valid = np.maximum.accumulate(np.where(invalid, -1, np.arange(len(signal))))
    filled: Floats = np.where(last_valid < 0, np.float32(0), signal[np.maximum(last_valid, 0)])
    return filled


def hann_weights(rate_hz: float, grid_hz: float) -> NDArray[np.float64]:
    """Weights of the low-pass, odd in number; a single 1 where the grid is too fine for one."""
    half = round(rate_hz / grid_hz)
    if half < 2:
        return np.ones(1)
    weights = np.hanning(2 * half + 1)[1:-1]
    normalised: NDArray[np.float64] = weights / weights.sum()
    return normalised


def smooth(signal: Floats, weights: Doubles) -> Floats:
    """Weighted sums of the samples around each, the edge values held beyond the ends; float32, as long as `signal`."""
    if len(weights) == 1 or len(signal) == 0:
        return signal
    half = len(weights) // 2
    padded = np.empty(len(signal) + 2 * half)  # np.pad takes longer than the sum for a short signal
    padded[:half], padded[half : half + len(signal)], padded[half + len(signal) :] = signal[0], signal, signal[-1]
    total = np.zeros(len(signal))
    for shift, weight in enumerate(weights):
        total += weight * padded[shift : shift + len(signal)]
    return total.astype(np.float32)


def interpolate(signal: Floats, position: Doubles) -> Floats:
    """Linear interpolation at fractional sample positions, the edge values held beyond the ends."""
    position = np.clip(position, 0, len(signal) - 1)
    left = np.minimum(position.astype(np.int64), max(len(signal) - 2, 0))
    right = np.minimum(left + 1, len(signal) - 1)
    weight = (position - left).astype(np.float32)
    between: Floats = signal[left] * (1 - weight) + signal[right] * weight
    return between


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
