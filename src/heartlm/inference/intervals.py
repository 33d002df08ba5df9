"""Statistics of windows of RR intervals in NumPy: `heartlm.models.statistics`, of windows without padding.

Shapes: B windows, T intervals per window.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from heartlm.models.sizes import AROUND, EARLY, LONGEST_S, RUN, SCALES, SHORTEST_S, STEP_S, TOLERANCE_MS
from heartlm.models.weights import Weights

Floats = NDArray[np.float32]

PAIRS_AT_ONCE = 1 << 17
"""Pairs of intervals that are compared together: what the caches hold."""


def interval_statistics(seconds: Floats) -> Floats:
    """Return scaled measures of irregularity of windows of RR intervals, in the order of `SCALES`.

    Entropies are Zhou's (2015) and CoSEn (Lake and Moorman 2011) with the tolerance fixed at 30 ms; dispersion and
    bigeminy are those of Petrėnas (2015), averaged over runs of 8 intervals.

    Args:
        seconds: intervals in s, float32 `[B, T]`; entropies are 0 for fewer than 3.

    Returns:
        float32 `[B, len(SCALES)]`, finite.
    """
    x = np.clip(seconds, np.float32(SHORTEST_S), np.float32(LONGEST_S))
    around, smooth = _running_median(x, AROUND), _running_median(x, 3)
    early = x < np.float32(EARLY) * around
    late = np.pad(early[:, :-1], ((0, 0), (1, 0))) & (x > around)
    filtered = np.where(early | late, around, x)
    step = np.diff(x, axis=1)
    first, second = step[:, :-1], step[:, 1:]
    with np.errstate(invalid="ignore", divide="ignore"):  # means of no step: NaN, which become 0
        columns = [np.log(_mean(x)), np.full(len(x), np.log(x.shape[1]))]
        for series in (x, filtered, smooth):
            columns += _spread(np.asarray(series))
        columns += [_entropy(series) for series in (x, filtered, smooth)]
        relative = x / _lower_median(x)[:, None]
        columns += [
            _cosen(x),
            _share(np.abs(step) > STEP_S),
            _share(first * second < 0),
            *(_correlation(x[:, back:], x[:, :-back]) for back in (1, 2, 3)),
            _spread((x[:, 1:] + x[:, :-1]) / 2)[0],
            _spread((x[:, 2:] + x[:, 1:-1] + x[:, :-2]) / 3)[0],
            *_quantiles(relative, 0.05, 0.95),
            _share(np.abs(relative - 1) < STEP_S),
            *_dispersion(x, smooth),
            _share((first < -STEP_S) & (second > STEP_S)),
            _share((first > STEP_S) & (second < -STEP_S)),
        ]
    centre, spread = np.array(list(SCALES.values()), np.float32).T
    scaled = (np.stack(columns, axis=1).astype(np.float32) - centre) / spread
    return np.asarray(np.clip(np.nan_to_num(scaled), -5, 5))


def _running_median(x: Floats, width: int) -> NDArray[np.floating]:
    """Return the running median of an odd `width` of values, with replicated ends; shape of `x`."""
    ends = np.pad(x, ((0, 0), (width // 2, width // 2)), mode="edge")
    return _lower_median(sliding_window_view(ends, width, axis=1))


def _lower_median(x: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the median over the last axis; of an even number of values the lower of the two in the middle."""
    if not x.shape[-1]:
        return np.full(x.shape[:-1], np.nan, np.float32)
    middle = (x.shape[-1] - 1) // 2
    return np.asarray(np.partition(x, middle, axis=-1)[..., middle])


def _mean(x: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.asarray(x.sum(axis=1) / np.float32(x.shape[1]))


def _spread(x: NDArray[np.floating]) -> list[NDArray[np.floating]]:
    """Return logarithms of standard deviation, RMSSD and median absolute difference, each divided by the mean."""
    mean, step = _mean(x), np.diff(x, axis=1)
    measures = np.sqrt(_mean((x - mean[:, None]) ** 2)), np.sqrt(_mean(step**2)), _lower_median(np.abs(step))
    return [np.log(measure / mean + np.float32(1e-3)) for measure in measures]


def _quantiles(x: Floats, *shares: float) -> list[Floats]:
    ordered, values = np.sort(x, axis=1), []
    for share in shares:
        rank = share * (x.shape[1] - 1)
        below, above = ordered[:, int(rank)], ordered[:, int(np.ceil(rank))]
        values.append(below + (above - below) * np.float32(rank - int(rank)))
    return values


def _share(holds: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.asarray(holds.sum(axis=1) / max(1, holds.shape[1]))


def _correlation(one: Floats, other: Floats) -> Floats:
    num = np.float32(max(1, one.shape[1]))
    one, other = (x - x.sum(axis=1, keepdims=True) / num for x in (one, other))
    power = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    return np.asarray((one * other).sum(axis=1) / np.maximum(power, np.float32(1e-9)))


def _entropy(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the scaled entropy of words of three symbols of 5 beats/min, as in `heartlm.evaluation.zhou`; `[B]`."""
    symbol = np.minimum(np.floor(60 / x / 5), 63)
    word = np.sort((symbol[:, :-2] * 64 + symbol[:, 1:-1]) * 64 + symbol[:, 2:], axis=1)
    num_words = word.shape[1]
    if not num_words:
        return np.zeros(len(x))
    begins = np.ones(word.shape, np.bool_)
    begins[:, 1:] = word[:, 1:] != word[:, :-1]
    begin = np.flatnonzero(begins)  # of each run of equal words
    num_same, row, num = np.diff([*begin, word.size]), begin // num_words, max(num_words, 2)
    bits = np.bincount(row, -num_same * np.log2(num_same / num), minlength=len(x)) / num
    return np.asarray(begins.sum(axis=1) * bits / (num * np.log2(num)))


def _cosen(x: Floats) -> NDArray[np.floating]:
    """Return the coefficient of sample entropy (CoSEn) of order 1; `[B]`."""
    milliseconds, num = np.rint(1000 * x).astype(np.int16), x.shape[1]
    ones, twos = np.empty(len(x)), np.empty(len(x))
    at_once = max(1, PAIRS_AT_ONCE // num**2)
    for begin in range(0, len(x), at_once):
        part = milliseconds[begin : begin + at_once]
        near = np.abs(part[:, :, None] - part[:, None]) <= TOLERANCE_MS
        own = slice(begin, begin + at_once)
        ones[own] = near.sum(axis=(1, 2)) - 2 * near[:, -1].sum(axis=1) + 1  # the last has none after it
        twos[own] = (near[:, :-1, :-1] & near[:, 1:, 1:]).sum(axis=(1, 2))
    ones, twos = (ones - (num - 1)) / 2, (twos - (num - 1)) / 2  # without pairs of an interval with itself
    matches = np.log(np.maximum(ones, 1)) - np.log(np.maximum(twos, 0.5))
    return np.asarray(matches + np.log(2 * TOLERANCE_MS / (1000 * _mean(x))))


def _dispersion(x: Floats, smooth: NDArray[np.floating]) -> list[NDArray[np.floating]]:
    """Return the fraction of pairs in runs that differ by 30 ms after the median, and the log change of the sum."""
    if x.shape[1] < RUN:
        return [np.zeros(len(x))] * 2
    runs = sliding_window_view(smooth, RUN, axis=1)
    # Intervals `back` apart differ in a run of RUN if they lie in it: RUN - back pairs of each run.
    differ = np.zeros(runs.shape[:2])
    for back in range(1, RUN):
        apart = np.abs(smooth[:, back:] - smooth[:, :-back]) >= np.float32(TOLERANCE_MS / 1000)
        differ += sliding_window_view(apart, RUN - back, axis=1).sum(axis=2)
    change = np.log((runs.sum(axis=2) / sliding_window_view(x, RUN, axis=1).sum(axis=2) - 1) ** 2 + np.float32(1e-6))
    return [_mean(differ / (RUN * (RUN - 1) // 2)), _mean(change)]


class IntervalVectors:
    """Vectors of the statistics of windows, which are added to the pooled hidden states."""

    def __init__(self, weights: Weights, num_codes: int, width: int) -> None:
        # some models have the mask code too, which no recording has
        self.seconds = weights.take("seconds", max(num_codes, *weights.shape_of("seconds")))
        self.into = weights.take("into.weight", width, len(SCALES)), weights.take("into.bias", width)
        self.out = weights.take("out.weight", width, width)

    def __call__(self, codes: NDArray[np.integer]) -> Floats:
        """Return vectors `[B, D]` of the first facet's `codes` `[B, T]`; unknown intervals repeat the neighbour."""
        seconds = self.seconds[codes]
        is_known, index = seconds > 0, np.arange(codes.shape[1])
        before = np.maximum.accumulate(np.where(is_known, index, -1), axis=1)
        first = np.where(is_known, index, len(index) - 1).min(axis=1, keepdims=True)
        seconds = np.take_along_axis(seconds, np.where(before < 0, first, before), axis=1)
        weight, bias = self.into
        x = interval_statistics(seconds) @ weight.T + bias
        return np.asarray(x / (1 + np.exp(-x)) @ self.out.T)
