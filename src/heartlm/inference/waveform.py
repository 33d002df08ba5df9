"""Answers of the network of the waveform task: per window, smoothed, per second, and the class that is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from heartlm.labels.waveform import CLASSES, NOISE, STRIDE, VF, WINDOW
from heartlm.tokenizers.millivolts import NO_SIGNAL, dequantize
from heartlm.tokenizers.sample import GRID_HZ

if TYPE_CHECKING:
    from heartlm.inference.network import InferenceNetwork

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

SMOOTHED = 3
"""Number of windows whose probabilities are averaged, chosen on patient-wise folds of cudb and DS1 (docs/log/vf.md)."""

REGULAR, REGULAR_TWICE = 0.8, 0.7
"""Correlation of a window with itself a period, and two periods, later from which its waves are regular."""
LEAST_VF = 0.3
"""Probability of VF from which windows are searched for regular waves."""
REGULAR_BPM = (100, 187)
"""Rates of regular waves that are VT. Faster ones may be flutter, which counts as VF."""


def window_starts(num_tokens: int) -> Labels:
    """Return the first token of each window of a lead; empty if the lead is shorter than a window."""
    return np.arange(0, num_tokens - WINDOW + 1, STRIDE)


def windows_at(codes: NDArray[np.uint16], starts: Labels) -> NDArray[np.uint16]:
    """Return the codes `[num_windows, WINDOW, 1]` of the windows of a lead that start at `starts`."""
    return np.asarray(codes[starts[:, None] + np.arange(WINDOW)])


def over_seconds(by_window: Floats) -> Floats:
    """Return the probabilities of each second of a lead: the mean over its windows, `[num_windows + 3, 5]`."""
    reach = WINDOW // STRIDE
    if len(by_window) == 0:
        return by_window
    total, count = np.zeros((len(by_window) + reach - 1, by_window.shape[1])), np.zeros((len(by_window) + reach - 1, 1))
    for back in range(reach):
        total[back : back + len(by_window)] += by_window
        count[back : back + len(by_window)] += 1
    return np.asarray(total / count)


def class_probabilities(model: InferenceNetwork, codes: NDArray[np.uint16], lead: Labels) -> Floats:
    """Return the smoothed probability of each class in each window, float64 `[num_windows, 5]`; see `smoothed`.

    Args:
        model: network.
        codes: codes of the windows, in order within a lead, uint16 `[num_windows, WINDOW, 1]`.
        lead: index of the lead of each window, int64 `[num_windows]`.
    """
    return smoothed(window_answers(model, codes), lead)


def second_probabilities(model: InferenceNetwork, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Return the probability of each class of the waveform task per second: the mean over the windows that cover it.

    Args:
        model: network of the task.
        codes: codes of the lead, at least one window, uint16 `[num_tokens, 1]`.
    """
    starts = window_starts(len(codes))
    # Each window counts as a lead of its own, so none is smoothed: a second averages the windows that cover it.
    return over_seconds(class_probabilities(model, windows_at(codes, starts), np.arange(len(starts))))


def window_answers(model: InferenceNetwork, codes: NDArray[np.uint16]) -> Floats:
    """Return class probabilities of single windows. A window with mostly invalid samples is noise, not asystole."""
    from heartlm.inference.predictions import window_probabilities

    probabilities = window_probabilities(model, codes, WINDOW).astype(np.float64)
    probabilities[np.mean(codes[..., 0] == NO_SIGNAL, axis=1) > 0.5] = np.eye(len(CLASSES))[NOISE]
    return probabilities


def regular_waves(codes: NDArray[np.uint16]) -> NDArray[np.bool_]:
    """Return whether windows show regular waves at a rate of VT, which VF is not; bool `[num_windows]`.

    Each window is judged by itself, so that the others do not change it by rounding.

    Args:
        codes: codes of the windows, uint16 `[num_windows, WINDOW]`.
    """
    return np.array([_is_regular(dequantize(window).astype(np.float64)) for window in codes], np.bool_)


def regular_wave_seconds(codes: NDArray[np.uint16], vf: Floats) -> Floats:
    """Return the fraction of the windows over each second of a lead that may be VF and show regular waves.

    Args:
        codes: codes of the lead, uint16 `[num_tokens, 1]`.
        vf: probability of VF in each second, `[num_seconds]`.

    Returns:
        float64 `[num_windows + 3]`.
    """
    starts = window_starts(len(codes))
    seconds = np.minimum((starts // STRIDE)[:, None] + np.arange(WINDOW // STRIDE), len(vf) - 1)
    regular = vf[seconds].mean(axis=1) >= LEAST_VF
    regular[regular] = regular_waves(windows_at(codes, starts[regular])[..., 0])
    return over_seconds(regular[:, None].astype(np.float64))[:, 0]


def _is_regular(mv: Floats) -> bool:
    """Return whether the autocorrelation has a high first maximum at a rate of VT, and another one at twice its lag."""
    second = round(GRID_HZ)
    mv = mv - np.convolve(np.pad(mv, second // 2, mode="edge"), np.full(second, 1 / second), "valid")[: len(mv)]
    shortest, longest = (round(60 * GRID_HZ / bpm) for bpm in REGULAR_BPM[::-1])
    energy = np.concatenate([[0.0], np.cumsum(mv**2)])
    lags = np.arange(2 * longest + 4)
    products = np.correlate(mv, mv, "full")[len(mv) - 1 :][: len(lags)]
    correlation = products / np.sqrt(energy[len(mv) - lags] * (energy[-1] - energy[lags]) + 1e-12)
    below = np.flatnonzero(correlation < 0)
    if not len(below) or below[0] > longest:
        return False
    first = correlation[below[0] : longest + 1]
    if first.max() < REGULAR:
        return False
    # The first maximum that is nearly the highest, so that a rate above those of VT is not taken for half of it.
    period = below[0] + int(np.flatnonzero(first >= 0.85 * first.max())[0])
    while period < longest and correlation[period + 1] > correlation[period]:
        period += 1
    twice = correlation[2 * period - 3 : 2 * period + 4].max()
    return bool(period >= shortest and twice >= REGULAR_TWICE)


def smoothed(probabilities: Floats, lead: Labels) -> Floats:
    """Return the normalised geometric mean of the probabilities of each window and the `SMOOTHED` − 1 before it.

    A prediction thus depends on the last six seconds of the lead and remains causal.
    """
    logarithm = np.log(np.maximum(probabilities, 1e-4))
    total, count = logarithm.copy(), np.ones(len(lead))
    for back in range(1, SMOOTHED):
        later = np.flatnonzero(lead[back:] == lead[:-back]) + back
        total[later] += logarithm[later - back]
        count[later] += 1
    mean = np.exp(total / count[:, None])
    return np.asarray(mean / mean.sum(axis=1, keepdims=True))


def predicted_classes(probabilities: Floats, threshold: float, noise_denies: bool = True) -> Labels:
    """Return the predicted class: VF if its probability is at least `threshold`, else the most likely other class.

    With `noise_denies`, VF must also be at least as probable as noise; see `vf_scores`.
    """
    others = probabilities.copy()
    others[:, VF] = -1
    score = vf_scores(probabilities) if noise_denies else probabilities[:, VF]
    return np.where(score >= threshold, VF, others.argmax(axis=1))


def vf_scores(probabilities: Floats) -> Floats:
    """Return the probability of VF, 0 where noise is more probable (chosen on patient-wise folds, docs/log/vf.md)."""
    return np.where(probabilities[:, NOISE] > probabilities[:, VF], 0, probabilities[:, VF])
