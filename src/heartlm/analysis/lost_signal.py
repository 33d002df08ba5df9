"""Intervals between heartbeats in which the signal of all leads is lost, as in the gaps of EDF+D files.

Such an interval is no pause, and the beat after it is not premature, because beats in it are unknown. For the
classification of beats the lost part is cut out so far that the interval is as long as those around it.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import Event
from heartlm.analysis.signal_quality import LOST_S
from heartlm.ecg.spans import runs

Places = NDArray[np.int64]
Floats = NDArray[np.float32]

UNREADABLE_S = 1.0
"""Shortest stretch of invalid samples in seconds that is told as unreadable by itself."""
AROUND = 8
"""Number of intervals on each side whose median replaces a lost one."""


def lost_stretches(signals_mv: Floats, rate_hz: float) -> NDArray[np.int64]:
    """Return start and stop of the stretches in which no lead has a valid sample, int64 `[num_stretches, 2]`."""
    stretches = runs(np.asarray(np.isnan(signals_mv).all(axis=0)))
    return stretches[stretches[:, 1] - stretches[:, 0] >= LOST_S * rate_hz]


def present_fraction(
    stretches: NDArray[np.int64], num_samples: int, piece: int, num_pieces: int
) -> NDArray[np.float32]:
    """Return the fraction of each piece of `piece` samples that is not lost, 1 if all is; float32 `[num_pieces]`."""
    lost = np.zeros(num_samples, np.bool_)
    for start, stop in stretches.tolist():
        lost[start:stop] = True
    size = np.minimum(piece, num_samples - piece * np.arange(num_pieces)).clip(1)
    count = np.add.reduceat(lost, piece * np.arange(num_pieces)) if num_samples else np.zeros(num_pieces)
    return np.where(count < size, 1 - count / size, 1).astype(np.float32)


def lost_events(stretches: NDArray[np.int64], rate_hz: float) -> list[Event]:
    """Return the stretches of lost signal of `UNREADABLE_S` or more as events, to the sample.

    Args:
        stretches: start and stop of each, int64 `[num_stretches, 2]`, cut where blocks of the recording meet.
        rate_hz: sampling rate in Hz.
    """
    events = joined_events([Event("unreadable", start, stop, 1.0) for start, stop in stretches.tolist()])
    return [event for event in events if event.stop - event.start >= UNREADABLE_S * rate_hz]


def joined_events(events: list[Event]) -> list[Event]:
    """Return events of one kind in order; those that touch or overlap are one."""
    joined = list[Event]()
    for event in sorted(events, key=lambda each: each.start):
        if joined and event.start <= joined[-1].stop:
            before = joined.pop()
            lengths = before.stop - before.start, event.stop - event.start
            confidence = float(np.average([before.confidence, event.confidence], weights=lengths))
            event = Event(event.kind, before.start, max(before.stop, event.stop), confidence)
        joined.append(event)
    return joined


def lost_intervals(sample: Places, stretches: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether signal is lost between each beat and the next, bool `[num_beats]`, false for the last beat."""
    lost = np.zeros(len(sample), np.bool_)
    before = np.searchsorted(sample, stretches[:, 0], side="right") - 1
    lost[before[before >= 0]] = True
    lost[-1:] = False
    return lost


def cut_lost(sample: Places, signals_mv: Floats, stretches: NDArray[np.int64]) -> tuple[Places, Floats]:
    """Cut lost signal out of the intervals between beats that are longer than usual.

    Args:
        sample: position of each beat, ascending, int64 `[num_beats]`.
        signals_mv: signals, float32 `[num_leads, num_samples]`.
        stretches: start and stop of each stretch of lost signal, int64 `[num_stretches, 2]`.

    Returns:
        Positions of the beats and signals without the cut samples; the arguments if nothing is cut.
    """
    intervals = np.diff(sample)
    is_lost = lost_intervals(sample, stretches)[:-1]
    if not is_lost.any() or is_lost.all():
        return sample, signals_mv
    cut = list[tuple[int, int]]()
    for before in np.flatnonzero(is_lost).tolist():
        near = slice(max(0, before - AROUND), before + 1 + AROUND)
        usual_intervals = intervals[near][~is_lost[near]]
        usual = float(np.median(usual_intervals if len(usual_intervals) else intervals[~is_lost]))
        excess = int(intervals[before] - usual)
        inside = (stretches[:, 0] >= sample[before]) & (stretches[:, 1] <= sample[before + 1])
        for start, stop in stretches[inside].tolist():
            if excess > 0:
                cut.append((start, min(stop, start + excess)))
                excess -= stop - start
    if not cut:
        return sample, signals_mv
    edges = [0, *(edge for each in cut for edge in each), signals_mv.shape[1]]
    kept = [signals_mv[:, start:stop] for start, stop in list(pairwise(edges))[::2]]
    stops = np.array([stop for _, stop in cut])
    removed = np.concatenate([[0], np.cumsum([stop - start for start, stop in cut])])
    moved: Places = sample - removed[np.searchsorted(stops, sample, side="right")]
    return moved, np.concatenate(kept, axis=1)
