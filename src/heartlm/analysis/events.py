"""Rules that derive the events of `KINDS` from beats and from seconds.

The rules use only positions, classes and probabilities, so files and streams give the same events.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import KINDS, Event
from heartlm.analysis.limits import Limits
from heartlm.ecg.definitions import PATTERNS
from heartlm.ecg.spans import runs

Positions = NDArray[np.int64]
Floats = NDArray[np.float64]

ABSENCES = ("pause", "asystole", "bradycardia")
"""Kinds of events that are an absence of beats, which a beat in another lead refutes."""
RUNS = ("VT", "IVR", "SVT", "couplet")
"""Kinds of events that a single beat of another class refutes: they are as sure as their least sure beat."""
DISPUTED = 0.25
"""Fraction of disputed intervals from which on such an event is disputed: one of the four intervals of bradycardia."""
RATE_BREAK = 16
"""Two slow or fast stretches with fewer beats in between are one event, if its mean rate is beyond the limit too."""
ROUNDING_S = 1e-7
"""Sums of intervals in seconds that differ by less are equal."""
PATTERN_REPEATS = 3
"""Number of ventricular beats of a pattern such as bigeminy."""


USUAL_LIMITS = Limits()


def beat_events(
    sample: Positions,
    symbol: NDArray[np.str_],
    probability: NDArray[np.float32],
    clear: NDArray[np.bool_],
    rate_hz: float,
    disputed: NDArray[np.bool_] | None = None,
    limits: Limits = USUAL_LIMITS,
) -> list[Event]:
    """Return runs, couplets, patterns, pauses, asystole, slow and fast rates.

    Args:
        sample: position of each beat, int64 `[num_beats]`, ascending.
        symbol: AAMI class of each beat, `<U1` `[num_beats]`.
        probability: probability of that class, float32 `[num_beats]`.
        clear: whether the interval from each beat to the next is readable, bool `[num_beats - 1]`.
        rate_hz: sampling rate in Hz.
        disputed: whether the leads disagree on the interval from each beat to the next, bool `[num_beats - 1]`; None
            for no disagreement. Pauses, asystole and bradycardia with such intervals are disputed.
        limits: limits of the rules.
    """
    if len(sample) < 2:
        return []
    rr_s = np.diff(sample) / rate_hz

    def event(kind: str, first: int, stop: int) -> Event:
        """Return an event of the beats `first` to `stop`, exclusive."""
        rate = mean_rate_bpm(sample[first:stop], rate_hz)
        of_beats = probability[first:stop]
        sure = float(of_beats.min() if kind in RUNS else of_beats.mean())
        is_disputed = disputed is not None and kind in ABSENCES and disputed[first : stop - 1].mean() >= DISPUTED
        return Event(
            *(kind, int(sample[first]), int(sample[stop - 1]) + 1, sure / (1 + is_disputed), stop - first, rate),
            is_disputed,
            rate_hz=rate_hz,
        )

    events = []
    for name, kind in (("V", "VT"), ("S", "SVT")):
        for first, stop in _unbroken(symbol == name, clear):
            if stop - first >= limits.run_beats:
                found = event(kind, first, stop)
                if found.rate_bpm >= limits.vt_bpm:
                    events.append(found)
                elif name == "V":
                    events.append(event("IVR", first, stop))
            elif name == "V" and stop - first == 2:
                events.append(event("couplet", first, stop))
    for kind, period in PATTERNS.items():
        events += [event(kind, first, stop) for first, stop in _patterns(symbol, clear, period)]
    for beat in np.flatnonzero(clear & (rr_s >= limits.pause_s)).tolist():
        kind = "asystole" if rr_s[beat] >= limits.asystole_s else "pause"
        events.append(event(kind, beat, beat + 2))
    slow = _beyond(rr_s, clear, 60 / limits.bradycardia_bpm, limits.bradycardia_beats - 1)
    events += [event("bradycardia", first, stop + 1) for first, stop in slow]
    # of the negative intervals, those that are too short are too long
    fast = _beyond(-rr_s, clear, -60 / limits.tachycardia_bpm, limits.tachycardia_beats - 1)
    events += [event("tachycardia", first, stop + 1) for first, stop in fast]
    return events


def _unbroken(marked: NDArray[np.bool_], clear: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield runs of marked beats, split at unreadable intervals."""
    joined = marked[1:] & marked[:-1] & clear
    first, stop = marked & ~np.append(False, joined), marked & ~np.append(joined, False)
    yield from zip(np.flatnonzero(first).tolist(), (np.flatnonzero(stop) + 1).tolist(), strict=True)


def _patterns(symbol: NDArray[np.str_], clear: NDArray[np.bool_], period: int) -> Iterator[tuple[int, int]]:
    """Yield stretches in which one beat per `period` is V, with at least `PATTERN_REPEATS` V beats."""
    ventricular = np.flatnonzero(symbol == "V")
    if len(ventricular) < PATTERN_REPEATS:
        return
    unread = np.append(0, np.cumsum(~clear))[ventricular]
    together = (np.diff(ventricular) == period) & (np.diff(unread) == 0)
    for first, stop in runs(together).tolist():
        if stop - first >= PATTERN_REPEATS - 1:
            yield int(ventricular[first]), int(ventricular[stop]) + 1


def _beyond(rr_s: Floats, clear: NDArray[np.bool_], limit_s: float, shortest: int) -> list[tuple[int, int]]:
    """Return stretches of intervals, first and stop, whose mean is above a limit, in the whole and over `shortest`."""
    if len(rr_s) < shortest:
        return []
    # A stretch is beyond the limit if its sum is above 0, by more than rounding: a rate at the limit is not beyond it.
    total = np.concatenate([[0], np.cumsum(rr_s - limit_s)])
    unread = np.concatenate([[0], np.cumsum(~clear)])
    beyond = (total[shortest:] - total[:-shortest] > ROUNDING_S) & (unread[shortest:] == unread[:-shortest])
    stretches = list[tuple[int, int]]()
    for first, last in runs(beyond).tolist():
        stop = last + shortest - 1
        if stretches:
            before, before_stop = stretches[-1]
            is_close = first - before_stop < RATE_BREAK and unread[max(first, before_stop)] == unread[before_stop]
            if is_close and total[stop] - total[before] > ROUNDING_S:
                stretches[-1] = before, stop
                continue
            first = max(first, before_stop)
        # Every part of `shortest` intervals is beyond the limit; with its ends, the whole may be not.
        while stop - first >= shortest and total[stop] - total[first] <= ROUNDING_S:
            if rr_s[first] < rr_s[stop - 1]:
                first += 1
            else:
                stop -= 1
        if stop - first >= shortest:
            stretches.append((first, stop))
    return stretches


def mean_rate_bpm(sample: Positions, rate_hz: float) -> float:
    """Return the mean rate of some beats per minute; NaN with fewer than two."""
    return 60 * rate_hz * (len(sample) - 1) / int(sample[-1] - sample[0]) if len(sample) > 1 else float("nan")


def seconds_of(events: list[Event], edges: Positions) -> NDArray[np.bool_]:
    """Return whether each second intersects one of `events`, for the edges of `second_events`, bool `[num_seconds]`."""
    inside = np.zeros(len(edges) - 1, np.bool_)
    for event in events:
        inside[np.searchsorted(edges[1:], event.start, side="right") : np.searchsorted(edges[:-1], event.stop)] = True
    return inside


def second_events(
    kind: str,
    score: Floats,
    called: NDArray[np.bool_],
    shortest_s: float,
    edges: Positions,
    rate_hz: float,
    readable: NDArray[np.bool_] | None = None,
) -> list[Event]:
    """Return events of positive seconds; gaps between them that are shorter than `shortest_s` are bridged.

    Args:
        kind: kind of the events.
        score: probability of the kind in each second, float64 `[num_seconds]`.
        called: whether each second is positive, bool `[num_seconds]`.
        shortest_s: minimum of the positive seconds of an event together.
        edges: first sample of each second, and the number of samples, int64 `[num_seconds + 1]`.
        rate_hz: sampling rate in Hz.
        readable: whether each second can be read, bool `[num_seconds]`; others are neither positive nor bridged.
    """
    readable = np.ones(len(called), np.bool_) if readable is None else readable
    called = called & readable
    bridged = called.copy()
    for first, stop in runs(~called).tolist():
        if first > 0 and stop < len(called) and stop - first < shortest_s:
            bridged[first:stop] = readable[first:stop].all()
    num_positive = np.append(0, np.cumsum(np.diff(edges) * called))  # in samples
    return [
        Event(kind, int(edges[first]), int(edges[stop]), float(score[first:stop].mean()))
        for first, stop in runs(bridged).tolist()
        # the ends of the seconds are whole samples
        if num_positive[stop] - num_positive[first] >= shortest_s * rate_hz - 1
    ]


def in_order(events: list[Event]) -> tuple[Event, ...]:
    """Return events sorted by start, then the most dangerous kind first."""
    rank = {kind: place for place, kind in enumerate(KINDS)}
    return tuple(sorted(events, key=lambda event: (event.start, rank[event.kind], event.stop)))
