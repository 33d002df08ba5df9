"""Agreement of leads: long intervals without beats, and regular beats where a model sees ventricular fibrillation.

A detector misses beats of unusual shape or height in one lead, for example ventricular beats that are low in it, or
beats after a pacemaker's spike. A pause exists only where every readable lead is empty: `fill_gaps` adds beats to long
intervals where a lead shows them clearly: like their neighbours, or one and the same shape in several intervals. An
interval is disputed where a lead is not quiet without showing a clear beat, or where no lead can be read. The heart
does not fibrillate while a lead shows regular beats of one shape: `regular_seconds`. Classes of beats are the mean of
the leads, unless one takes most of a rhythm for S: `combined`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from heartlm.analysis.signal_quality import QRS_S, LeadQuality, around_beats
from heartlm.ecg.matching import MATCH_WINDOW_S, nearest

Places = NDArray[np.int64]
Floats = NDArray[np.float32]

GAP_S = 1.2
"""Intervals from this length in seconds on are examined: bradycardia is a mean interval above it."""
T_WAVE_S, P_WAVE_S = 0.5, 0.25
"""Ends of an interval in seconds in which no QRS complex is looked for: the T wave after the first beat and the P wave
before the second one."""
USUAL_BEATS = 8
"""Number of beats on each side of an interval to whose shape and height its signal is compared."""
LIKE, HIGH, LOUD, HUGE = 0.85, 0.5, 0.7, 2.5
"""A beat is added if its correlation with its neighbours is at least the first value and its height, as a fraction of
theirs, from `HIGH` to `HUGE`: higher ones are artefacts. A lead is not quiet from the height `LOUD` on, in the width of
a QRS complex. P and T waves are lower; a beat that the detector marked in the T wave must be as high."""
RECURS, OFTEN = 0.9, 2
"""What a lead marks in a long interval is a beat, too, if its correlation with at least `OFTEN` of its marks in other
such intervals is at least `RECURS`: ventricular beats across the other leads. 4 of 52 such marks in DS1 of mitdb and
svdb are beats; 7 that are no beats are like one other mark at 0.85 and 0.5 heights, none like two at 0.9 and 0.7."""
APART_S = 0.25
"""Smallest distance in seconds of an added beat from others."""
VALID = 0.9
"""Fraction of valid samples that change from which on a lead can be read in an interval."""
MARKED = 0.6
"""Fraction of the neighbours that a lead must mark for it to show that an interval is empty."""
WINDOWS_AT_ONCE_S = 60.0
"""Seconds of a gap that are compared with the neighbours at once: each sample takes a copy of a whole complex."""
WINDOW_S, FEWEST_BEATS, REGULAR, ALIKE = 4.0, 4, 0.12, 0.8
"""Regular beats: in a window of this length, at least this number of beats, whose intervals have at most this ratio of
standard deviation to mean, and of which half have at least this correlation with a neighbour. In the median window of
the 55 stretches of VF found in cudb and record 207 of mitdb the ratio is 0.21 to 0.51; in VT called VF it is 0.02 to
0.10 in the better lead."""

S_DISAGREEMENT = 0.2
"""Difference between leads in the fraction of beats that are S from which on the lead with the fewest of them decides
between N and S. Of 92 recordings of PTB-XL in sinus arrhythmia 14 instead of 17 have an S beat by it, of 41 with
premature atrial beats 38 instead of 39 (docs/log/artefacts.md)."""


def combined(answers: Floats, weight: Floats, classes: Sequence[str]) -> Floats:
    """Return class probabilities of beats by all leads, float32 `[num_beats, num_classes]`.

    Args:
        answers: class probabilities by each lead, float32 `[num_leads, num_beats, num_classes]`.
        weight: weight of each lead at each beat, above 0, float32 `[num_leads, num_beats]`.
        classes: names of the classes.
    """
    total = (answers * weight[..., None]).sum(axis=0)
    share = (answers.argmax(axis=2) == classes.index("S")).mean(axis=1)  # [num_leads]
    if np.ptp(share) > S_DISAGREEMENT:
        # One lead takes the usual rhythm for ectopic beats.
        both = [classes.index("N"), classes.index("S")]
        calm = np.maximum(answers[share.argmin()][:, both], 1e-9)
        total[:, both] = total[:, both].sum(axis=1, keepdims=True) * calm / calm.sum(axis=1, keepdims=True)
    return np.asarray(total / total.sum(axis=1, keepdims=True))


def fill_gaps(
    sample: Places, leads: Sequence[LeadQuality], signals_mv: Floats, rate_hz: float
) -> tuple[Places, NDArray[np.bool_]]:
    """Add beats to the long intervals in which a lead shows them.

    Args:
        sample: position of each beat, ascending, int64 `[num_beats]`.
        leads: detected beats of each lead.
        signals_mv: signals in millivolts, float32 `[num_leads, num_samples]`, NaN where invalid.
        rate_hz: sampling rate in Hz.

    Returns:
        The beats with those added, int64 `[num_filled]`; and whether the interval from each beat to the next is
        disputed, bool `[num_filled]`, false for the last beat.
    """
    t_wave, p_wave, gap = (round(each * rate_hz) for each in (T_WAVE_S, P_WAVE_S, GAP_S))
    added, disputed = list[Places](), list[int]()
    gaps = np.flatnonzero(np.diff(sample) >= gap)
    spans = np.stack([sample[gaps] + round(APART_S * rate_hz), sample[gaps + 1] - p_wave], axis=1)
    leads = [_recurring(lead, spans, signal, rate_hz) for lead, signal in zip(leads, signals_mv, strict=True)]
    for before in gaps.tolist():
        near = sample[max(0, before + 1 - USUAL_BEATS) : before + 1 + USUAL_BEATS]
        start, stop = int(sample[before]) + t_wave, int(sample[before + 1]) - p_wave
        shown = [_shown(start, stop, near, *lead, rate_hz) for lead in zip(leads, signals_mv, strict=True)]
        readable = [each for each in shown if each is not None]
        # of two leads that show beats, the one with fewer of them misses some
        beats = max((beats for beats, _ in readable), key=len, default=sample[:0])
        loud = np.concatenate([sample[:0], *(loud for _, loud in readable)])
        added.append(beats)
        # a lead in which the beats around are not marked does not show that there is none
        marks = [_marked(near, lead.sample, rate_hz) >= MARKED for lead in leads]
        is_shown = any(mark and each is not None for mark, each in zip(marks, shown, strict=True))
        edges = [int(sample[before]), *beats.tolist(), int(sample[before + 1])]
        for first, last in pairwise(edges):
            is_loud = bool(((loud >= first + t_wave) & (loud < last - p_wave)).any())
            if last - first >= gap and (is_loud or not is_shown):
                disputed.append(first)
    filled: Places = np.unique(np.concatenate([sample, *added]))
    return filled, np.isin(filled, disputed)


def _recurring(lead: LeadQuality, spans: Places, signal_mv: Floats, rate_hz: float) -> LeadQuality:
    """Count as alike what a lead marks in one shape in several of the spans, int64 `[num_spans, 2]`."""
    span = np.searchsorted(spans[:, 0], lead.sample, side="right") - 1
    marked = np.flatnonzero((span >= 0) & (lead.sample < spans[span, 1])) if len(spans) else np.empty(0, np.int64)
    if len(marked) <= OFTEN:
        return lead
    around = around_beats(signal_mv, lead.sample[marked], round(QRS_S * rate_hz))
    around = around - around.mean(axis=1, keepdims=True)
    around /= np.maximum(np.linalg.norm(around, axis=1, keepdims=True), 1e-9)
    likeness, often = lead.likeness.copy(), np.empty(len(marked), np.bool_)
    for first in range(0, len(marked), 1024):  # bounds the memory
        often[first : first + 1024] = (around[first : first + 1024] @ around.T >= RECURS).sum(axis=1) > OFTEN
    likeness[marked[often]] = 1
    return replace(lead, likeness=likeness)


def _marked(sample: Places, of_lead: Places, rate_hz: float) -> float:
    """Return the fraction of beats that a lead marks."""
    if not len(of_lead):
        return 0.0
    return float(np.mean(np.abs(of_lead[nearest(sample, of_lead)] - sample) <= MATCH_WINDOW_S * rate_hz))


def _shown(
    start: int, stop: int, near: Places, lead: LeadQuality, signal_mv: Floats, rate_hz: float
) -> tuple[Places, Places] | None:
    """Return what a lead shows from `start` to `stop`: clear beats, and loud samples; None if it cannot be read."""
    reach = round(QRS_S * rate_hz)
    inside = signal_mv[start:stop]
    complexes = signal_mv[np.clip(near[:, None] + np.arange(-reach, reach + 1), 0, len(signal_mv) - 1)]
    complexes = complexes[np.isfinite(complexes).all(axis=1)]  # [num_near, 2 reach + 1]
    if not len(inside) or np.mean(lead.off[start:stop] == 0) < VALID or not len(complexes):
        return None
    height = float(np.median(np.ptp(complexes, axis=1)))
    if height == 0:
        return None
    begin = start - round((T_WAVE_S - APART_S) * rate_hz)
    marked = lead.sample[(lead.sample >= begin) & (lead.sample < stop) & (lead.likeness >= LIKE)] - begin
    if not len(marked) and np.nanmax(inside) - np.nanmin(inside) < HIGH * height:
        return near[:0], near[:0]
    complexes = complexes - complexes.mean(axis=1, keepdims=True)
    complexes /= np.maximum(np.linalg.norm(complexes, axis=1, keepdims=True), 1e-9)
    windows = sliding_window_view(np.nan_to_num(signal_mv[begin - reach : stop + reach]), 2 * reach + 1)
    parts, at_once = list[tuple[Floats, Floats]](), round(WINDOWS_AT_ONCE_S * rate_hz)
    for first in range(0, len(windows), at_once):
        part = windows[first : first + at_once]
        centred = part - part.mean(axis=1, keepdims=True)
        # Like a quarter of the neighbours, since a single one may be noise.
        alike = np.quantile(centred @ complexes.T, 0.75, axis=1) / np.maximum(np.linalg.norm(centred, axis=1), 1e-9)
        parts.append((np.ptp(part, axis=1) / height, alike))
    heights, likeness = map(np.concatenate, zip(*parts, strict=True))  # [stop - begin]
    likeness[: start - begin] = 0
    # A beat that the detector marked may be like others of this interval rather than like its neighbours.
    likeness[marked[(marked >= start - begin) | (heights[marked] >= LOUD)]] = 1
    likeness[(heights < HIGH) | (heights > HUGE)] = 0
    beats, apart = list[int](), round(APART_S * rate_hz)
    while likeness.max() >= LIKE:
        best = int(likeness.argmax())
        beats.append(begin + best)
        likeness[max(0, best - apart) : best + apart + 1] = 0
    return np.array(sorted(beats), np.int64), start + np.flatnonzero(heights[start - begin :] >= LOUD)


def regular_seconds(leads: Sequence[LeadQuality], num_seconds: int, rate_hz: float) -> NDArray[np.bool_]:
    """Return whether a lead shows regular beats in the window around each second, bool `[num_seconds]`."""
    regular = np.zeros(num_seconds, np.bool_)
    middle = np.arange(num_seconds) + 0.5
    for lead in leads:
        first, stop = (np.searchsorted(lead.sample, (middle + side * WINDOW_S / 2) * rate_hz) for side in (-1.0, 1.0))
        num = stop - first
        rr_s = np.diff(lead.sample) / rate_hz
        # Sums over the intervals between the beats `first` to `stop` are differences of sums since the start.
        sums, squares, alike = (
            np.concatenate([[0.0], np.cumsum(each)]) for each in (rr_s, rr_s**2, lead.likeness >= ALIKE)
        )
        begin, end = np.minimum(first, len(rr_s)), np.clip(stop - 1, first, len(rr_s))
        mean = (sums[end] - sums[begin]) / np.maximum(num - 1, 1)
        variance = (squares[end] - squares[begin]) / np.maximum(num - 1, 1) - mean**2
        is_steady = variance <= (REGULAR * mean) ** 2
        regular |= (num >= FEWEST_BEATS) & is_steady & (alike[stop] - alike[first] >= num / 2)
    return regular
