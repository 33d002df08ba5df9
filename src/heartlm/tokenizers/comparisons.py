"""How a beat compares with the others of its recording: its timing, its QRS complex, its T wave and its P wave.

    positions ─► RR intervals over the mean around, and how irregular the rhythm is
    waveforms ─► QRS, T and P apart ─► against the medians of the beats with the usual QRS complex

Codes of the waveform as a whole follow the QRS complex, in which nearly all of its energy lies; what tells a
supraventricular beat is the P wave before it. Where an ectopic rhythm dominates, its P wave is the usual one, so P
waves are compared with those of *slow* beats: of usual QRS complex, after an interval as long as the longest quarter.

Offline, waveforms are compared within the recording, or about an hour of it, and intervals with the `LONG` on either
side. The causal form looks back alone. Values become levels; code 0 is "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from heartlm.storage.reading import read_json
from heartlm.tokenizers.rr import mean_around, trailing_median
from heartlm.tokenizers.waveform import DOMINANT_BEATS, DOMINANT_EVERY, BeatBlock, stretch_medians

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Number = TypeVar("Number", np.float32, np.float64)

LONG = 1000
"""Intervals to either side in the long mean."""

LOOK_BACK, EVERY = 2 * DOMINANT_BEATS, DOMINANT_EVERY
"""Beats that the causal form looks back at, as blocks of waveforms hold them, and after how many their medians are
computed again."""

QRS_S, T_S, P_S, ACTIVE_S = (-0.06, 0.10), (0.12, 0.36), (-0.25, -0.05), (-0.12, 0.17)
"""Where the parts of a beat lie, from its R peak; the width of the QRS complex is looked for in the last."""

USUAL, FEWEST = 0.9, 20
"""Correlation from which on a QRS complex is the usual one; with fewer such beats all count as usual."""

SHORTEST_S, LONGEST_S = 0.2, 4.0
"""RR intervals beyond these are taken for these."""

IRREGULAR = 0.08
"""Change of the logarithm of the RR interval from which on it counts as irregular."""

STEADY, SUDDEN = 9, 0.18
"""The rate changes suddenly where the medians of the logarithms of this number of RR intervals before and after differ
by more than the second number; a change that takes half a minute, as of exercise, is none."""

CHANGE_KNOWN_AFTER = STEADY - 1 + STEADY // 2
"""Beats after a sudden change at which the causal form knows of it."""

NEAR, AROUND = 5, 15
"""Beats on either side in means nearby, and in the measures of irregularity; the causal form takes them all before."""


@dataclass(frozen=True)
class LinearScale:
    """Levels of equal width between `low` and `high`; values outside map to the end levels, NaN to code 0."""

    low: float
    high: float
    num_levels: int = 31

    def encode(self, value: Floats) -> NDArray[np.uint16]:
        """Return the code of each value, 1 … `num_levels`, or 0 for NaN."""
        level = np.floor((value - self.low) / (self.high - self.low) * self.num_levels)
        with np.errstate(invalid="ignore"):
            code: NDArray[np.uint16] = (np.clip(level, 0, self.num_levels - 1) + 1).astype(np.uint16)
        code[np.isnan(value)] = 0
        return code

    def decode(self, code: NDArray[np.integer]) -> Floats:
        """Return the centre of each code's level, float32, or NaN for code 0."""
        centre = self.low + (np.asarray(code, np.float64) - 0.5) / self.num_levels * (self.high - self.low)
        value: Floats = np.where(np.asarray(code) == 0, np.nan, centre).astype(np.float32)
        return value

    @property
    def size(self) -> int:
        """Number of codes."""
        return self.num_levels + 1


SCALES = {
    name: LinearScale(*ends)
    for name, ends in read_json(Path(__file__).with_suffix(".json"), dict[str, tuple[float, float]]).items()
}
"""Names and levels. Ratios are logarithms; correlations are those with the median of usual beats (of slow ones, for the
P wave); differences are root mean squares over the median's size; the consistency is the median P correlation of slow
beats, the same for all beats compared with them."""

OFFLINE = tuple(SCALES)
CAUSAL = tuple(name for name in SCALES if not name.startswith("next_"))
ALONE = ("qrs_width",)
"""Names of what follows from the beat alone."""


def rhythm_values(rr_s: Doubles, causal: bool) -> dict[str, Doubles]:
    """Compute the comparisons that depend only on the intervals.

    Args:
        rr_s: the interval before each beat of a recording, NaN where unknown, `[num_beats]`.
        causal: whether to use only the past.

    Returns:
        For each of the first names of `SCALES` the values at each beat, NaN where unknown.
    """
    log_rr = np.log(np.clip(rr_s, SHORTEST_S, LONGEST_S))
    kept = np.exp(log_rr)
    before, after = (2 * AROUND, 0) if causal else (AROUND, AROUND)
    near = (2 * NEAR, 0) if causal else (NEAR, NEAR)
    long = (LONG, 0) if causal else (LONG, LONG)
    change = np.abs(np.diff(log_rr, prepend=np.nan))
    ahead = np.append(change, np.full(after, np.nan))  # a median around a beat is the trailing one `after` beats later
    irregular = np.where(np.isnan(change), np.nan, change > IRREGULAR)
    mean = np.log(mean_around(kept, *long))
    last, following = _sudden_changes(log_rr, causal)
    values = {
        "rr_over_mean": log_rr - mean,
        "next_rr_over_mean": np.append(log_rr[1:], np.nan) - mean,
        "rr_over_slow": log_rr - _slow(log_rr, causal),
        "rr_over_near": log_rr - np.log(mean_around(kept, *near)),
        "irregularity": trailing_median(ahead, before + after + 1)[after:],
        "irregular_share": mean_around(irregular, before, after),
        "irregular_share_long": mean_around(
            irregular, *((LOOK_BACK, 0) if causal else (LOOK_BACK // 2, LOOK_BACK // 2))
        ),
        "last_sudden_change": last,
        "next_sudden_change": following,
    }
    return {name: value for name, value in values.items() if name in CAUSAL or not causal}


def _slow(log_rr: Doubles, causal: bool) -> Doubles:
    """Return the ninth decile of the log intervals around each beat, as a measure of a long interval."""
    slow = np.full(len(log_rr), np.nan)
    for begin in range(0, len(log_rr), EVERY):
        stop = begin + 1 if causal else begin + EVERY + LONG
        slow[begin : begin + EVERY] = long_interval(log_rr[max(begin - LONG, 0) : stop])
    return slow


def long_interval(log_rr: Doubles) -> float:
    """Return the ninth decile of the known values, NaN without any; `np.nanquantile` takes four times as long."""
    known = log_rr[~np.isnan(log_rr)]
    if not len(known):
        return float("nan")
    rank = 0.9 * (len(known) - 1)
    low, high = int(rank), min(int(rank) + 1, len(known) - 1)
    parted = np.partition(known, (low, high))
    return float(parted[low] + (rank - low) * (parted[high] - parted[low]))


def _sudden_changes(log_rr: Doubles, causal: bool) -> tuple[Doubles, Doubles]:
    """Return the last sudden rate change up to each beat and the next one after it, 0 if there is none.

    A sustained tachycardia is identified by its onset and end, which may be outside the model's context. The causal
    form includes a change once the intervals after it, and those that could show a larger change, have occurred.
    """
    last, following = np.zeros(len(log_rr)), np.zeros(len(log_rr))
    begin, change = sudden_changes(log_rr)
    if len(begin) and len(log_rr) > 2 * STEADY:
        known = begin + (CHANGE_KNOWN_AFTER if causal else 0)
        num_known = np.searchsorted(known, np.arange(len(log_rr)), side="right")  # number of changes known at each beat
        last = np.where(num_known > 0, change[num_known - 1], 0.0)
        following = np.where(num_known < len(begin), change[np.minimum(num_known, len(begin) - 1)], 0.0)
    return last, following


def sudden_changes(log_rr: Doubles) -> tuple[NDArray[np.int64], Doubles]:
    """Return the beats at which the rate changes suddenly, and the size of each change, `[num_changes]`.

    Args:
        log_rr: logarithm of the interval before each beat, NaN where unknown, `[num_beats]`.
    """
    if len(log_rr) < STEADY + 2 or np.isnan(log_rr).all():
        return np.empty(0, np.int64), np.empty(0)
    median, near = trailing_median(log_rr, STEADY), STEADY // 2
    # The change at beat i: the median of the intervals i to i + STEADY − 1, minus that of the STEADY intervals before.
    change = np.zeros(len(log_rr))
    change[2 : 1 - STEADY] = np.nan_to_num(median[STEADY + 1 :] - median[1:-STEADY])
    size = np.abs(change)
    around = np.lib.stride_tricks.sliding_window_view(np.pad(size, near), 2 * near + 1)
    first_of_greatest = around.argmax(axis=1) == near  # `argmax` gives the first of equals, so a plateau counts once
    begin = np.flatnonzero(first_of_greatest & (size > SUDDEN))
    return begin, change[begin]


def morphology_values(
    shape: Floats, rr_s: Doubles, times_s: Doubles, first_beat: int, causal: bool
) -> dict[str, Floats]:
    """Compare QRS complex, T wave and P wave with those of other beats.

    Args:
        shape: waveforms of consecutive beats, any linear unit, float32 `[num_beats, num_points]`.
        rr_s: the interval before each of them, NaN where unknown, `[num_beats]`.
        times_s: times of the points from the R peak in seconds, `[num_points]`.
        first_beat: first beat to compare; earlier beats only serve as reference. Offline it is 0.
        causal: compare each with the `LOOK_BACK` beats before it instead of with all; their medians are computed again
            every `EVERY` beats, counted from `first_beat`.

    Returns:
        For each of the other names of `SCALES` the values, `[num_beats - first_beat]`.
    """
    parts, stop = Parts.of(shape, times_s), len(shape)
    if not causal:
        values = parts.compared(parts.usual(slice(0, stop), rr_s))
        near = mean_around(values["p_correlation"].astype(np.float64), NEAR, NEAR)
        return values | {"p_correlation_near": near.astype(np.float32)}
    groups = []
    for begin in range(first_beat, stop, EVERY):
        usual = parts.usual(slice(max(begin + 1 - LOOK_BACK, 0), begin + 1), rr_s)
        values = parts[begin : begin + EVERY].compared(usual)
        earlier = correlation(parts.p[max(begin - 2 * NEAR, 0) : begin], usual.slow_p[None])
        correlations = np.concatenate([earlier, values["p_correlation"]]).astype(np.float64)
        near = mean_around(correlations, 2 * NEAR, 0)[len(earlier) :]
        groups.append(values | {"p_correlation_near": near.astype(np.float32)})
    return {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}


def block_values(block: BeatBlock, rr_s: Doubles, times_s: Doubles, causal: bool) -> dict[str, Floats]:
    """`morphology_values` of the beats of a block, compared with the others of it, or causally with those before.

    Args:
        block: consecutive beats of a recording.
        rr_s: the interval before each beat of the whole recording, NaN where unknown.
        times_s: where the points of a waveform lie, from the R peak.
        causal: see `morphology_values`.
    """
    own = block.beats
    shape, first = (block.around, block.first) if causal else (block.shape, own.start)
    return morphology_values(shape, rr_s[first : own.stop], times_s, own.start - first, causal)


def codes_of(values: dict[str, NDArray[np.floating]], names: tuple[str, ...]) -> NDArray[np.uint16]:
    """Levels of the values called `names`; uint16 `[num_beats, len(names)]`."""
    return np.stack([SCALES[name].encode(values[name]) for name in names], axis=1)


def in_part(times_s: Doubles, part: tuple[float, float]) -> NDArray[np.bool_]:
    """Which of the points `times_s` from the R peak lie in a part of the beat."""
    return (times_s >= part[0] - 1e-9) & (times_s <= part[1] + 1e-9)  # rounding must not exclude an end


def correlation(first: NDArray[Number], second: NDArray[Number]) -> NDArray[Number]:
    """Pearson correlation along rows, 0 where either is constant; `[n, width]`, `[n or 1, width]` → `[n]`."""
    first = first - first.mean(axis=1, keepdims=True)
    second = second - second.mean(axis=1, keepdims=True)
    power = np.sqrt(np.sum(first**2, axis=1) * np.sum(second**2, axis=1))
    constant = np.where(np.isnan(power), power, np.zeros_like(power))
    r: NDArray[Number] = np.divide(np.sum(first * second, axis=1), power, out=constant, where=power > 1e-9)
    return r


def row_medians(rows: Floats) -> Floats:
    """Median of every place over at least one row: that of NumPy, in a fraction of its time."""
    medians: Floats = stretch_medians(rows, np.array([0]), np.array([len(rows)]))[0]
    return medians


@dataclass(frozen=True)
class UsualBeat:
    """Medians over beats that others are compared with: parts of the waveform `[points]`, and two numbers."""

    qrs: Floats
    slow_qrs: Floats
    t: Floats
    p: Floats
    slow_p: Floats
    log_width: np.float32
    consistency: np.float32


@dataclass(frozen=True)
class Parts:
    """Parts of beats, each `[num_beats, points of the part]`; P waves without the line between their ends."""

    qrs: Floats
    t: Floats
    p: Floats
    log_width: Floats
    size: Floats

    @classmethod
    def of(cls, shape: Floats, times_s: Doubles) -> Parts:
        """Take waveforms `[num_beats, num_points]` apart; the points lie `times_s` from the R peak."""
        qrs, t, p, active = (shape[:, in_part(times_s, part)] for part in (QRS_S, T_S, P_S, ACTIVE_S))
        fraction = np.linspace(0, 1, p.shape[1], dtype=np.float32)
        p = p - (p[:, :1] + (p[:, -1:] - p[:, :1]) * fraction)
        away = np.abs(active - np.median(shape, axis=1, keepdims=True))
        step_s = float(times_s[1] - times_s[0])
        width = np.sum(away > 0.35 * away.max(axis=1, keepdims=True), axis=1, dtype=np.float32) * np.float32(step_s)
        return cls(qrs, t, p, np.log(width + 0.01), np.ptp(qrs, axis=1))

    def usual(self, others: slice, rr_s: Doubles) -> UsualBeat:
        """What is usual among `others`, whose intervals are `rr_s[others]`."""
        qrs, similar = self.qrs[others], np.ones(others.stop - others.start, bool)
        for _ in range(2):  # the median of all, then of those that are like it
            median = row_medians(qrs[similar])
            near = correlation(qrs, median[None]) > USUAL
            similar = near if near.sum() >= FEWEST else np.ones_like(near)
        interval_s = np.nan_to_num(rr_s[others])
        slow = similar & (interval_s >= np.quantile(interval_s[similar], 0.75))
        slow_p = row_medians(self.p[others][slow])
        return UsualBeat(
            qrs=median,
            slow_qrs=row_medians(qrs[interval_s >= np.quantile(interval_s, 0.75)]),
            t=row_medians(self.t[others][similar]),
            p=row_medians(self.p[others][similar]),
            slow_p=slow_p,
            log_width=np.median(self.log_width[others]),
            consistency=np.float32(np.median(correlation(self.p[others][slow], slow_p[None]))),
        )

    def __getitem__(self, beats: slice) -> Parts:
        return Parts(*(part[beats] for part in vars(self).values()))

    def compared(self, usual: UsualBeat) -> dict[str, Floats]:
        """Compare these beats with what is usual.

        Returns:
            Values of all names but `p_correlation_near`, which other beats have a part in.
        """
        size = np.ptp(usual.qrs) + np.float32(1e-6)
        difference = np.sqrt(np.mean((self.p - usual.slow_p) ** 2, axis=1))
        difference /= np.ptp(usual.slow_p) + np.float32(0.02)
        return {
            "qrs_correlation": correlation(self.qrs, usual.qrs[None]),
            "qrs_correlation_slow": correlation(self.qrs, usual.slow_qrs[None]),
            "qrs_difference": np.sqrt(np.mean((self.qrs - usual.qrs) ** 2, axis=1)) / size,
            "qrs_width": self.log_width,
            "qrs_width_over_usual": self.log_width - usual.log_width,
            "qrs_size_over_usual": np.log(self.size / size + np.float32(1e-3)),
            "t_correlation": correlation(self.t, usual.t[None]),
            "p_correlation": correlation(self.p, usual.slow_p[None]),
            "p_difference": np.log(difference + np.float32(1e-3)),
            "p_consistency": np.zeros(len(self.p), np.float32) + usual.consistency,
            "p_correlation_usual": correlation(self.p, usual.p[None]),
        }
