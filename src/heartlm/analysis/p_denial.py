"""P waves that deny atrial fibrillation: in sinus rhythm with many ectopic beats RR intervals alone look like it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import Event, covered
from heartlm.delineation.intervals import Intervals
from heartlm.ecg.spans import runs

NEAR_BEATS = 15
"""Number of consecutive normal beats that are judged together, and fewest that deny."""
P_SHARE, STEADY_PR_MS = 0.5, 25.0
"""P waves deny AF in normal beats of which at least this fraction has one, with at most this interquartile range of PR.
In DS1 of mitdb, 30 s of AF have at most 0.13, of sinus rhythm called AF at least 0.61 with 23 ms."""

FLUTTER_SHARE = 0.3
"""Waves before QRS complexes are of flutter, not P waves, where an atrial wave explains this fraction of the signal
between the complexes. In PTB-XL (folds 1 to 8) it explains up to 0.24 in 99 % of irregular sinus rhythms, and 0.53 or
more in irregular flutter that P waves would deny (docs/log/af.md)."""


def denied_by_p(has_p: NDArray[np.bool_], pr_ms: NDArray[np.float64], normal: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether each beat lies in a run of beats with P waves at a steady PR interval, bool `[num_beats]`.

    Args:
        has_p: whether each of some consecutive beats has a P wave, bool `[num_beats]`.
        pr_ms: PR interval of each, NaN where unknown, float64 `[num_beats]`.
        normal: which have the class N, bool `[num_beats]`. Others have no say, and follow those around them.
    """
    denied, places = np.zeros(len(normal), np.bool_), np.flatnonzero(normal)
    if len(places) < NEAR_BEATS:
        return denied
    near = np.lib.stride_tricks.sliding_window_view
    pr = near(pr_ms[places], NEAR_BEATS)
    steady = (near(has_p[places], NEAR_BEATS).mean(axis=1) >= P_SHARE) & ~np.isnan(pr).all(axis=1)
    if not steady.any():
        return denied
    lower, upper = np.nanpercentile(pr[steady], [25, 75], axis=1)
    steady[steady] = upper - lower <= STEADY_PR_MS
    middle = (np.arange(len(places)) - NEAR_BEATS // 2).clip(0, len(steady) - 1)
    for first, stop in runs(steady[middle]).tolist():
        if stop - first >= NEAR_BEATS:
            begin = places[first] if first else 0
            denied[begin : places[stop] if stop < len(places) else len(normal)] = True
    return denied


def without_p(
    events: list[Event], waves: Intervals, normal: NDArray[np.bool_], atrial: NDArray[np.float64], shortest: float
) -> tuple[list[Event], float]:
    """Return the parts of AF events that no P waves deny, and how many samples are no AF any more.

    Args:
        events: AF events; shorter ones than `shortest` stay.
        waves: waves of the beats of the recording.
        normal: which beats have the class N, bool `[num_beats]`.
        atrial: fraction of the signal around each beat that a wave of flutter explains, float64 `[num_beats]`.
        shortest: least duration of AF in samples, which each part must have.
    """
    sample, left = waves.delineation.beats, list[Event]()
    has_p, pr_ms = waves.delineation.has_p & (atrial < FLUTTER_SHARE), waves.intervals["pr_ms"]
    for event in events:
        inside = covered([event], sample)
        denied = denied_by_p(has_p[inside], pr_ms[inside], normal[inside])
        if event.stop - event.start <= shortest or not denied.any():
            left.append(event)
            continue
        beats = sample[inside]
        parts = [(int(beats[first]), int(beats[stop - 1]) + 1) for first, stop in runs(~denied).tolist()]
        left += [replace(event, start=start, stop=stop) for start, stop in parts if stop - start > shortest]
    return left, float(sum(each.stop - each.start for each in events) - sum(each.stop - each.start for each in left))
