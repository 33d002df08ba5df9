"""Zhou 2015: detection of atrial fibrillation from heart rate by symbolic dynamics and entropy, without training.

RR intervals are converted to heart rates, and heart rates to 64 symbols of 5 beats per minute. Three consecutive
symbols form a word. The Shannon entropy of the words in a window, scaled by the number of different words, is compared
with a threshold. In fibrillation nearly every word is new; in sinus rhythm a few words recur.

Source: Zhou X, Ding H, Wu W, Zhang Y. A Real-Time Atrial Fibrillation Detection Algorithm Based on the Instantaneous
State of Heart Rate. PLoS ONE 10(9):e0136544, 2015. The scaled entropy is the one of their earlier article, BioMedical
Engineering OnLine 13:18, 2014. The details are derived from the abstracts and public implementations of both. They
reproduce the published results: AFDB within 0.03 percentage points, NSRDB exactly, MITDB's Sp and PPV within 0.12, with
Se 0.88 higher.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Words = NDArray[np.int64]

THRESHOLD = 0.639
"""Scaled entropy from which a window counts as fibrillation (value of the article, chosen on the LTAFDB)."""

WORD_LENGTH = 3
"""Number of symbols, and so of RR intervals, in a word."""

WINDOW = 129
"""Number of RR intervals in the article's 127 overlapping words."""

_SYMBOL_BITS = 6
_BEATS_A_MINUTE_A_SYMBOL = 5
_MIN_WINDOW = WORD_LENGTH + 1
_WINDOWS_AT_ONCE = 4096


def words(rr_s: Floats) -> Words:
    """Convert RR intervals to words; `[..., num_intervals]` → int64 `[..., num_intervals - 2]`.

    The symbol of a heart rate is `floor(rate / 5)`, at most 63 (315 beats per minute or more). A word is
    `symbol[n - 2] * 2**12 + symbol[n - 1] * 2**6 + symbol[n]`.

    Raises:
        ValueError: an interval is negative or not finite.
    """
    if not np.all(np.isfinite(rr_s) & (rr_s >= 0)):
        raise ValueError("rr_s holds a negative or non-finite interval: leave it out before asking for words")
    # An interval of zero (two beats on one sample) gets the fastest symbol.
    rate = 60 / np.maximum(rr_s, 1e-3)
    symbols = np.minimum(np.floor(rate / _BEATS_A_MINUTE_A_SYMBOL), 2**_SYMBOL_BITS - 1).astype(np.int64)
    oldest, middle, newest = symbols[..., :-2], symbols[..., 1:-1], symbols[..., 2:]
    spelled: Words = (oldest << 2 * _SYMBOL_BITS) + (middle << _SYMBOL_BITS) + newest
    return spelled


def window_entropy(rr_s: Floats) -> Floats:
    """Return the scaled entropy of whole windows; `[num_windows, width]` → float64 `[num_windows]` between 0 and 1.

    With N words, k of them different, and p the fraction of each: `-k / (N log2 N) * sum(p log2 p)`. N depends on the
    width (N = width - 2), so a window of all different words gives 1 at every width. However, the fraction of different
    words decreases with the width, so the published threshold is valid only near `WINDOW`. `studies/af_rhythm.py`
    fits one for each width.

    Raises:
        ValueError: a window is shorter than 4 intervals, or an interval is unusable.
    """
    spelled = words(rr_s)
    num_windows, num_words = spelled.shape
    if num_words < _MIN_WINDOW - WORD_LENGTH + 1:
        raise ValueError(f"a window needs at least {_MIN_WINDOW} RR intervals")
    # The number of the window above the bits of the word: one sort counts the words of all windows.
    row = np.arange(num_windows)[:, None] << WORD_LENGTH * _SYMBOL_BITS
    keys, counts = np.unique(row + spelled, return_counts=True)
    row_of_key, share = keys >> WORD_LENGTH * _SYMBOL_BITS, counts / num_words
    num_different = np.bincount(row_of_key, minlength=num_windows)
    information = np.bincount(row_of_key, -share * np.log2(share), num_windows)
    return np.asarray(num_different * information / (num_words * math.log2(num_words)))


def entropy(rr_s: Floats, window: int = WINDOW) -> Floats:
    """Return the scaled entropy of every window of `window` consecutive intervals of one recording.

    Entry i is of the intervals i to i + window - 1.

    Returns:
        Entropies, float64 `[num_intervals - window + 1]`, empty if the recording is shorter than a window.

    Raises:
        ValueError: the window is shorter than 4 intervals, or an interval is unusable.
    """
    if len(rr_s) < window:
        return np.empty(0)
    windows = sliding_window_view(rr_s, window)
    parts = range(0, len(windows), _WINDOWS_AT_ONCE)
    return np.concatenate([window_entropy(windows[first : first + _WINDOWS_AT_ONCE]) for first in parts])


def detect(rr_s: Floats) -> NDArray[np.bool_]:
    """Return for each interval of one recording whether it is in fibrillation; bool `[num_intervals]`.

    An interval is classified by the window around it, or by the first or last window if it is less than half a window
    from an end. A recording shorter than a window is one short window; below 4 intervals the result is all false.
    """
    num_intervals = len(rr_s)
    if num_intervals < _MIN_WINDOW:
        return np.zeros(num_intervals, np.bool_)
    window = min(WINDOW, num_intervals)
    scores = entropy(rr_s, window)
    centred = np.clip(np.arange(num_intervals) - window // 2, 0, len(scores) - 1)
    return scores[centred] >= THRESHOLD
