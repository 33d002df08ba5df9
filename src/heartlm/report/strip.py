"""Draw an ECG as a cardiologist expects it: millimetre paper, 25 mm/s, 10 mm/mV, beats lettered, rhythms named.

    Strip (signal, beats, rhythms) ─► strip_figure: rows of ten seconds, true to scale ─► save_figure (PNG, SVG, PDF)
                                   └► draw_strip: onto any axes

matplotlib's object interface is used throughout and no global state is touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.files import atomic_file
from heartlm.report.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MM_PER_S = 25.0
MM_PER_MV = 10.0
ROW_S = 10.0
"""Longer strips are broken into rows of this length."""

LEAD_IN_S = 0.4
"""Paper before the signal, for the calibration pulse."""

PULSE_S, PULSE_MV = (0.08, 0.12, 0.12, 0.32, 0.32, 0.36), (0.0, 0.0, 1.0, 1.0, 0.0, 0.0)
"""Corners of the calibration pulse of 1 mV, in seconds from the paper's edge."""

CLASS_COLOURS: dict[str, str] = {"N": "#33373d", "S": "#0a64ad", "V": "#c8102e", "F": "#7b2cbf", "Q": "#00796b"}
"""Colour of each AAMI class. The letter always stands next to it, so that no meaning depends on colour alone."""

UNLABELLED_COLOUR = "#8b9096"
FORMATS = ("png", "svg", "pdf")

_PAPER, _FINE, _BOLD, _INK, _QUIET = "#fffaf8", "#fadcd8", "#eeb0a9", "#16181c", "#5b6068"
_SQUARE_S, _SQUARE_MV = 0.2, 0.5  # a bold square, 5 mm by 5 mm
_LABEL_ROOM_MV = 0.45
_LANE_ABOVE_MV = (1.3, 5.0)  # least and most paper above a lead's median
_LANE_BELOW_MV = (0.5, 3.5)
_RHYTHM_LANE_MV = 0.5
_SIDE_MM, _HEADING_MM, _TIME_AXIS_MM = 5.0, 10.0, 10.0


@dataclass(frozen=True)
class Beats:
    """Marked heartbeats, one entry a beat in each field.

    Attributes:
        time_s: on the strip's time axis, float64 `[num_beats]`.
        labels: written above each beat.
        colours: of each label.
        banded: whether a band of that colour stands behind the beat, through all leads.
    """

    time_s: NDArray[np.float64]
    labels: Sequence[str]
    colours: Sequence[str]
    banded: Sequence[bool]

    @classmethod
    def of_classes(cls, time_s: NDArray[np.float64], names: Sequence[str | None]) -> Beats:
        """Letter beats by AAMI class, None being unlabelled; bands mark those that are neither N nor unlabelled."""
        return cls(
            time_s,
            labels=[name or "•" for name in names],
            colours=[CLASS_COLOURS.get(name or "", UNLABELLED_COLOUR) for name in names],
            banded=[name not in (None, "N") for name in names],
        )


@dataclass(frozen=True)
class Rhythm:
    """A rhythm's name and its stretch on the strip's time axis."""

    start_s: float
    stop_s: float
    name: str


@dataclass(frozen=True)
class Strip:
    """What is drawn.

    Attributes:
        signal_mv: float `[num_leads, num_samples]`, NaN where there is none.
        rate_hz: samples a second.
        lead_names: one a lead.
        start_s: time of the first sample.
        beats: marked heartbeats; those outside of the strip are left out.
        rhythms: named stretches; they may reach beyond the strip.
    """

    signal_mv: NDArray[np.floating]
    rate_hz: float
    lead_names: Sequence[str]
    start_s: float = 0.0
    beats: Beats | None = None
    rhythms: Sequence[Rhythm] = ()

    @property
    def duration_s(self) -> float:
        """Length of the signal."""
        return float(self.signal_mv.shape[1] / self.rate_hz)

    @property
    def stop_s(self) -> float:
        """Time of the signal's end."""
        return self.start_s + self.duration_s

    def rows(self, row_s: float = ROW_S) -> list[Strip]:
        """Break into strips of at most `row_s` seconds."""
        step = round(row_s * self.rate_hz)
        return [
            replace(self, signal_mv=self.signal_mv[:, at : at + step], start_s=self.start_s + at / self.rate_hz)
            for at in range(0, self.signal_mv.shape[1], step)
        ]


@dataclass(frozen=True)
class Lane:
    """A lead and its place on the paper; all in millivolts on the axes, on which bold grid lines are multiples of 0.5.

    The trace is shifted so that its median lies at `zero`, as the pen of a recorder is centred on its lane.
    """

    name: str
    trace: NDArray[np.floating]
    zero: float
    bottom: float


def strip_figure(strip: Strip, title: str = "") -> Figure:
    """Draw a strip true to scale, in rows of ten seconds.

    Raises:
        HeartlmError: the strip is empty, or matplotlib is not installed.
    """
    if not strip.signal_mv.size:
        raise HeartlmError("there is no signal to draw: the strip has no leads or no samples")
    rows = strip.rows()
    heights_mm = [_height_mv(row) * MM_PER_MV for row in rows]
    width_mm = (min(strip.duration_s, ROW_S) + LEAD_IN_S) * MM_PER_S + 2 * _SIDE_MM
    height_mm = _HEADING_MM + sum(heights_mm) + len(rows) * _TIME_AXIS_MM
    figure = new_figure(width_mm / 25.4, height_mm / 25.4, facecolor="white")
    top_mm = height_mm - _HEADING_MM
    for row, row_mm in zip(rows, heights_mm, strict=True):
        row_width = (row.duration_s + LEAD_IN_S) * MM_PER_S / width_mm
        place = (_SIDE_MM / width_mm, (top_mm - row_mm) / height_mm, row_width, row_mm / height_mm)
        draw_strip(figure.add_axes(place), row)
        top_mm -= row_mm + _TIME_AXIS_MM
    heading = 1 - 0.55 * _HEADING_MM / height_mm
    figure.text(_SIDE_MM / width_mm, heading, title, size=9, weight="bold", color=_INK, va="center")
    figure.text(1 - _SIDE_MM / width_mm, heading, "25 mm/s   10 mm/mV", size=7, color=_QUIET, va="center", ha="right")
    return figure


def draw_strip(axes: Axes, strip: Strip) -> None:
    """Draw all leads of a strip onto `axes`, below one another.

    The scale is that of the axes: make them `(duration_s + 0.4) * 25` mm wide, or call `strip_figure`.
    """
    stacked = lanes(strip)
    bottom = stacked[-1].bottom
    left, top = strip.start_s - LEAD_IN_S, bottom + _height_mv(strip)
    axes.set_xlim(left, strip.stop_s)
    axes.set_ylim(bottom, top)
    _draw_paper(axes, left, strip.stop_s, bottom, top)
    for lane in stacked:
        _draw_lane(axes, lane, strip)
    if strip.beats is not None:
        _draw_beats(axes, strip.beats, stacked[0], strip)
    for rhythm in strip.rhythms:
        _draw_rhythm(axes, rhythm, strip, top)
    _draw_time_axis(axes, strip)


def save_figure(figure: Figure, path: Path, dpi: int = 160) -> None:
    """Write a figure as PNG, SVG or PDF, after the ending of `path`; atomically.

    Raises:
        HeartlmError: another ending, or `path` cannot be written.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise HeartlmError(f"{path}: a picture's name must end in {', '.join(f'.{name}' for name in FORMATS)}")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with atomic_file(path, "wb") as stream:
        figure.savefig(stream, format=kind, dpi=dpi, metadata=undated)


def _squares(height_mv: float, limits: tuple[float, float]) -> float:
    """The height rounded up to whole bold squares, within limits."""
    return math.ceil(min(max(height_mv, limits[0]), limits[1]) / _SQUARE_MV) * _SQUARE_MV


def lanes(strip: Strip) -> list[Lane]:
    """Stack the leads, the first on top, whose upper border is 0 mV."""
    stacked: list[Lane] = []
    top = 0.0
    for index, (name, signal) in enumerate(zip(strip.lead_names, strip.signal_mv, strict=True)):
        finite = signal[np.isfinite(signal)]
        trace = signal - np.median(finite) if len(finite) else signal
        highest, lowest = (np.nanmax(trace), np.nanmin(trace)) if len(finite) else (0.0, 0.0)
        room = _LABEL_ROOM_MV if index == 0 and strip.beats is not None else 0.1
        zero = top - _squares(float(highest) + room, _LANE_ABOVE_MV)
        bottom = zero - _squares(0.1 - float(lowest), _LANE_BELOW_MV)
        stacked.append(Lane(name, trace, zero, bottom))
        top = bottom
    return stacked


def _height_mv(strip: Strip) -> float:
    """Height of the paper: all lanes and, where rhythms are named, the one above them."""
    return (_RHYTHM_LANE_MV if strip.rhythms else 0.0) - lanes(strip)[-1].bottom


def _draw_paper(axes: Axes, left: float, right: float, bottom: float, top: float) -> None:
    axes.set_facecolor(_PAPER)
    for spine in axes.spines.values():
        spine.set(color=_BOLD, linewidth=0.8)
    for colour, width, division in ((_FINE, 0.35, 5), (_BOLD, 0.55, 1)):
        axes.vlines(
            _multiples(_SQUARE_S / division, left, right), bottom, top, colors=colour, linewidths=width, zorder=1
        )
        axes.hlines(
            _multiples(_SQUARE_MV / division, bottom, top), left, right, colors=colour, linewidths=width, zorder=1
        )


def _multiples(step: float, low: float, high: float) -> NDArray[np.floating]:
    """Every multiple of `step` from `low` to `high`."""
    return np.arange(math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6) + 1) * step


def _draw_lane(axes: Axes, lane: Lane, strip: Strip) -> None:
    time_s = strip.start_s + np.arange(len(lane.trace)) / strip.rate_hz
    axes.plot(time_s, lane.trace + lane.zero, color=_INK, linewidth=0.8, solid_joinstyle="round", zorder=4)
    pulse_s = strip.start_s - LEAD_IN_S + np.array(PULSE_S)
    axes.plot(pulse_s, lane.zero + np.array(PULSE_MV), color=_INK, linewidth=0.8, zorder=4)
    _write(axes, strip.start_s - LEAD_IN_S + 0.06, lane.zero + 1.08, lane.name, color=_INK, size=8, va="bottom")
    if not np.isfinite(lane.trace).any():
        _write(axes, strip.start_s + strip.duration_s / 2, lane.zero, "no signal", color=_QUIET, size=8, ha="center")


def _draw_beats(axes: Axes, beats: Beats, lane: Lane, strip: Strip) -> None:
    """Letter each beat above its R peak in the top lead."""
    for time_s, label, colour, banded in zip(beats.time_s, beats.labels, beats.colours, beats.banded, strict=True):
        if not strip.start_s <= time_s < strip.stop_s:
            continue
        if banded:
            axes.axvspan(time_s - 0.15, time_s + 0.15, color=colour, alpha=0.10, linewidth=0, zorder=2)
        around = [round((time_s - strip.start_s + side) * strip.rate_hz) for side in (-0.08, 0.08)]
        peak = lane.trace[max(around[0], 0) : around[1] + 1]
        height = lane.zero + (float(np.nanmax(peak)) if np.isfinite(peak).any() else 0.0)
        _write(axes, time_s, min(height + 0.1, -0.28), label, color=colour, size=8, ha="center", va="bottom")


def _draw_rhythm(axes: Axes, rhythm: Rhythm, strip: Strip, top: float) -> None:
    """Draw a bar with the rhythm's name in the lane above all leads; its ends show where the rhythm begins and ends."""
    start, stop = max(rhythm.start_s, strip.start_s), min(rhythm.stop_s, strip.stop_s)
    if start >= stop:
        return
    middle = top - _RHYTHM_LANE_MV / 2
    axes.hlines(middle, start, stop, colors=_QUIET, linewidths=1.2, zorder=3)
    ends = [end for end, limit in ((rhythm.start_s, start), (rhythm.stop_s, stop)) if end == limit]
    axes.vlines(ends, middle - 0.15, middle + 0.15, colors=_QUIET, linewidths=1.2, zorder=3)
    _write(axes, start + 0.06, middle, rhythm.name, color=_QUIET, size=8, va="center")


def _draw_time_axis(axes: Axes, strip: Strip) -> None:
    seconds = np.arange(math.ceil(strip.start_s - 1e-9), math.floor(strip.stop_s + 1e-9) + 1)
    axes.set_xticks(seconds, [f"{second:d} s" for second in seconds], size=7, color=_QUIET)
    axes.set_yticks([])
    axes.tick_params(axis="x", color=_BOLD, length=2.5, width=0.8, pad=2)


def _write(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """Write on a halo of paper, so that grid and trace do not run through the letters."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2.4, foreground=_PAPER)]
    axes.text(x, y, text, weight="bold", path_effects=halo, zorder=6, clip_on=True, **style)
