"""Zhou 2015: atrial fibrillation from heart rate alone, by symbols and entropy, with nothing to train.

RR intervals become heart rates, heart rates become 64 symbols of 5 beats a minute, three symbols in a row become a
word, and the Shannon entropy of the words in a window, scaled by how many different words there are, is compared with
one threshold. In fibrillation nearly every word is new; in sinus rhythm few words come again and again.

Source: Zhou X, Ding H, Wu W, Zhang Y. A Real-Time Atrial Fibrillation Detection Algorithm Based on the Instantaneous
State of Heart Rate. PLoS ONE 10(9):e0136544, 2015. The scaled entropy is the one of their earlier article, BioMedical
Engineering OnLine 13:18, 2014. The details were pieced together from the abstracts and public implementations of the
two, and checked by their outcome: the published AFDB figures come out within 0.03 percentage points, NSRDB's exactly,
MITDB's Sp and PPV within 0.12 and its Se 0.88 higher.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Words = NDArray[np.int64]

THRESHOLD = 0.639
"""Scaled entropy from which a window counts as fibrillation (the article's, chosen on the LTAFDB)."""

WORD_LENGTH = 3
"""Symbols, hence RR intervals, in a word."""

WINDOW = 129
"""RR intervals that the article's 127 overlapping words span."""

_SYMBOL_BITS = 6
_BEATS_A_MINUTE_A_SYMBOL = 5
_MIN_WINDOW = WORD_LENGTH + 1


def words(rr_s: Floats) -> Words:
    """Spell RR intervals as words; `[..., num_intervals]` → int64 `[..., num_intervals - 2]`.

    The symbol of a heart rate is `floor(rate / 5)`, 63 from 315 beats a minute on; a word is
    `symbol[n - 2] * 2**12 + symbol[n - 1] * 2**6 + symbol[n]`.

    Raises:
        ValueError: an interval is negative or not finite.
    """
    if not np.all(np.isfinite(rr_s) & (rr_s >= 0)):
        raise ValueError("rr_s holds a negative or non-finite interval: leave it out before asking for words")
    # An interval of zero (two beats on one sample) is simply faster than the fastest symbol.
    rate = 60 / np.maximum(rr_s, 1e-3)
    symbols = np.minimum(np.floor(rate / _BEATS_A_MINUTE_A_SYMBOL), 2**_SYMBOL_BITS - 1).astype(np.int64)
    oldest, middle, newest = symbols[..., :-2], symbols[..., 1:-1], symbols[..., 2:]
    spelled: Words = (oldest << 2 * _SYMBOL_BITS) + (middle << _SYMBOL_BITS) + newest
    return spelled


def window_entropy(rr_s: Floats) -> Floats:
    """Scaled entropy of whole windows; `[num_windows, width]` → float64 `[num_windows]` between 0 and 1.

    With N words, k of them different, and p the share of each: `-k / (N log2 N) * sum(p log2 p)`. N follows the
    width (N = width - 2), so a window whose words all differ gives 1 at every width. The share of new words falls
    as windows grow, however, so the published threshold fits windows near `WINDOW` only; `benchmarks/af_rhythm.py` fits
    one for each width.

    Raises:
        ValueError: a window is shorter than 4 intervals, or an interval is unusable.
    """
    spelled = words(rr_s)
    num_windows, num_words = spelled.shape
    share = _information(num_words)
    row = np.arange(num_windows)[:, None] << WORD_LENGTH * _SYMBOL_BITS
    keys, counts = np.unique(row + spelled, return_counts=True)
    row_of_key = keys >> WORD_LENGTH * _SYMBOL_BITS
    num_different = np.bincount(row_of_key, minlength=num_windows)
    return _scaled(num_different, np.bincount(row_of_key, share[counts], num_windows), num_words)


def entropy(rr_s: Floats, window: int = WINDOW) -> Floats:
    """Scaled entropy of every window of `window` consecutive intervals of one recording.

    Entry i belongs to intervals i to i + window - 1. The article's recursion (a word enters, a word leaves) is done
    for all steps at once: each entry or exit changes one word's count, and the changes are summed along time.

    Returns:
        float64 `[num_intervals - window + 1]`, empty where the recording is shorter than a window.

    Raises:
        ValueError: the window is shorter than 4 intervals, or an interval is unusable.
    """
    num_words = window - WORD_LENGTH + 1
    if len(rr_s) < window:
        return np.empty(0)
    word, time, change = _entries_and_exits(words(rr_s), num_words)
    first = np.flatnonzero(np.diff(word, prepend=-1))
    total = np.cumsum(change)
    total_of_earlier_words = np.repeat(total[first] - change[first], np.diff(first, append=len(word)))
    after = total - total_of_earlier_words
    before = after - change

    share = _information(num_words)
    num_different = np.cumsum(np.bincount(time, (after > 0).astype(np.float64) - (before > 0)))
    information = np.cumsum(np.bincount(time, share[after] - share[before]))
    return _scaled(num_different, information, num_words)[num_words - 1 :]


def detect(rr_s: Floats, threshold: float = THRESHOLD, window: int = WINDOW) -> NDArray[np.bool_]:
    """Say for each interval of one recording whether it lies in fibrillation; bool `[num_intervals]`.

    An interval is judged by the window around it; those nearer to an end than half a window by the first or last
    window. A recording shorter than a window is judged as one short window, of no use below 4 intervals: all false.
    """
    num_intervals = len(rr_s)
    if num_intervals < _MIN_WINDOW:
        return np.zeros(num_intervals, np.bool_)
    window = min(window, num_intervals)
    scores = entropy(rr_s, window)
    centred = np.clip(np.arange(num_intervals) - window // 2, 0, len(scores) - 1)
    return scores[centred] >= threshold


def _entries_and_exits(spelled: Words, num_words: int) -> tuple[Words, Words, Words]:
    """List when which word enters (+1) or leaves (-1) the sliding window, by word, then by time."""
    num_steps, num_exits = len(spelled), len(spelled) - num_words
    word = np.concatenate([spelled[:num_exits], spelled])
    time = np.concatenate([np.arange(num_words, num_steps), np.arange(num_steps)])
    change = np.repeat([-1, 1], [num_exits, num_steps])
    # The sort is stable: where one word leaves and enters at once it leaves first, so counts stay within the window.
    order = np.lexsort((time, word))
    return word[order], time[order], change[order]


def _information(num_words: int) -> Floats:
    """`-p log2 p` of a word seen 0 to `num_words` times; float64 `[num_words + 1]`."""
    if num_words < _MIN_WINDOW - WORD_LENGTH + 1:
        raise ValueError(f"a window needs at least {_MIN_WINDOW} RR intervals")
    share = np.arange(1, num_words + 1) / num_words
    return np.concatenate([[0.0], -share * np.log2(share)])


def _scaled(num_different: ArrayLike, information: ArrayLike, num_words: int) -> Floats:
    product = np.asarray(num_different, np.float64) * np.asarray(information, np.float64)
    return product / (num_words * math.log2(num_words))
