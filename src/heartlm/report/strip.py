"""ECG strips as SVG: 25 mm/s and 10 mm/mV, or 5 mm/mV, on millimetre paper, beat labels above."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.report.numbers import elapsed
from heartlm.report.render import Markup, path_of, render

MM = 4.0
"""Drawing units per millimetre of paper."""

SECOND = 25 * MM
GAINS = 10.0, 5.0
"""Usual heights of a millivolt in mm; the second is for paper that would be too high with the first."""
ROW_S = 10.0
"""Row length in seconds."""

LEAD_IN_S = 0.4
"""Length in seconds of the paper before the signal, for the calibration pulse."""

LANE = 18.0
"""Height of the lane below the paper, for the time."""

BEAT_LANE, RHYTHM_ROW = 28.0, 15.0
"""Heights above the paper: of the beats with their notes, and of each row of rhythms."""

MOST_POINTS_HZ = 260.0
"""Leads with a higher sampling rate are thinned; at 250 Hz, points are 0.1 mm apart."""

# Minimum and maximum height of the paper above and below a lead's median; the name needs the minimum.
_ABOVE_MM, _BELOW_MM = (15, 50), (5, 35)
# Distance between the traces of neighbouring lanes, along and across.
_CLEAR_S, _CLEAR_MM = 0.06, 1.0


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
        tallest_mm: height of the paper above which a millivolt is 5 mm high.
        lanes: leads by index in each lane of the paper, one after the other in equal parts of the time; by default
            every lead in its own lane.
    """

    signal_mv: NDArray[np.floating]
    rate_hz: float
    lead_names: Sequence[str]
    start_s: float = 0.0
    clock_s: float | None = None
    beats: Sequence[Beat] | None = None
    rhythms: Sequence[tuple[float, float, str]] = ()
    tallest_mm: float = math.inf
    lanes: Sequence[Sequence[int]] = ()

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
    width = _x(strip.duration_s)
    gain = GAINS[0]
    lanes, bottom = _lanes(strip, top, gain)
    if bottom - top > strip.tallest_mm * MM:
        gain = GAINS[1]
        lanes, bottom = _lanes(strip, top, gain)
    ahead_s, words = (0.0, elapsed) if strip.clock_s is None else (strip.clock_s, _clock)
    # A second at an end is drawn although its sum with the clock is rounded.
    seconds = range(math.ceil(start_s + ahead_s - 1e-9), math.floor(stop_s + ahead_s + 1e-9) + 1)
    return render(
        "strip.svg",
        label=label,
        width=width,
        height=bottom + LANE,
        mm=MM,
        gain=gain,
        top=top,
        bottom=bottom,
        squares=[(f"square-{mm}mm", _squares(mm * MM, width, top, bottom)) for mm in (1, 5)],
        lanes=lanes,
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


def _lanes(strip: Strip, top: float, gain: float) -> tuple[list[dict[str, Any]], float]:
    """Stack the lanes below `top`; return position of the median, names and paths of each, and the lower border.

    A trace is shifted so that its median is at `zero`, as a recorder centres its pen. A lane is as far below the one
    above it as their traces need at any moment, so that tall beats of one reach into free paper of the other.
    """
    num, lanes, zero = strip.signal_mv.shape[1], list[dict[str, Any]](), top
    above = np.zeros(num)  # depth of the trace of the lane above, in mm below its median
    reach = max(1, 2 * round(_CLEAR_S * strip.rate_hz) + 1)
    for row in strip.lanes or [(lead,) for lead in range(len(strip.lead_names))]:
        edges = np.linspace(0, num, len(row) + 1).astype(int)
        trace, names = np.full(num, np.nan), list[tuple[float, str]]()
        for lead, first, last in zip(row, edges[:-1], edges[1:], strict=True):
            signal = strip.signal_mv[lead]
            if np.isfinite(signal).any():
                trace[first:last] = gain * (signal[first:last] - np.nanmedian(signal))
            names.append((4.0 if first == 0 else _x(first / strip.rate_hz) + 4, strip.lead_names[lead]))
        trace = np.clip(trace, -_BELOW_MM[1], _ABOVE_MM[1])
        filled = np.nan_to_num(trace)
        if lanes:
            distance = float((_highest_near(above, reach) + filled).max(initial=0)) + _CLEAR_MM
            zero += MM * math.ceil(max(distance, _ABOVE_MM[0] + _BELOW_MM[0]))
        else:
            zero += MM * math.ceil(np.clip(filled.max(initial=0) + _CLEAR_MM, *_ABOVE_MM))
        above = -filled
        thin, rate_hz = _thinned(trace, strip.rate_hz)
        known = np.flatnonzero(np.isfinite(thin))
        cuts = np.diff(known) > 1
        cuts |= np.isin(known[1:], np.ceil(edges[1:-1] * (rate_hz / strip.rate_hz)))  # leads are not joined
        heights = zero - thin * MM
        runs = np.split(known, np.flatnonzero(cuts) + 1)
        traces = [path_of(_x(run / rate_hz), heights[run]) for run in runs if len(run)]
        lanes.append({"names": names, "zero": zero, "traces": traces})
    return lanes, zero + MM * math.ceil(np.clip(above.max(initial=0) + _CLEAR_MM, *_BELOW_MM))


def _thinned(trace: NDArray[np.float64], rate_hz: float) -> tuple[NDArray[np.float64], float]:
    """Keep the sample furthest from the lead's median in each group, so that no peak is lost."""
    step = math.ceil(rate_hz / MOST_POINTS_HZ)
    if step == 1:
        return trace, rate_hz
    pieces = np.pad(trace, (0, -len(trace) % step), constant_values=np.nan).reshape(-1, step)
    furthest = np.nan_to_num(np.abs(pieces), nan=-1.0).argmax(axis=1)
    return pieces[np.arange(len(pieces)), furthest], rate_hz / step


def _rhythm_rows(
    rhythms: Sequence[tuple[float, float, str]], start_s: float, stop_s: float
) -> list[list[tuple[float, float, str]]]:
    """Return the rhythms as x intervals, in as few rows as possible without overlap of rhythms or their names.

    Those of the whole strip share a row.
    """
    rows: list[list[tuple[float, float, str]]] = []
    whole = {name: None for begin_s, end_s, name in rhythms if begin_s <= start_s and stop_s <= end_s}
    parts = [each for each in rhythms if each[2] not in whole]
    for begin_s, end_s, name in [*([(start_s, stop_s, ", ".join(whole))] if whole else []), *parts]:
        left, right = _x(max(begin_s, start_s) - start_s), _x(min(end_s, stop_s) - start_s)
        if left < right:
            free = [row for row in rows if max(row[-1][1], row[-1][0] + 8 * len(row[-1][2])) + 3 <= left]
            if free:
                free[0].append((left, right, name))
            else:
                rows.append([(left, right, name)])
    return rows


def _highest_near(heights: NDArray[np.float64], reach: int) -> NDArray[np.float64]:
    """Return the running maximum over `reach` values around each."""
    padded = np.pad(heights, (reach // 2, (reach - 1) // 2), constant_values=-np.inf)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, reach).max(axis=1))
