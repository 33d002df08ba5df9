"""Rules that derive the events of `KINDS` from beats and from seconds.

The rules use only positions, classes and probabilities, so files and streams give the same events.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import KINDS, Event
from heartlm.ecg.spans import runs

Positions = NDArray[np.int64]
Floats = NDArray[np.float64]

PAUSE_S, ASYSTOLE_S = 2.0, 4.0
SLOW_BPM, SLOW_BEATS = 50.0, 5
FAST_BPM, FAST_BEATS = 100.0, 16
RATE_BREAK = 16
"""Two slow or two fast stretches with fewer beats in between are merged."""
RUN_BEATS, RUN_BPM = 3, 100.0
PATTERN_REPEATS = 3
"""Limits of the other rules; `KINDS` describes them."""


def beat_events(
    sample: Positions,
    symbol: NDArray[np.str_],
    probability: NDArray[np.float32],
    clear: NDArray[np.bool_],
    rate_hz: float,
) -> list[Event]:
    """Return runs, couplets, bigeminy, trigeminy, pauses, asystole, slow and fast rates.

    Args:
        sample: position of each beat, int64 `[num_beats]`, ascending.
        symbol: AAMI class of each beat, `<U1` `[num_beats]`.
        probability: probability of that class, float32 `[num_beats]`.
        clear: whether the interval from each beat to the next is readable, bool `[num_beats - 1]`.
        rate_hz: sampling rate in Hz.
    """
    if len(sample) < 2:
        return []
    rr_s = np.diff(sample) / rate_hz

    def event(kind: str, first: int, stop: int) -> Event:
        """Return an event of the beats `first` to `stop`, exclusive."""
        own = rr_s[first : stop - 1]
        rate = 60 / float(own.mean()) if len(own) else float("nan")
        sure = float(probability[first:stop].mean())
        return Event(kind, int(sample[first]), int(sample[stop - 1]) + 1, sure, stop - first, rate)

    events = []
    for name, kind in (("V", "VT"), ("S", "SVT")):
        for first, stop in _unbroken(symbol == name, clear):
            if stop - first >= RUN_BEATS:
                found = event(kind, first, stop)
                if found.rate_bpm >= RUN_BPM:
                    events.append(found)
                elif name == "V":
                    events.append(event("IVR", first, stop))
            elif name == "V" and stop - first == 2:
                events.append(event("couplet", first, stop))
    for kind, period in (("bigeminy", 2), ("trigeminy", 3)):
        events += [event(kind, first, stop) for first, stop in _patterns(symbol, clear, period)]
    for place in np.flatnonzero(clear & (rr_s >= PAUSE_S)).tolist():
        kind = "asystole" if rr_s[place] >= ASYSTOLE_S else "pause"
        events.append(event(kind, place, place + 2))
    for kind, beats in (("bradycardia", SLOW_BEATS), ("tachycardia", FAST_BEATS)):
        events += [event(kind, first, stop) for first, stop in _rates(rr_s, clear, kind, beats - 1)]
    return events


def _unbroken(marked: NDArray[np.bool_], clear: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield runs of marked beats, split at unreadable intervals."""
    for first, stop in runs(marked).tolist():
        cuts = [first, *(first + 1 + np.flatnonzero(~clear[first : stop - 1])).tolist(), stop]
        yield from pairwise(cuts)


def _patterns(symbol: NDArray[np.str_], clear: NDArray[np.bool_], period: int) -> Iterator[tuple[int, int]]:
    """Yield stretches in which one beat per `period` is V, with at least `PATTERN_REPEATS` V beats."""
    ventricular = np.flatnonzero(symbol == "V")
    if len(ventricular) < PATTERN_REPEATS:
        return
    together = (np.diff(ventricular) == period) & np.array(
        [clear[first:stop].all() for first, stop in pairwise(ventricular.tolist())]
    )
    for first, stop in runs(together).tolist():
        if stop - first >= PATTERN_REPEATS - 1:
            yield int(ventricular[first]), int(ventricular[stop]) + 1


def _rates(rr_s: Floats, clear: NDArray[np.bool_], kind: str, intervals: int) -> Iterator[tuple[int, int]]:
    """Yield stretches of beats with a mean rate over `intervals` intervals that is always too slow or too fast."""
    if len(rr_s) < intervals:
        return
    box = np.full(intervals, 1 / intervals)
    mean, whole = np.convolve(rr_s, box, "valid"), np.convolve(clear, np.ones(intervals), "valid") == intervals
    wrong = mean > 60 / SLOW_BPM if kind == "bradycardia" else mean < 60 / FAST_BPM
    wrong &= whole
    for first, stop in runs(~wrong).tolist():
        if first > 0 and stop < len(wrong) and stop - first < intervals + RATE_BREAK and clear[first:stop].all():
            wrong[first:stop] = True
    for first, stop in runs(wrong).tolist():
        yield first, stop + intervals


def second_events(
    kind: str, score: Floats, called: NDArray[np.bool_], shortest_s: float, rate_hz: float
) -> list[Event]:
    """Return events of consecutive positive seconds; gaps shorter than `shortest_s` are bridged.

    Args:
        kind: kind of the events.
        score: probability of the kind in each second, float64 `[num_seconds]`.
        called: whether each second is positive, bool `[num_seconds]`.
        shortest_s: minimum duration of an event in seconds.
        rate_hz: sampling rate in Hz.
    """
    bridged = called.copy()
    for first, stop in runs(~called).tolist():
        if first > 0 and stop < len(called) and stop - first < shortest_s:
            bridged[first:stop] = True
    return [
        Event(kind, round(first * rate_hz), round(stop * rate_hz), float(score[first:stop].mean()))
        for first, stop in runs(bridged).tolist()
        if stop - first >= shortest_s
    ]


def in_order(events: list[Event]) -> tuple[Event, ...]:
    """Return events sorted by start, then the most dangerous kind first."""
    rank = {kind: place for place, kind in enumerate(KINDS)}
    return tuple(sorted(events, key=lambda event: (event.start, rank[event.kind], event.stop)))
