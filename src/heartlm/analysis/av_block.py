"""AV block of second and third degree, and junctional rhythm, by P waves with and without a QRS complex.

    P waves of beats and others ─► on time, without a QRS complex ─► second degree: the PR interval grows, or not
                               ├─► slow regular beats, PR at random ─► third degree
                               └─► regular narrow beats without one ─► junctional

Definitions are those of the ACC/AHA/HRS guideline (Kusumoto 2019, doi 10.1016/j.jacc.2018.10.044, table 3). A blocked
premature atrial beat is early and resets the sinus node, so that the P waves before and after it are unevenly spaced.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from heartlm.analysis.events import mean_rate_bpm
from heartlm.analysis.findings import Event
from heartlm.delineation.delineate import OFFSET, ONSET, PEAK, Delineation, P, T
from heartlm.delineation.intervals import Intervals
from heartlm.ecg.spans import runs

Flags = NDArray[np.bool_]
Places = NDArray[np.int64]

BLOCKS = ("AV block III", "AV block II", "Wenckebach")
BY_P_WAVES = (*BLOCKS, "junctional")
"""Kinds of events that this module finds."""

LEAD_SHARE, TOGETHER_S = 0.5, 0.06
"""Fraction of the leads that must show a P wave without a beat, within this time of each other."""
AFTER_BEAT_S, SHORTEST_PP_S, UNEVEN = 0.2, 0.3, 0.15
"""A blocked P wave comes this long after a beat; the PP intervals around it are at least this long, and differ by at
most this fraction of their mean: those around a blocked premature atrial beat differ by more."""
FEWEST_BLOCKED, FURTHEST_S = 2, 30.0
"""Least number of blocked P waves of an episode, and furthest apart."""
P_HALF_S, QRS_HALF_S, USUAL_QT_S, LATE_T_S, OF_BEAT = 0.06, 0.12, 0.45, 0.04, 0.3
"""Before and after a blocked P wave, without these times around it and the beats, no signal is as high as this fraction
of the beat before: a ventricular beat that was not detected would be. The end of T where none is seen, and how much
later than usual it may be."""
LEAST_LIKENESS, LEAST_SIGNAL, MOST_WAVES, P_SHIFT_S = 0.93, 0.7, 100, 0.03
"""Blocked P waves are at least this like the conducted ones, by the median of at most this many, of which at most the
rest of the signal counts as noise: it is 0.98 or more in 144 simulated blocks, and 0.90 for the U waves of a slow
normal rhythm in PTB-XL (15477)."""
GROWTH_S = 0.03
"""The last PR before a blocked P wave is longer than the one after it by this time in Wenckebach's block."""
WINDOW = 6
"""Number of intervals, or of beats, that are judged together for block of third degree and junctional rhythm."""
REGULAR, SLOWEST_CONDUCTED_S = 0.08, 1.0
"""Variation of the intervals of an escape rhythm (standard deviation by mean), and least mean in block of third degree,
whose escape rhythms are slower than 60/min."""
P_SHARE, RANDOM_PR_S, LONGEST_PR_S = 0.35, 0.07, 0.75
"""In block of third degree there are at least this many P waves a beat, and the quartiles of their times before the
next beat are this far apart; a longer time belongs to no beat."""
JUNCTIONAL_S = (1.0, 1.75)
"""Mean intervals of a junctional escape rhythm: 35 to 60/min. In faster rhythms P waves may lie in T waves: twelve
leads without any were no junctional rhythm in eight recordings of PTB-XL (folds 1 to 8) and one of LUDB."""
OTHERS_WITH_P, FEWEST_OTHERS, MANY_LEADS = 0.7, 5, 8
"""Beats without a P wave are junctional if this fraction of the recording's other normal beats, this many or more, has
one; or if this many leads show none in any beat."""


def atrial_events(waves: Intervals, normal: Flags, ventricular: Flags, paced: Flags, clear: Flags) -> list[Event]:
    """Return AV blocks of second and third degree and junctional rhythms; no two overlap.

    Args:
        waves: waves of the beats of a recording.
        normal, ventricular, paced: which beats are so, bool `[num_beats]`.
        clear: whether nothing is lost or left out between each beat and the next, bool `[num_beats - 1]`.
    """
    delineation = waves.delineation
    beats, rate_hz = delineation.beats, delineation.recording.rate_hz
    if len(beats) <= WINDOW:
        return []
    lone, sure = lone_p(delineation)
    train = np.union1d(_middles(delineation.all_leads[delineation.has_p, P]), lone)
    third = _dissociated(beats, train, rate_hz, clear, paced)
    in_block = np.zeros(len(beats), np.bool_)
    for first, stop in third:
        in_block[first:stop] = True
    found = list[Event]()
    for first, stop in third:
        of_beats = delineation.all_confidence[first:stop, P][delineation.has_p[first:stop]]
        of_lone = sure[(lone >= beats[first] - LONGEST_PR_S * rate_hz) & (lone < beats[stop - 1])]
        certainty = float(np.concatenate([of_beats, of_lone]).mean())
        found.append(_event("AV block III", beats, rate_hz, first, stop, certainty))
    for kind, first, stop, certainty in _blocked(waves, lone, sure, train, clear, ventricular | paced):
        if not in_block[first:stop].any():
            found.append(_event(kind, beats, rate_hz, first, stop, certainty))
    for event in found:
        in_block |= (beats >= event.start) & (beats < event.stop)
    junctional, contrast = _junctional(delineation, clear, normal & ~paced & ~in_block, normal & ~in_block)
    return found + [_event("junctional", beats, rate_hz, first, stop, contrast) for first, stop in junctional]


def _middles(waves: Places) -> Places:
    """Return the middle of each wave, onset, peak, offset `[num_waves, 3]`: of two humps either may have the peak."""
    is_whole = (waves >= 0).all(axis=1)
    return np.where(is_whole, (waves[:, ONSET] + waves[:, OFFSET]) // 2, waves[:, PEAK])


def lone_p(delineation: Delineation) -> tuple[Places, NDArray[np.float64]]:
    """Return peaks, ascending, and mean confidence of P waves that belong to no beat and that enough leads show."""
    if not delineation.other_p:
        return np.empty(0, np.int64), np.empty(0)
    near, least = TOGETHER_S * delineation.recording.rate_hz, LEAD_SHARE * len(delineation.leads)
    peak = np.concatenate([each.peak for each in delineation.other_p])
    lead = np.repeat(np.arange(len(delineation.leads)), [len(each.peak) for each in delineation.other_p])
    confidence = np.concatenate([each.confidence for each in delineation.other_p])
    order = np.argsort(peak, kind="stable")
    peak, lead, confidence = peak[order], lead[order], confidence[order]
    groups = np.split(np.arange(len(peak)), np.flatnonzero(np.diff(peak) > near) + 1)
    chosen = [group for group in groups if len(group) and len(np.unique(lead[group])) >= least]
    places = np.array([int(np.median(peak[group])) for group in chosen], np.int64)
    return places, np.array([float(confidence[group].mean()) for group in chosen])


def _blocked(
    waves: Intervals, lone: Places, sure: NDArray[np.float64], train: Places, clear: Flags, unfit: Flags
) -> Iterator[tuple[str, int, int, float]]:
    """Yield kind, first beat, the one after the last, and confidence of each episode of second-degree block."""
    delineation = waves.delineation
    beats, rate_hz = delineation.beats, delineation.recording.rate_hz
    at, before = np.searchsorted(train, lone), np.searchsorted(beats, lone) - 1
    inside = (at > 0) & (at + 1 < len(train)) & (before >= 0) & (before + 1 < len(beats))
    lone, sure, at, before = lone[inside], sure[inside], at[inside], before[inside]
    since, until = lone - train[at - 1], train[at + 1] - lone
    on_time = (np.minimum(since, until) >= SHORTEST_PP_S * rate_hz) & (
        np.abs(since - until) <= UNEVEN * (since + until) / 2
    )
    on_time &= (lone - beats[before] >= AFTER_BEAT_S * rate_hz) & clear[before] & ~unfit[before] & ~unfit[before + 1]
    lone, sure, before = lone[on_time], sure[on_time], before[on_time]
    # Of all beats: the T wave of this one may be a ventricular beat.
    t_end = delineation.all_leads[:, T, OFFSET]
    t_s = float(np.median((t_end - beats)[t_end >= 0])) / rate_hz if (t_end >= 0).any() else USUAL_QT_S
    pairs = zip(lone.tolist(), before.tolist(), strict=True)
    alone = np.array([_is_alone(delineation, *pair, t_s + LATE_T_S) for pair in pairs], np.bool_)
    lone, sure, before = lone[alone], sure[alone], before[alone]
    growth = waves.intervals["pr_ms"][before] - waves.intervals["pr_ms"][before + 1]
    for group in np.split(np.arange(len(lone)), np.flatnonzero(np.diff(lone) > FURTHEST_S * rate_hz) + 1):
        if len(group) >= FEWEST_BLOCKED and _likeness(delineation, lone[group], before[group]) >= LEAST_LIKENESS:
            known = growth[group][~np.isnan(growth[group])]
            is_growing = len(known) > 0 and float(np.median(known)) >= 1000 * GROWTH_S
            kind = "Wenckebach" if is_growing else "AV block II"
            yield kind, int(before[group[0]]), int(before[group[-1]]) + 2, float(sure[group].mean())


def _likeness(delineation: Delineation, lone: Places, before: Places) -> float:
    """Return how alike blocked P waves and those of the beats before them are over all leads, 1 for the same.

    It is 2ab / (a² + b²) of the median waves: correlation, reduced by a difference in height. What noise adds to the
    squares is estimated by the waves' differences and taken off, as there may be two blocked waves and many conducted.

    Raises:
        HeartlmError: the signal cannot be read.
    """
    recording, rate_hz = delineation.recording, delineation.recording.rate_hz
    near, shift = round(P_HALF_S * rate_hz), round(P_SHIFT_S * rate_hz)

    def around(places: Places, reach: int) -> NDArray[np.float64]:
        places = places[(places >= reach) & (places + reach < recording.num_samples)]
        chosen = places[np.unique(np.linspace(0, len(places) - 1, min(len(places), MOST_WAVES)).astype(np.int64))]
        waves = [recording.signal(at - reach, at + reach + 1, delineation.leads) for at in chosen.tolist()]
        empty = np.zeros((1, len(delineation.leads), 2 * reach + 1))
        return np.nan_to_num(np.stack(waves)).astype(np.float64) if waves else empty

    def median_and_noise(waves: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        waves = waves - np.linspace(waves[..., 0], waves[..., -1], waves.shape[-1], axis=-1)
        num = len(waves)
        noise = float(waves.var(axis=0, ddof=1).sum()) / num if num > 1 else 0.0
        return np.asarray(np.median(waves, axis=0)), noise

    blocked, noise = median_and_noise(around(lone, near))
    conducted = around(delineation.all_leads[before, P, PEAK], near + shift)
    likeness = []
    for first in range(2 * shift + 1):  # the peaks may be found at different places of a flat wave
        other, other_noise = median_and_noise(conducted[..., first : first + 2 * near + 1])
        size = float((blocked**2).sum() + (other**2).sum())
        of_waves = max(size - noise - other_noise, LEAST_SIGNAL * size, 1e-12)
        likeness.append(float(2 * (blocked * other).sum() / of_waves))
    return min(max(likeness), 1.0)


def _is_alone(delineation: Delineation, place: int, before: int, t_end_s: float) -> bool:
    """Return whether nothing as high as a beat is around a P wave, from the T wave `before` to the next P wave or beat.

    `t_end_s` is the time from a beat to the end of its T wave.

    Raises:
        HeartlmError: the signal cannot be read.
    """
    recording, rate_hz = delineation.recording, delineation.recording.rate_hz
    start, stop = delineation.beats[[before, before + 1]].tolist()
    signal = np.nan_to_num(recording.signal(start, stop, delineation.leads))
    near, edge = round(P_HALF_S * rate_hz), round(QRS_HALF_S * rate_hz)
    after_t, next_p = max(edge, round(t_end_s * rate_hz)), delineation.all_leads[before + 1, P, ONSET]
    next_p = next_p - start if next_p >= 0 else stop - start - edge
    height = np.maximum(np.ptp(signal[:, :edge], axis=1), 1e-6)
    for first, last in ((after_t, place - start - near), (place - start + near, next_p)):
        if last - first >= 2 and np.median(np.ptp(signal[:, first:last], axis=1) / height) > OF_BEAT:
            return False
    return True


def _dissociated(beats: Places, train: Places, rate_hz: float, clear: Flags, paced: Flags) -> list[tuple[int, int]]:
    """Return first and stop of each slow, regular rhythm of beats that the P waves are independent of."""
    rr_s = sliding_window_view(np.diff(beats) / rate_hz, WINDOW)  # [num_windows, WINDOW]
    last = np.searchsorted(train, beats) - 1
    pr_s = np.where(last >= 0, (beats - train[np.maximum(last, 0)]) / rate_hz, np.inf) if len(train) else beats + np.inf
    pr_s = np.where(pr_s < LONGEST_PR_S, pr_s, np.nan)
    of_window = sliding_window_view(pr_s, WINDOW + 1)
    num_p = np.searchsorted(train, beats[WINDOW:]) - np.searchsorted(train, beats[:-WINDOW] - LONGEST_PR_S * rate_hz)
    known = (~np.isnan(of_window)).sum(axis=1)
    chosen = (
        (rr_s.std(axis=1) <= REGULAR * rr_s.mean(axis=1))
        & (rr_s.mean(axis=1) >= SLOWEST_CONDUCTED_S)
        & sliding_window_view(clear, WINDOW).all(axis=1)
        & ~sliding_window_view(paced, WINDOW + 1).any(axis=1)
        & (num_p >= max(3.0, P_SHARE * (WINDOW + 1)))
        & (known >= 3)
    )
    lower, upper = np.nanpercentile(of_window[chosen], [25, 75], axis=1) if chosen.any() else (np.empty(0),) * 2
    chosen[chosen] = upper - lower >= RANDOM_PR_S
    return _stretches(chosen, WINDOW, beats / rate_hz, SLOWEST_CONDUCTED_S, np.inf)


def _junctional(
    delineation: Delineation, clear: Flags, fit: Flags, others: Flags
) -> tuple[list[tuple[int, int]], float]:
    """Return first and stop of regular rhythms of `fit` beats without P waves, and the share of `others` with one."""
    rr_s = sliding_window_view(np.diff(delineation.beats) / delineation.recording.rate_hz, WINDOW - 1)
    in_leads = (delineation.waves[:, :, P, PEAK] >= 0).mean(axis=1)
    fit = fit & ~delineation.has_p & (in_leads <= 1 / 3)
    low, high = JUNCTIONAL_S
    mean = rr_s.mean(axis=1)
    chosen = (rr_s.std(axis=1) <= REGULAR * mean) & (low <= mean) & (mean <= high)
    chosen &= sliding_window_view(clear, WINDOW - 1).all(axis=1) & sliding_window_view(fit, WINDOW).all(axis=1)
    found = _stretches(chosen, WINDOW - 1, delineation.beats / delineation.recording.rate_hz, low, high)
    if not found:
        return [], 0.5
    rest = others.copy()
    for first, stop in found:
        rest[first:stop] = False
    with_p = delineation.has_p[rest]
    contrasts = len(with_p) >= FEWEST_OTHERS and with_p.mean() >= OTHERS_WITH_P
    is_whole = len(delineation.leads) >= MANY_LEADS and not with_p.any()
    return found if contrasts or is_whole else [], float(with_p.mean()) if len(with_p) else 0.5


def _stretches(
    windows: Flags, width: int, beats_s: NDArray[np.float64], shortest_s: float, longest_s: float
) -> list[tuple[int, int]]:
    """Return first beat and the one after the last of the chosen windows of `width` intervals, joined where they meet.

    Their mean interval is in a range: that of each window is, but that of the whole may not be.
    """
    found = []
    for first, stop in runs(np.convolve(windows, np.ones(width, np.int64)) > 0).tolist():
        mean_s = (beats_s[stop] - beats_s[first]) / (stop - first)
        if shortest_s <= mean_s <= longest_s:
            found.append((first, stop + 1))
    return found


def _event(kind: str, beats: Places, rate_hz: float, first: int, stop: int, confidence: float) -> Event:
    """Return the event from the beat `first` to the one before `stop`."""
    rate_bpm = mean_rate_bpm(beats[first:stop], rate_hz)
    return Event(kind, int(beats[first]), int(beats[stop - 1]) + 1, confidence, stop - first, rate_bpm)
