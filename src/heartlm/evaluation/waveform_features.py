"""Twelve published features of ventricular fibrillation in ECG windows, for the random forest baseline.

Reviews rate these features as the strongest (Amann, Tratnig, Unterkofler, BioMed Eng OnLine 4:60, 2005; Figuera et al.,
PLoS ONE 11:e0159654, 2016). They are computed at 100 Hz in the band 1 to 30 Hz:

tcsc, threshold crossings (Arafat 2011); zero crossings; leak of the VF filter (Kuo and Dillman 1978); m and a2 of the
spectrum (Barro 1989); bandwidth; count1 and count2 in the band 13 to 16.5 Hz (Jekova 2004); kurtosis; mav, the mean
absolute amplitude over the largest (Anas 2010); phase space (Amann 2007); sample entropy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.tokenizers.sample import GRID_HZ

Floats = NDArray[np.float64]

NAMES: tuple[str, ...] = (
    "tcsc", "zero_crossings", "leak", "m", "a2", "bandwidth",
    "count1", "count2", "kurtosis", "mav", "phase_space", "sample_entropy",
)  # fmt: skip
_AT_ONCE = 1000
_LEAST = 1e-6


def waveform_features(mv: NDArray[np.float32]) -> Floats:
    """Return the features `NAMES`; float32 `[num_windows, num_samples]` in mV at 100 Hz → `[num_windows, 12]`."""
    if len(mv) == 0:
        return np.empty((0, len(NAMES)))
    return np.concatenate([_features(mv[first : first + _AT_ONCE]) for first in range(0, len(mv), _AT_ONCE)])


def _features(mv: NDArray[np.float32]) -> Floats:
    from scipy.signal import butter, sosfilt, sosfiltfilt

    raw = mv.astype(np.float64) - mv.mean(axis=1, keepdims=True, dtype=np.float64)
    x = sosfiltfilt(butter(2, [1, 30], "band", fs=GRID_HZ, output="sos"), raw, axis=1)
    size, largest = np.abs(x), np.abs(x).max(axis=1) + _LEAST
    deviation = x.std(axis=1) + _LEAST
    narrow = np.abs(sosfilt(butter(2, [13, 16.5], "band", fs=GRID_HZ, output="sos"), raw, axis=1))[:, 50:]
    columns = [
        _tcsc(size),
        np.mean((x[:, 1:] > 0) != (x[:, :-1] > 0), axis=1),
        _leak(x),
        *_spectral(x),
        np.mean(narrow >= 0.5 * narrow.max(axis=1, keepdims=True) + _LEAST, axis=1),
        np.mean(narrow >= narrow.mean(axis=1, keepdims=True) + _LEAST, axis=1),
        np.mean(x**4, axis=1) / deviation**4,
        np.mean(size / largest[:, None], axis=1),
        _phase_space(x / largest[:, None]),
        np.array([_sample_entropy(each) for each in (x[:, ::2] / deviation[:, None]).astype(np.float32)]),
    ]
    return np.stack(columns, axis=1)


def _tcsc(size: Floats) -> Floats:
    """Return the fraction of samples above a fifth of the largest, averaged over tapered windows of three seconds."""
    width = round(3 * GRID_HZ)
    ramp = 0.5 - 0.5 * np.cos(np.pi * np.arange(25) / 25)
    taper = np.concatenate([ramp, np.ones(width - 50), ramp[::-1]])
    shares = []
    for first in range(0, size.shape[1] - width + 1, round(GRID_HZ)):
        tapered = size[:, first : first + width] * taper
        shares.append(np.mean(tapered > 0.2 * tapered.max(axis=1, keepdims=True) + _LEAST, axis=1))
    return np.asarray(np.mean(shares, axis=0))


def _leak(x: Floats) -> Floats:
    """Return the residue of adding a wave to itself shifted by half its mean period; 0 for a sine."""
    # For a sine of period T, the mean of |x| over that of its steps is T / 2π: with π, half a period.
    half_period = np.pi * np.abs(x[:, 1:]).sum(axis=1) / (np.abs(np.diff(x, axis=1)).sum(axis=1) + _LEAST)
    half = np.clip(np.rint(half_period), 1, x.shape[1] // 2).astype(np.int64)
    leak = np.empty(len(x))
    for lag in np.unique(half).tolist():
        same_lag = half == lag
        later, before = x[same_lag, lag:], x[same_lag, :-lag]
        leak[same_lag] = np.abs(later + before).sum(axis=1) / (
            np.abs(later).sum(axis=1) + np.abs(before).sum(axis=1) + _LEAST
        )
    return leak


def _spectral(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Return mean over peak frequency, the fraction of amplitude around the peak, and the bandwidth of 90 % power."""
    amplitude = np.abs(np.fft.rfft(x * np.hamming(x.shape[1])))
    frequency = np.fft.rfftfreq(x.shape[1], 1 / GRID_HZ)
    low = (frequency >= 0.5) & (frequency <= 9)
    strongest = frequency[low][amplitude[:, low].argmax(axis=1)][:, None]
    kept = np.where(amplitude >= 0.05 * amplitude[:, low].max(axis=1, keepdims=True), amplitude, 0)
    kept *= frequency <= 20 * strongest
    total = kept.sum(axis=1) + _LEAST
    near = (frequency >= 0.7 * strongest) & (frequency <= 1.4 * strongest)
    power = np.cumsum(amplitude**2, axis=1) / (np.sum(amplitude**2, axis=1, keepdims=True) + _LEAST)
    bandwidth = np.sum((power >= 0.05) & (power < 0.95), axis=1) * frequency[1]
    return (kept @ frequency) / total / strongest[:, 0], (kept * near).sum(axis=1) / total, bandwidth


def _phase_space(x: Floats) -> Floats:
    """Return the fraction of 40 × 40 boxes visited by the wave plotted against itself half a second later."""
    box = np.clip(((x + 1) * 20).astype(np.int64), 0, 39)
    lag = round(GRID_HZ / 2)
    visited = np.sort(box[:, lag:] * 40 + box[:, :-lag], axis=1)  # in order, a step marks another box
    return np.asarray((1 + np.sum(np.diff(visited, axis=1) > 0, axis=1)) / 1600)


def _sample_entropy(x: NDArray[np.float32]) -> float:
    """Return sample entropy of order 2 with tolerance 0.2 of one window, given in standard deviations."""
    near = np.abs(x[:, None] - x) < 0.2
    two = near[:-2, :-2] & near[1:-1, 1:-1]
    three = two & near[2:, 2:]
    itself = len(two)  # each pattern matches itself, which does not count
    return float(-np.log(max(three.sum() - itself, 1) / max(two.sum() - itself, 1)))
