"""Runs that the beats model calls ventricular but that are noise.

The ventricular complexes of a run come from one place, or from a few, so that each resembles the one before in at least
one lead, and they are at most a few times as high as the usual beat. What a moving electrode leaves need not be so. A
regular movement repeats, but the waveform model, which sees four seconds and not single beats, knows it as noise.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from heartlm.analysis.signal_quality import around_beats
from heartlm.analysis.usual_shape import FEWEST_BEATS, USUAL_BEATS
from heartlm.ecg.spans import runs
from heartlm.tasks.waveform import NOISE, VF, VT

Floats = NDArray[np.float32]

REACH_S, SHIFT_S = 0.1, 0.03
"""Half-width in seconds of the compared part of a beat, and how far the next one is moved to match."""
TOGETHER = 256
"""Number of beats that are compared at once, which bounds the memory."""
UNLIKE, REPEATS, HIGHEST, PERHAPS, NOISY, SURE = 0.3, 0.5, 5.0, 0.2, 0.65, 0.5
"""A run is noise if the mean probability of noise in its seconds is at least `NOISY`. It also is if the median
correlation of its neighbouring beats is below `UNLIKE` in every lead, or below `REPEATS` with noise of at least
`PERHAPS`, or if the median of their heights is above `HIGHEST` usual beats in one lead, unless the mean probability of
VT and VF is at least `SURE`: the complexes of a polymorphic tachycardia change (docs/log/runs.md)."""


def run_shape(sample: NDArray[np.int64], is_normal: NDArray[np.bool_], signals_mv: Floats, rate_hz: float) -> Floats:
    """Return how much beats that are not normal resemble the next one, and how high they are, in each lead.

    Args:
        sample: position of each beat, ascending, int64 `[num_beats]`.
        is_normal: whether each is called normal, bool `[num_beats]`.
        signals_mv: signals in millivolts, float32 `[num_leads, num_samples]`, NaN where invalid.
        rate_hz: sampling rate in Hz.

    Returns:
        The correlation of each beat with the next, and its height by the median height of the nearest normal beats,
        float32 `[num_beats, 2, num_leads]`; NaN for normal beats, correlations also before one, heights also with fewer
        than `FEWEST_BEATS` normal beats.
    """
    reach, shift = round(REACH_S * rate_hz), round(SHIFT_S * rate_hz)
    others = np.flatnonzero(~is_normal)
    shape = np.full((len(sample), 2, len(signals_mv)), np.nan, np.float32)
    pairs = others[:-1][np.diff(others) == 1]
    for lead, signal in enumerate(signals_mv):
        for first in range(0, len(pairs), TOGETHER):
            part = pairs[first : first + TOGETHER]
            own = _unit(around_beats(signal, sample[part], reach))
            # [num_part, 2 shift + 1, 2 reach + 1]: the next beat, moved
            moved = sliding_window_view(around_beats(signal, sample[part + 1], reach + shift), 2 * reach + 1, axis=1)
            shape[part, 0, lead] = np.einsum("ijk,ik->ij", _unit(moved), own).max(axis=1)
        if is_normal.sum() >= FEWEST_BEATS:
            of_beats, normal = np.ptp(around_beats(signal, sample, reach), axis=1), np.flatnonzero(is_normal)
            num = min(USUAL_BEATS, len(normal))
            usual = np.median(sliding_window_view(of_beats[normal], num), axis=1)  # of each `num` normal beats
            begin = np.clip(np.searchsorted(normal, others) - num // 2, 0, len(usual) - 1)
            shape[others, 1, lead] = of_beats[others] / np.maximum(usual[begin], 1e-6)
    return shape


def _unit(windows: Floats) -> Floats:
    """Remove the mean of each window, and divide by its norm."""
    windows = windows - windows.mean(axis=-1, keepdims=True)
    return np.asarray(windows / np.maximum(np.linalg.norm(windows, axis=-1, keepdims=True), 1e-9))


def noise_runs(
    is_v: NDArray[np.bool_], shape: Floats, seconds: NDArray[np.float64], run_beats: int
) -> NDArray[np.bool_]:
    """Return which beats are in ventricular runs that are noise.

    Args:
        is_v: whether each beat is called ventricular, bool `[num_beats]`.
        shape: see `run_shape`.
        seconds: probability of each waveform class in the second of each beat, float64 `[num_beats, 5]`.
        run_beats: number of beats of a run.
    """
    is_noise = np.zeros(len(is_v), np.bool_)
    for first, stop in runs(is_v).tolist():
        if stop - first >= run_beats:
            repeats = np.median(shape[first : stop - 1, 0], axis=0).max()
            height = np.median(shape[first:stop, 1], axis=0).max()
            wave = seconds[first:stop].mean(axis=0)
            differs = repeats < UNLIKE or (repeats < REPEATS and wave[NOISE] >= PERHAPS)
            by_shape = (differs or height > HIGHEST) and wave[VT] + wave[VF] < SURE
            is_noise[first:stop] = by_shape or wave[NOISE] >= NOISY
    return is_noise
