"""ECG strips as inline SVG: 25 mm/s and 10 mm/mV on millimetre paper, beats lettered above, the model's answers below.

Where answer and reference differ the beat stands in a band and the answer in a box, so that a wrong beat is found
without colour. A voltage range too tall for 10 mm/mV is drawn at 5, and the corner of the strip says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from heartlm.report.numbers import MISSING, clock, decimal, percent
from heartlm.report.strip import LEAD_IN_S, PULSE_MV, PULSE_S, Strip, lanes
from heartlm.report.svg import Markup, drawing, group, line, path_of, rectangle, tag, text
from heartlm.typed import is_number

MM = 4.0
"""Units of the drawing for one millimetre of paper."""

MM_PER_S = 25.0
LANE = 22.0
"""Height of the lanes with letters above and below the paper."""

BEAT_LANE, RHYTHM_ROW = 30.0, 16.0
"""Heights above a sheet: of beats with their probabilities, and of each row of rhythms."""

MOST_POINTS_HZ = 260.0
"""Leads with a higher rate are thinned for a sheet: at 250 samples a second, points lie 0.1 mm apart."""

SMALLEST_RANGE_MV = 1.5
TALLEST_RANGE_MV = 5.0

LARGEST_RANGE_MV, LONGEST_S = 1000.0, 3600.0
"""Of a strip: every square is drawn, so a damaged number would draw without an end."""

Beat = Mapping[str, Any]
Place = TypeVar("Place", float, NDArray[np.float64])


def strip(signal_mv: Sequence[float | None], rate_hz: float, beats: Sequence[Beat] = ()) -> Markup | None:
    """Draw a strip of one lead; return None when it has no samples or no sampling rate.

    Args:
        signal_mv: `[num_samples]` millivolts; None and NaN leave a gap.
        rate_hz: samples a second.
        beats: each with `time_s` from the strip's start, and `reference`, `predicted`, `probability` as known.
    """
    signal = _millivolts(signal_mv)
    paper = Paper.of(signal, rate_hz)
    if paper is None:
        return None
    timed = [beat for beat in beats if is_number(beat.get("time_s"))]
    return drawing(
        paper.width,
        paper.bottom + LANE,
        f"ECG strip of {paper.duration_s:.1f} seconds with {len(timed)} beats",
        _squares(paper),
        *(
            rectangle(paper.x(beat["time_s"]) - 15, 0, 30, paper.bottom + LANE, rx=4, class_="wrong-band")
            for beat in timed
            if is_wrong(beat)
        ),
        *_trace(paper, signal, rate_hz),
        *(_letters(paper, beat) for beat in timed),
        _corner(paper),
        class_="strip",
    )


def sheet(strip: Strip, label: str, probability: NDArray[np.float32] | None = None) -> Markup:
    """Draw all leads of a strip below one another, its beats and rhythms above them, and the time below.

    Args:
        strip: what is drawn; each lead is centred on its lane, and clipped to it where it is taller.
        label: describes the drawing to those who cannot see it.
        probability: of the class of each beat of the strip, `[num_beats]`; written below its letter in per cent.
    """
    stacked, rows = lanes(strip), _rhythm_rows(strip)
    top = RHYTHM_ROW * len(rows) + (BEAT_LANE if strip.beats is not None else 6)
    paper = Paper(strip.duration_s, stacked[-1].bottom, 0.0, 10.0, top, LEAD_IN_S)
    parts = [_squares(paper)]
    for row, spans in enumerate(rows):
        y = RHYTHM_ROW * (row + 1) - 3
        for start, stop, name in spans:
            parts.append(line(start, y, stop, y, class_="rhythm"))
            parts.append(text(start + 2, y - 3, name, class_="rhythm-name"))
    ceiling = 0.0
    for lane in stacked:
        trace, rate_hz = _thinned(np.asarray(lane.trace, np.float64), strip.rate_hz)
        parts += _trace(paper, np.clip(trace + lane.zero, lane.bottom, ceiling), rate_hz)
        pulse = path_of([second * MM_PER_S * MM for second in PULSE_S], [paper.y(lane.zero + mv) for mv in PULSE_MV])
        parts.append(tag("path", d=pulse, class_="trace"))
        parts.append(text(4, paper.y(lane.zero + 1) - 4, lane.name, class_="lead-name"))
        if not np.isfinite(trace).any():
            parts.append(text(paper.width / 2, paper.y(lane.zero), "no signal", class_="lead-name"))
        ceiling = lane.bottom
    if strip.beats is not None:
        parts += _sheet_letters(paper, strip, probability)
    for second in range(math.ceil(strip.start_s - 1e-9), math.floor(strip.stop_s + 1e-9) + 1):
        x = paper.x(second - strip.start_s)
        parts.append(line(x, paper.bottom, x, paper.bottom + 5, class_="axis"))
        if x + 50 < paper.width:
            parts.append(text(x + 3, paper.bottom + 14, clock(second), class_="tick"))
    parts.append(_corner(paper))
    # the style sheet prints a millimetre of the drawing as a millimetre of paper
    style = f"--width:{paper.width / MM:g}mm"
    return drawing(paper.width, paper.bottom + LANE, label, *parts, class_="strip sheet", style=style)


def sheets(strip: Strip, label: str) -> list[Markup]:
    """Draw a strip in rows of ten seconds; `label` describes each to those who cannot see it."""
    return [sheet(row, label) for row in strip.rows()]


def _rhythm_rows(strip: Strip) -> list[list[tuple[float, float, str]]]:
    """Return the strip's rhythms as places from and to, in as few rows as keep them and their names apart."""
    rows: list[list[tuple[float, float, str]]] = []
    for rhythm in strip.rhythms:
        start, stop = max(rhythm.start_s, strip.start_s), min(rhythm.stop_s, strip.stop_s)
        if start < stop:
            places = [(edge - strip.start_s + LEAD_IN_S) * MM_PER_S * MM for edge in (start, stop)]
            span = (places[0], places[1], rhythm.name)
            ends = [max(row[-1][1], row[-1][0] + 8 * len(row[-1][2])) for row in rows]
            free = next((row for row, end in zip(rows, ends, strict=True) if end + 3 <= span[0]), None)
            if free is None:
                rows.append([span])
            else:
                free.append(span)
    return rows


def _sheet_letters(paper: Paper, strip: Strip, probability: NDArray[np.float32] | None) -> Iterator[Markup]:
    assert strip.beats is not None
    for place, (time_s, name) in enumerate(zip(strip.beats.time_s, strip.beats.labels, strict=True)):
        if not strip.start_s <= time_s < strip.stop_s:
            continue
        x = paper.x(time_s - strip.start_s)
        at, parts = min(x, paper.width - 7), []
        if probability is not None:
            sure = min(int(100 * probability[place]), 99) if np.isfinite(probability[place]) else MISSING
            parts = [tag("title", f"{clock(time_s, 2)}: {name}, {sure} %")]
            parts.append(text(at, paper.top - 4, str(sure), class_="sure", text_anchor="middle"))
        if strip.beats.banded[place]:
            parts.append(rectangle(x - 12, paper.top, 24, paper.bottom - paper.top, class_=f"beat-band class-{name}"))
        parts.append(text(at, paper.top - 15, name, class_=f"beat class-{name}", text_anchor="middle"))
        yield group(*parts)


def _thinned(trace: NDArray[np.float64], rate_hz: float) -> tuple[NDArray[np.float64], float]:
    """Keep of each few samples the one furthest from the lead's median, so that no peak is lost."""
    step = math.ceil(rate_hz / MOST_POINTS_HZ)
    if step == 1:
        return trace, rate_hz
    pieces = np.pad(trace, (0, -len(trace) % step), constant_values=np.nan).reshape(-1, step)
    furthest = np.nan_to_num(np.abs(pieces), nan=-1.0).argmax(axis=1)
    return pieces[np.arange(len(pieces)), furthest], rate_hz / step


def banner(signal_mv: Sequence[float | None], rate_hz: float) -> Markup | None:
    """Draw a bare trace without scale, which stretches to the place it is given; None without samples."""
    signal = _millivolts(signal_mv)
    paper = Paper.of(signal, rate_hz)
    if paper is None:
        return None
    trace = _trace(paper, signal, rate_hz)
    size = (paper.width, paper.bottom + LANE)
    return drawing(*size, "an ECG of this run", *trace, class_="banner", preserveAspectRatio="none")


def is_wrong(beat: Beat) -> bool:
    """Say whether reference and answer are both there and differ; beats of class Q are not scored, so never wrong."""
    reference, predicted = beat.get("reference"), beat.get("predicted")
    return bool(reference) and bool(predicted) and reference not in (predicted, "Q")


@dataclass(frozen=True)
class Paper:
    """Where seconds and millivolts lie on the drawing."""

    duration_s: float
    low_mv: float
    high_mv: float
    mm_per_mv: float
    top: float = LANE
    lead_in_s: float = 0.0

    @classmethod
    def of(cls, signal: NDArray[np.float64], rate_hz: float) -> Paper | None:
        """Return paper that holds the signal `[num_samples]`, in whole large squares of 5 mm.

        Raises:
            ValueError: the signal is larger or longer than any strip.
        """
        if not is_number(rate_hz) or rate_hz <= 0 or not np.isfinite(signal).any():
            return None
        low, high = float(np.nanmin(signal)), float(np.nanmax(signal))
        if high - low > LARGEST_RANGE_MV or len(signal) / rate_hz > LONGEST_S:
            raise ValueError(f"a strip of {high - low:g} mV and {len(signal) / rate_hz:g} s")
        mm_per_mv = 10.0 if high - low <= TALLEST_RANGE_MV else 5.0
        square_mv = 5.0 / mm_per_mv
        missing = max(SMALLEST_RANGE_MV - (high - low), 0.0) / 2
        low = math.floor((low - missing) / square_mv) * square_mv
        high = math.ceil((high + missing) / square_mv) * square_mv
        return cls(len(signal) / rate_hz, low, high, mm_per_mv)

    @property
    def width(self) -> float:
        """The length of the paper."""
        return (self.duration_s + self.lead_in_s) * MM_PER_S * MM

    @property
    def bottom(self) -> float:
        """Where the paper ends."""
        return self.top + (self.high_mv - self.low_mv) * self.mm_per_mv * MM

    def x(self, time_s: Place) -> Place:
        """Return the place of a time, or of an array of times."""
        return (time_s + self.lead_in_s) * MM_PER_S * MM

    def y(self, millivolts: Place) -> Place:
        """Return the place of a voltage, or of an array of voltages."""
        return self.top + (self.high_mv - millivolts) * self.mm_per_mv * MM


def _millivolts(signal: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in signal], dtype=np.float64)


def _squares(paper: Paper) -> Markup:
    def lines(step: float) -> str:
        columns = (f"M{x:g} {paper.top:g}V{paper.bottom:g}" for x in np.arange(0, paper.width + 0.1, step))
        rows = (f"M0 {y:g}H{paper.width:g}" for y in np.arange(paper.top, paper.bottom + 0.1, step))
        return "".join((*columns, *rows))

    return group(
        rectangle(0, paper.top, paper.width, paper.bottom - paper.top, class_="paper"),
        tag("path", d=lines(MM), class_="square-1mm"),
        tag("path", d=lines(5 * MM), class_="square-5mm"),
    )


def _trace(paper: Paper, signal: NDArray[np.float64], rate_hz: float) -> Iterator[Markup]:
    finite = np.flatnonzero(np.isfinite(signal))
    for run in np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1):
        if len(run):
            yield tag("path", d=path_of(paper.x(run / rate_hz), paper.y(signal[run])), class_="trace")


def _letters(paper: Paper, beat: Beat) -> Markup:
    x, reference, predicted = paper.x(beat["time_s"]), beat.get("reference"), beat.get("predicted")
    hover = f"{decimal(beat['time_s'], 2)} s: reference {reference or 'unlabelled'}"
    if predicted:
        hover += f", the model says {predicted} ({percent(beat.get('probability'))})"
    parts = [tag("title", hover), rectangle(x - 15, 0, 30, paper.bottom + LANE, class_="hover")]
    if reference:
        parts.append(text(x, 15, str(reference), class_=f"beat class-{reference}", text_anchor="middle"))
    if predicted:
        wrong = is_wrong(beat)
        if wrong:
            parts.append(rectangle(x - 9, paper.bottom + 3, 18, 17, rx=3, class_=f"answer-box class-{predicted}"))
        words = "beat on-class" if wrong else f"beat quiet class-{predicted}"
        parts.append(text(x, paper.bottom + 16, str(predicted), class_=words, text_anchor="middle"))
    return group(*parts)


def _corner(paper: Paper) -> Markup:
    words = f"25 mm/s · {paper.mm_per_mv:g} mm/mV"
    return text(5, paper.bottom - 6, words, class_="corner")
