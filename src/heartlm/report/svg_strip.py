"""ECG strips as inline SVG: 25 mm/s and 10 mm/mV on millimetre paper, beat labels above, predictions below.

Where prediction and reference differ, the beat is in a band and the prediction in a box, so that errors are visible
without colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.report.numbers import clock
from heartlm.report.strip import LEAD_IN_S, PULSE_MV, PULSE_S, Strip, lanes
from heartlm.report.svg import Markup, drawing, group, line, path_of, rectangle, tag, text

MM = 4.0
"""Drawing units per millimetre of paper."""

SECOND, MILLIVOLT = 25 * MM, 10 * MM
LANE = 22.0
"""Height of each lane below the paper: for the time and for a model's predictions."""

BEAT_LANE, RHYTHM_ROW = 30.0, 16.0
"""Heights above the paper: of the beats with their notes, and of each row of rhythms."""

MOST_POINTS_HZ = 260.0
"""Leads with a higher sampling rate are thinned; at 250 Hz, points are 0.1 mm apart."""

LONGEST_S = 3600.0
"""Maximum length of a strip in seconds: every grid square is drawn, so a wrong rate would produce a huge drawing."""


def sheet(strip: Strip, label: str) -> Markup:
    """Draw all leads of a strip on one sheet of paper, with its beats and rhythms; `label` is its description.

    Raises:
        ValueError: the strip is longer than `LONGEST_S`.
    """
    if strip.duration_s > LONGEST_S:
        raise ValueError(f"a strip of {strip.duration_s:g} s")
    stacked, rows = lanes(strip), _rhythm_rows(strip)
    top = RHYTHM_ROW * len(rows) + (BEAT_LANE if strip.beats is not None else 6)
    width, bottom = _x(strip.duration_s), top - stacked[-1].bottom * MILLIVOLT

    def squares(step: float) -> str:
        columns = (f"M{x:g} {top:g}V{bottom:g}" for x in np.arange(0, width + 0.1, step))
        across = (f"M0 {y:g}H{width:g}" for y in np.arange(top, bottom + 0.1, step))
        return "".join((*columns, *across))

    parts = [
        rectangle(0, top, width, bottom - top, class_="paper"),
        tag("path", d=squares(MM), class_="square-1mm"),
        tag("path", d=squares(5 * MM), class_="square-5mm"),
    ]
    for row, spans in enumerate(rows):
        y = RHYTHM_ROW * (row + 1) - 3
        for start, stop, name in spans:
            parts.append(line(start, y, stop, y, class_="rhythm"))
            parts.append(text(start + 2, y - 3, name, class_="rhythm-name"))
    ceiling = 0.0
    for lane in stacked:
        zero = top - lane.zero * MILLIVOLT
        trace, rate_hz = _thinned(np.asarray(lane.trace, np.float64), strip.rate_hz)
        heights = top - np.clip(trace + lane.zero, lane.bottom, ceiling) * MILLIVOLT
        finite = np.flatnonzero(np.isfinite(trace))
        for run in np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1):
            if len(run):
                parts.append(tag("path", d=path_of(_x(run / rate_hz), heights[run]), class_="trace"))
        pulse = path_of([second * SECOND for second in PULSE_S], [zero - mv * MILLIVOLT for mv in PULSE_MV])
        parts.append(tag("path", d=pulse, class_="trace"))
        parts.append(text(4, zero - MILLIVOLT - 4, lane.name, class_="lead-name"))
        if not len(finite):
            parts.append(text(width / 2, zero, "no signal", class_="lead-name"))
        ceiling = lane.bottom
    parts += _beats(strip, width, top, bottom)
    answered = strip.beats is not None and bool(strip.beats.answers)
    below = bottom + LANE * answered
    for second in range(math.ceil(strip.start_s - 1e-9), math.floor(strip.stop_s + 1e-9) + 1):
        x = _x(second - strip.start_s)
        parts.append(line(x, bottom, x, bottom + 5, class_="axis"))
        if x + 50 < width:
            parts.append(text(x + 3, below + 14, clock(second), class_="tick"))
    parts.append(text(5, bottom - 6, "25 mm/s · 10 mm/mV", class_="corner"))
    # the style sheet prints a millimetre of the drawing as a millimetre on paper
    return drawing(width, below + LANE, label, *parts, class_="strip sheet", style=f"--width:{width / MM:g}mm")


def sheets(strip: Strip, label: str) -> list[Markup]:
    """Draw a strip in rows of ten seconds; `label` is the description of each for screen readers."""
    return [sheet(row, label) for row in strip.rows()]


def banner(signal_mv: Sequence[float | None], rate_hz: float) -> Markup | None:
    """Draw a plain trace without scale that stretches to its container; return None without samples."""
    signal = np.array(signal_mv, np.float64)
    known = np.flatnonzero(np.isfinite(signal))
    if not len(known) or rate_hz <= 0:
        return None
    trace = path_of(known / rate_hz * SECOND, LANE + (signal[known].max() - signal[known]) * MILLIVOLT)
    size = (len(signal) / rate_hz * SECOND, 2 * LANE + float(np.ptp(signal[known])) * MILLIVOLT)
    shape = tag("path", d=trace, class_="trace")
    return drawing(*size, "an ECG of this run", shape, class_="banner", preserveAspectRatio="none")


def _x(time_s: Any) -> Any:
    """Return the x position of a time since the strip's start, or of an array of times."""
    return (time_s + LEAD_IN_S) * SECOND


def _rhythm_rows(strip: Strip) -> list[list[tuple[float, float, str]]]:
    """Return the rhythms as x intervals, in as few rows as possible without overlap of rhythms or their names."""
    rows: list[list[tuple[float, float, str]]] = []
    for rhythm in strip.rhythms:
        start, stop = max(rhythm.start_s, strip.start_s), min(rhythm.stop_s, strip.stop_s)
        if start < stop:
            places = [_x(edge - strip.start_s) for edge in (start, stop)]
            span = (places[0], places[1], rhythm.name)
            ends = [max(row[-1][1], row[-1][0] + 8 * len(row[-1][2])) for row in rows]
            free = next((row for row, end in zip(rows, ends, strict=True) if end + 3 <= span[0]), None)
            if free is None:
                rows.append([span])
            else:
                free.append(span)
    return rows


def _beats(strip: Strip, width: float, top: float, bottom: float) -> Iterator[Markup]:
    """Yield each beat of the strip: label and note above the paper, band, prediction below, and hover text."""
    if strip.beats is None:
        return
    beats, middle = strip.beats, {"text_anchor": "middle"}
    for place, (time_s, name) in enumerate(zip(beats.time_s, beats.labels, strict=True)):
        if not strip.start_s <= time_s < strip.stop_s:
            continue
        x = _x(time_s - strip.start_s)
        at, parts = min(x, width - 7), []
        if beats.hovers:
            parts.append(tag("title", beats.hovers[place]))
            parts.append(rectangle(x - 12, 0, 24, bottom + LANE, class_="hover"))
        if beats.notes:
            parts.append(text(at, top - 4, beats.notes[place], class_="sure", **middle))
        if beats.banded[place]:
            band = "wrong-band" if beats.answers else f"beat-band class-{name}"
            parts.append(rectangle(x - 12, top, 24, bottom - top, class_=band))
        parts.append(text(at, top - 15, name, class_=f"beat class-{name}", **middle))
        if beats.answers:
            answer = beats.answers[place]
            if beats.banded[place]:
                parts.append(rectangle(x - 9, bottom + 3, 18, 17, rx=3, class_=f"answer-box class-{answer}"))
            words = "on-class" if beats.banded[place] else f"quiet class-{answer}"
            parts.append(text(x, bottom + 16, answer, class_=f"beat {words}", **middle))
        yield group(*parts)


def _thinned(trace: NDArray[np.float64], rate_hz: float) -> tuple[NDArray[np.float64], float]:
    """Keep the sample furthest from the lead's median in each group, so that no peak is lost."""
    step = math.ceil(rate_hz / MOST_POINTS_HZ)
    if step == 1:
        return trace, rate_hz
    pieces = np.pad(trace, (0, -len(trace) % step), constant_values=np.nan).reshape(-1, step)
    furthest = np.nan_to_num(np.abs(pieces), nan=-1.0).argmax(axis=1)
    return pieces[np.arange(len(pieces)), furthest], rate_hz / step
