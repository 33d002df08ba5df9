"""Gradient boosting baseline on hand-crafted features of beats and of RR windows.

Beat features: RR intervals, absolute and relative to short and long averages, and the shape of the beat compared with
the recording's median beat. Window features: irregularity measures from the atrial fibrillation literature. All
features are offline: they may use the whole recording, but no labels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import UNLABELLED
from heartlm.errors import HeartlmError, needs
from heartlm.evaluation import zhou
from heartlm.tokenizers.comparisons import correlation
from heartlm.tokenizers.rr import mean_around, trailing_median

Floats = NDArray[np.float64]

NUM_RECENT_BEATS = 32
NUM_LONG_BEATS = 300
"""Beats on each side in the long mean."""

NUM_SHAPE_SAMPLES = 16
"""Number of samples to which the difference of a beat from the median beat is averaged."""

SHORTEST_RR_S = 1e-3
"""Lower bound for intervals (two beats may be on one sample), so that every ratio is finite."""

FEWEST_INTERVALS = 4
WINDOWS_AT_ONCE = 64

PNN50_S = 0.050
SAMPLE_ENTROPY_TOLERANCE_S = 0.030
"""Largest difference of matching intervals in seconds, as in COSEn (Lake and Moorman 2011)."""


def boosting(features: Floats, classes: NDArray[np.int8], seed: int = 0) -> Any:
    """Return a fitted `sklearn.ensemble.HistGradientBoostingClassifier` with fixed, common settings.

    Class weights are the inverse square root of the class frequency, so rare classes count and common ones still count
    more. Early stopping is off, because its inner split over shuffled beats would put one patient on both sides.

    Args:
        features: features of each case, `[num_cases, num_features]`, NaN where unknown.
        classes: class of each case, 0 or more, or `UNLABELLED`, which is skipped; int8 `[num_cases]`.
        seed: random seed of the features sampled at each split.

    Raises:
        HeartlmError: the labels have fewer than two classes, or scikit-learn is not installed.
    """
    with needs("score"):
        from sklearn.ensemble import HistGradientBoostingClassifier
    labelled = classes != UNLABELLED
    known = classes[labelled]
    if (num_classes := len(np.unique(known))) < 2:
        raise HeartlmError(f"the baseline: {num_classes} classes to learn from, at least 2 expected: add recordings")
    weights = 1 / np.sqrt(np.bincount(known))[known]
    model = HistGradientBoostingClassifier(
        max_iter=100,
        learning_rate=0.1,
        max_leaf_nodes=15,
        min_samples_leaf=20,
        l2_regularization=1.0,
        max_features=0.3,
        early_stopping=False,
        random_state=seed,
    )
    return model.fit(features[labelled], known, sample_weight=weights / weights.mean())


def beat_features(waveforms: NDArray[np.float32], rr_s: Floats) -> Floats:
    """Return features of the beats of one recording, in order.

    Args:
        waveforms: samples around each R peak, aligned at the peak; float32 `[num_beats, width]`, any linear unit, NaN
            where there is no signal.
        rr_s: interval that ends at each beat in seconds, float64 `[num_beats]`, NaN where unknown (the first beat).

    Returns:
        Features, float64 `[num_beats, num_features]`, NaN where unknown.
    """
    return np.concatenate([_rr_features(np.asarray(rr_s, np.float64)), _shape_features(waveforms)], axis=1)


def rr_window_features(rr_s: Floats) -> Floats:
    """Return features of RR windows; float64 `[num_windows, width]` → `[num_windows, 43]`, NaN where undefined.

    Rate (mean, median, extremes), spread (coefficient of variation, RMSSD and median absolute difference over the
    mean, interquartile range over the median, pNN50), order (turning point ratio, autocorrelation at lags 1 and 2),
    entropy (sample entropy, Zhou 2015), and `heartlm.inference.intervals.interval_statistics`, which include statistics
    after an ectopic filter. All are undefined below 4 intervals.
    """
    from heartlm.inference.intervals import interval_statistics
    from heartlm.models.sizes import SCALES

    if rr_s.shape[1] < FEWEST_INTERVALS:
        return np.full((len(rr_s), 14 + len(SCALES)), np.nan)
    rr_s = np.maximum(np.asarray(rr_s, np.float64), SHORTEST_RR_S)
    mean, median = rr_s.mean(axis=1), np.median(rr_s, axis=1)
    step = np.diff(rr_s, axis=1)
    low, high = np.quantile(rr_s, [0.25, 0.75], axis=1)
    turns = np.mean(step[:, 1:] * step[:, :-1] < 0, axis=1)
    columns = [
        mean,
        median,
        rr_s.min(axis=1),
        rr_s.max(axis=1),
        rr_s.std(axis=1) / mean,
        np.sqrt(np.mean(step**2, axis=1)) / mean,
        np.median(np.abs(step), axis=1) / mean,
        (high - low) / median,
        np.mean(np.abs(step) > PNN50_S, axis=1),
        turns,
        correlation(rr_s[:, 1:], rr_s[:, :-1]),
        correlation(rr_s[:, 2:], rr_s[:, :-2]),
        np.array([_sample_entropy(window) for window in rr_s]),
        zhou.window_entropy(rr_s),
    ]
    statistics = [
        interval_statistics(part.astype(np.float32))
        for part in np.array_split(rr_s, -(-len(rr_s) // WINDOWS_AT_ONCE) or 1)
    ]
    return np.column_stack([*columns, np.concatenate(statistics)])


def _rr_features(rr_s: Floats) -> Floats:
    rr_s = np.maximum(rr_s, SHORTEST_RR_S)
    padded = np.concatenate([[np.nan], rr_s, [np.nan, np.nan]])
    before_previous, previous, following, after_following = (padded[i : i + len(rr_s)] for i in range(4))
    recent = trailing_median(rr_s, NUM_RECENT_BEATS)
    long = mean_around(rr_s, NUM_LONG_BEATS, NUM_LONG_BEATS)
    near = mean_around(rr_s, NUM_RECENT_BEATS // 4, NUM_RECENT_BEATS // 4)
    changes = mean_around((previous - before_previous) ** 2, NUM_RECENT_BEATS // 2, NUM_RECENT_BEATS // 2)
    unsteadiness = np.sqrt(changes) / near
    columns = [
        previous,
        following,
        previous / recent,
        following / recent,
        previous / long,
        following / long,
        previous / near,
        following / near,
        near,
        near / long,
        previous / following,
        previous / before_previous,
        following / after_following,
        (previous + following) / (2 * recent),
        unsteadiness,
    ]
    return np.stack(columns, axis=1)


def _shape_features(waveforms: NDArray[np.float32]) -> Floats:
    beats = np.asarray(waveforms, np.float64)
    beats = beats - np.median(beats, axis=1, keepdims=True)
    whole = beats[~np.isnan(beats).any(axis=1)]
    template = np.median(whole, axis=0) if len(whole) else np.zeros(beats.shape[1])
    scale = np.ptp(template) or 1.0
    beats, template = beats / scale, template / scale
    own_scale = np.maximum(np.ptp(beats, axis=1), 1e-6)
    magnitude = np.abs(beats)
    half_height = magnitude.max(axis=1, keepdims=True) / 2
    slope = np.abs(np.diff(beats, axis=1))
    parts = np.array_split(np.arange(beats.shape[1]), 3)
    columns = [
        own_scale,
        magnitude.mean(axis=1),
        magnitude.mean(axis=1) / own_scale,
        np.mean(magnitude > half_height, axis=1),
        slope.max(axis=1) / own_scale,
        beats.max(axis=1),
        beats.min(axis=1),
        np.sqrt(np.mean((beats - template) ** 2, axis=1)),
        correlation(beats, template[None]),
        *(correlation(beats[:, part], template[None, part]) for part in parts),
        *(np.ptp(beats[:, part], axis=1) for part in parts),
        correlation(beats, np.roll(beats, 1, axis=0)),
        correlation(beats, np.roll(beats, -1, axis=0)),
    ]
    # Raw waveform samples let the trees memorise patients; differences from the median beat generalise better.
    num_pieces = min(NUM_SHAPE_SAMPLES, beats.shape[1])
    pieces = np.array_split(beats - template, num_pieces, axis=1)
    return np.stack(columns + [piece.mean(axis=1) for piece in pieces], axis=1)


def _sample_entropy(rr_s: Floats) -> float:
    """Return sample entropy of order 1 (Richman and Moorman 2000); no match counts as half a match."""
    near = np.abs(rr_s[:, None] - rr_s) <= SAMPLE_ENTROPY_TOLERANCE_S
    num_templates = len(rr_s) - 1
    num_ones = int(np.count_nonzero(near[:-1, :-1])) - num_templates
    num_twos = int(np.count_nonzero(near[:-1, :-1] & near[1:, 1:])) - num_templates
    return math.log(max(num_ones, 1) / max(num_twos, 0.5))
