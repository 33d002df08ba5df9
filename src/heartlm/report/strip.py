"""ECG strips as SVG: 25 mm/s and 10 mm/mV on millimetre paper, beat labels above."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.report.numbers import elapsed
from heartlm.report.render import Markup, path_of, render

MM = 4.0
"""Drawing units per millimetre of paper."""

SECOND, MILLIVOLT = 25 * MM, 10 * MM
ROW_S = 10.0
"""Row length in seconds."""

LEAD_IN_S = 0.4
"""Length in seconds of the paper before the signal, for the calibration pulse."""

LANE = 22.0
"""Height of the lane below the paper, for the time."""

BEAT_LANE, RHYTHM_ROW = 30.0, 16.0
"""Heights above the paper: of the beats with their notes, and of each row of rhythms."""

MOST_POINTS_HZ = 260.0
"""Leads with a higher sampling rate are thinned; at 250 Hz, points are 0.1 mm apart."""

_SQUARE_MV = 0.5  # a bold square, 5 mm high
_LABEL_ROOM_MV = 0.45
_ABOVE_MV, _BELOW_MV = (1.3, 5.0), (0.5, 3.5)
"""Minimum and maximum height of the paper above and below a lead's median."""


@dataclass(frozen=True)
class Beat:
    """Marked heartbeat.

    Attributes:
        time_s: time on the strip's time axis in seconds.
        name: AAMI class, None if unlabelled; a band through all leads marks labelled beats other than N.
        note: small text below the class.
        hover: hover text on a page.
    """

    time_s: float
    name: str | None
    note: str = ""
    hover: str = ""


@dataclass(frozen=True)
class Strip:
    """Content of a strip.

    Attributes:
        signal_mv: signal in mV, float `[num_leads, num_samples]`, NaN where missing.
        rate_hz: sampling rate in Hz.
        lead_names: names of the leads.
        start_s: time of the first sample in seconds.
        clock_s: the recorder's clock at time 0 in seconds since midnight; the axis shows clock times then, else times
            since the start of the recording.
        beats: marked heartbeats, None without annotations; beats outside of the strip are ignored.
        rhythms: named intervals (start, stop, name) in seconds; they may extend beyond the strip.
    """

    signal_mv: NDArray[np.floating]
    rate_hz: float
    lead_names: Sequence[str]
    start_s: float = 0.0
    clock_s: float | None = None
    beats: Sequence[Beat] | None = None
    rhythms: Sequence[tuple[float, float, str]] = ()

    @property
    def duration_s(self) -> float:
        """Duration of the signal in seconds."""
        return float(self.signal_mv.shape[1] / self.rate_hz)

    def rows(self) -> list[Strip]:
        """Split into strips of at most `ROW_S` seconds."""
        step = round(ROW_S * self.rate_hz)
        return [
            replace(self, signal_mv=self.signal_mv[:, at : at + step], start_s=self.start_s + at / self.rate_hz)
            for at in range(0, self.signal_mv.shape[1], step)
        ]


def sheet(strip: Strip, label: str) -> Markup:
    """Draw all leads of a strip on one sheet of paper, with its beats and rhythms; `label` is its description."""
    start_s, stop_s, beats = strip.start_s, strip.start_s + strip.duration_s, strip.beats or ()
    rhythms = _rhythm_rows(strip.rhythms, start_s, stop_s)
    top = RHYTHM_ROW * len(rhythms) + (6 if strip.beats is None else BEAT_LANE)
    width, leads = _x(strip.duration_s), _leads(strip, top)
    bottom = leads[-1]["bottom"]
    ahead_s, words = (0.0, elapsed) if strip.clock_s is None else (strip.clock_s, _clock)
    seconds = range(math.ceil(start_s + ahead_s - 1e-9), math.floor(stop_s + ahead_s + 1e-9) + 1)
    return render(
        "strip.svg",
        label=label,
        width=width,
        height=bottom + LANE,
        mm=MM,
        top=top,
        bottom=bottom,
        squares=[(f"square-{mm}mm", _squares(mm * MM, width, top, bottom)) for mm in (1, 5)],
        leads=leads,
        rhythms=[(RHYTHM_ROW * (row + 1) - 3, *span) for row, spans in enumerate(rhythms) for span in spans],
        beats=[(_x(beat.time_s - start_s), beat) for beat in beats if start_s <= beat.time_s < stop_s],
        seconds=[(_x(second - ahead_s - start_s), words(second)) for second in seconds],
    )


def _x(time_s: Any) -> Any:
    """Return the x position of a time since the strip's start, or of an array of times."""
    return (time_s + LEAD_IN_S) * SECOND


def _clock(second: int) -> str:
    minutes, rest = divmod(second % 86400, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"


def _squares(step: float, width: float, top: float, bottom: float) -> str:
    columns = (f"M{x:g} {top:g}V{bottom:g}" for x in np.arange(0, width + 0.1, step))
    across = (f"M0 {y:g}H{width:g}" for y in np.arange(top, bottom + 0.1, step))
    return "".join((*columns, *across))


def _leads(strip: Strip, top: float) -> list[dict[str, Any]]:
    """Stack the leads from top to bottom: position of the median and of the lower border, and paths of the trace.

    The trace is shifted so that its median is at `zero`, as a recorder centres its pen on the lane.
    """
    leads, ceiling = list[dict[str, Any]](), top
    for name, signal in zip(strip.lead_names, strip.signal_mv, strict=True):
        finite = signal[np.isfinite(signal)]
        median = np.median(finite) if len(finite) else 0.0
        highest, lowest = (finite.max() - median, finite.min() - median) if len(finite) else (0.0, 0.0)
        room = _LABEL_ROOM_MV if not leads and strip.beats is not None else 0.1
        zero = ceiling + _paper(float(highest) + room, _ABOVE_MV)
        bottom = zero + _paper(0.1 - float(lowest), _BELOW_MV)
        trace, rate_hz = _thinned(np.asarray(signal - median, np.float64), strip.rate_hz)
        heights = np.clip(zero - trace * MILLIVOLT, ceiling, bottom)
        known = np.flatnonzero(np.isfinite(trace))
        runs = np.split(known, np.flatnonzero(np.diff(known) > 1) + 1)
        traces = [path_of(_x(run / rate_hz), heights[run]) for run in runs if len(run)]
        leads.append({"name": name, "zero": zero, "bottom": bottom, "traces": traces})
        ceiling = bottom
    return leads


def _paper(height_mv: float, limits: tuple[float, float]) -> float:
    """Return the height of the paper for a height in mV: whole bold squares, within limits."""
    return math.ceil(min(max(height_mv, limits[0]), limits[1]) / _SQUARE_MV) * _SQUARE_MV * MILLIVOLT


def _thinned(trace: NDArray[np.float64], rate_hz: float) -> tuple[NDArray[np.float64], float]:
    """Keep the sample furthest from the lead's median in each group, so that no peak is lost."""
    step = math.ceil(rate_hz / MOST_POINTS_HZ)
    if step == 1:
        return trace, rate_hz
    pieces = np.pad(trace, (0, -len(trace) % step), constant_values=np.nan).reshape(-1, step)
    furthest = np.nan_to_num(np.abs(pieces), nan=-1.0).argmax(axis=1)
    return pieces[np.arange(len(pieces)), furthest], rate_hz / step


def _rhythm_rows(
    rhythms: Iterable[tuple[float, float, str]], start_s: float, stop_s: float
) -> list[list[tuple[float, float, str]]]:
    """Return the rhythms as x intervals, in as few rows as possible without overlap of rhythms or their names."""
    rows: list[list[tuple[float, float, str]]] = []
    for begin_s, end_s, name in rhythms:
        left, right = _x(max(begin_s, start_s) - start_s), _x(min(end_s, stop_s) - start_s)
        if left < right:
            free = [row for row in rows if max(row[-1][1], row[-1][0] + 8 * len(row[-1][2])) + 3 <= left]
            if free:
                free[0].append((left, right, name))
            else:
                rows.append([(left, right, name)])
    return rows
