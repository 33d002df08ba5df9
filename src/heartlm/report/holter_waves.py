"""Waves and intervals on the page about a recording: a table of medians, trends, and the median beat of each lead."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.conduction import FEWEST_BEATS
from heartlm.analysis.findings import Findings
from heartlm.delineation.intervals import Intervals
from heartlm.delineation.median_beats import AFTER_S, BEFORE_S, MedianBeat, median_beats
from heartlm.report.charts import Series, line_chart
from heartlm.report.render import Markup, path_of, render

SHORTEST_TREND_S, SHORTEST_BIN_S, MOST_BINS = 600.0, 60.0, 96
"""Least duration of a recording with trends, least length of a bin of a trend, and maximum number of bins."""
_PX_PER_S, _HEIGHT, _TALLEST, _MOST_PX_PER_MV = 200.0, 150.0, 108.0, 60.0

USUAL: dict[str, tuple[str, float | None, float | None, str]] = {
    "pr_ms": ("PR", 120, 200, "ms"),
    "p_ms": ("P", None, 120, "ms"),
    "qrs_ms": ("QRS", None, 110, "ms"),
    "qt_ms": ("QT", None, None, "ms"),
    "qtc_bazett_ms": ("QTc, Bazett", 350, 460, "ms"),
    "qtc_fridericia_ms": ("QTc, Fridericia", 350, 460, "ms"),
    "qtc_framingham_ms": ("QTc, Framingham", 350, 460, "ms"),
    "qtc_hodges_ms": ("QTc, Hodges", 350, 460, "ms"),
}
"""Name, and usual limits in adults (AHA/ACCF/HRS recommendations 2009; QTc of women, 450 ms in men)."""
USUAL_QTC_OF_MEN_MS = 450.0
USUAL_AXIS = (-30, 90)


def waves_context(findings: Findings) -> dict[str, Any] | None:
    """Return the intervals and the median beats; None if no waves were measured.

    Raises:
        HeartlmError: the signal cannot be read.
    """
    waves = findings.normal_waves()
    if waves is None or findings.waves is None:
        return None
    normal = findings.symbol == "N"
    beats = median_beats(findings.waves.delineation, normal if normal.any() else ~normal)
    drawings = [(beat.lead, _drawing(beat, beats)) for beat in beats]
    return {"rows": _rows(waves), "trends": _trends(waves), "beats": drawings}


def _rows(measured: Intervals) -> list[dict[str, Any]]:
    """Return a row for each interval that some beat has."""
    summary = measured.summary()
    rows = []
    for key, (name, low, high, unit) in USUAL.items():
        values = summary["intervals"][key]
        if key.startswith("qtc") and measured.delineation.recording.patient.sex == "male":
            high = USUAL_QTC_OF_MEN_MS
        if values["beats"]:
            rows.append(_row(name, values["median"], low, high, unit, values["quartiles"], values["beats"]))
    if summary["axis_degrees"] is not None:
        rows.append(_row("Frontal axis", summary["axis_degrees"], *USUAL_AXIS, "°", None, None))
    return rows


def _trends(measured: Intervals) -> list[tuple[str, str, Markup]]:
    """Return title, caption and drawing of QTc, PR and ST over time, of a recording of `SHORTEST_TREND_S` or more."""
    delineation = measured.delineation
    duration_s, rate_hz = delineation.recording.duration_s, delineation.recording.rate_hz
    if duration_s < SHORTEST_TREND_S:
        return []
    num_bins = int(min(MOST_BINS, duration_s // SHORTEST_BIN_S))
    bin_index = np.minimum((delineation.beats / rate_hz / duration_s * num_bins).astype(np.int64), num_bins - 1)
    unit, unit_s = ("hours", 3600) if duration_s >= 7200 else ("minutes", 60)
    centres = (np.arange(num_bins) + 0.5) * duration_s / num_bins / unit_s

    def series(name: str, values: NDArray[np.float64], class_name: str) -> Series:
        known = ~np.isnan(values)
        bins, first = np.unique(bin_index[known], return_index=True)
        parts = zip(centres[bins].tolist(), np.split(values[known], first[1:]), strict=True) if len(bins) else ()
        medians = [(centre, float(np.median(part))) for centre, part in parts if len(part) >= FEWEST_BEATS]
        return Series(name, [centre for centre, _ in medians], [median for _, median in medians], class_name)

    intervals = measured.intervals
    qtc = [series("Bazett", intervals["qtc_bazett_ms"], "grey-3")]
    qtc.append(series("Framingham", intervals["qtc_framingham_ms"], "accent"))
    levels = [
        series(lead, measured.amplitudes["st80_mv"][:, number], f"tone-{number % 8}")
        for number, lead in enumerate(delineation.lead_names)
    ]
    caption = f"Median of the normal beats in each bin of {FEWEST_BEATS} or more."
    of_level = "80 ms after the QRS complex, relative to the level before it; median of the normal beats in each bin."
    charts = (
        ("QTc", "ms", caption, qtc),
        ("PR", "ms", caption, [series("PR", intervals["pr_ms"], "accent")]),
        ("ST level", "mV", of_level, levels),
    )
    drawn = [
        (f"{name} over time", words, line_chart(curves, title=f"{name}, {of_y}", along=f"{unit} since the start"))
        for name, of_y, words, curves in charts
    ]
    return [(title, words, drawing) for title, words, drawing in drawn if drawing is not None]


def _row(
    name: str,
    median: float,
    low: float | None,
    high: float | None,
    unit: str,
    quartiles: list[float] | None,
    num_beats: int | None,
) -> dict[str, Any]:
    value = round(median)
    if low is None:
        usual = "" if high is None else f"up to {high:g} {unit}"
    else:
        usual = f"{low:g} to {high:g} {unit}".replace("-", "−")
    spread = "" if quartiles is None else f"{quartiles[0]:.0f} to {quartiles[1]:.0f}"
    usual, shown = usual.replace(" °", "°"), f"{value:g} {unit}".replace("-", "−").replace(" °", "°")
    verdict = "below" if low is not None and value < low else "above" if high is not None and value > high else ""
    return {"name": name, "value": shown, "usual": usual, "spread": spread, "beats": num_beats, "verdict": verdict}


def _drawing(beat: MedianBeat, beats: list[MedianBeat]) -> Markup:
    """Draw a median beat, at the scale of all of them."""
    low, high = (float(f([f(each.values_mv[~np.isnan(each.values_mv)]) for each in beats])) for f in (np.min, np.max))
    px_per_mv = min(_MOST_PX_PER_MV, _TALLEST / max(high - low, 1e-3))
    zero = 24 + min(max(high, 0) * px_per_mv, _TALLEST)
    time_s = np.linspace(-BEFORE_S, AFTER_S, len(beat.values_mv))
    known = ~np.isnan(beat.values_mv)
    bands = [
        (name, (first + BEFORE_S) * _PX_PER_S, (last - first) * _PX_PER_S, round(1000 * (last - first)))
        for name, (first, last) in zip(("P", "QRS", "T"), beat.marks_s.tolist(), strict=True)
        if first == first and last == last
    ]
    return render(
        "median_beat.svg",
        lead=beat.lead,
        width=(BEFORE_S + AFTER_S) * _PX_PER_S,
        height=_HEIGHT,
        zero=zero,
        mv=px_per_mv,
        bands=bands,
        path=path_of((time_s[known] + BEFORE_S) * _PX_PER_S, zero - beat.values_mv[known] * px_per_mv),
    )
