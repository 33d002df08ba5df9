"""Page about one recording, arranged as a Holter report: findings, trends, tables and strips.

Findings ─► context: numbers, charts (holter_charts), strips (holter_strips) ─► templates/holter.html ─► one file
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from heartlm.analysis.findings import Findings
from heartlm.ecg.definitions import ALARMS, KINDS, LETHAL, PATTERNS
from heartlm.ecg.recording import Recording
from heartlm.report import holter_charts as charts
from heartlm.report.holter_strips import SelectedStrips, badness, clock_text, whole_rate, whole_recording
from heartlm.report.holter_waves import waves_context
from heartlm.report.numbers import MISSING
from heartlm.report.render import render

SHORT_S = 60.0
"""Maximum length of a recording that is drawn whole, with all leads, instead of hourly tables and selected strips."""

MOST_EPISODES = 20
"""Maximum number of atrial fibrillation episodes that are listed, the longest first."""


MOST_MARKS = 100
"""Maximum number of notes of the recording that are listed."""


CART_ROWS: dict[str, tuple[str, str, float]] = {
    "rate_bpm": ("Rate", "/min", 5),
    "pr_ms": ("PR", "\u202fms", 20),
    "p_ms": ("P", "\u202fms", 20),
    "qrs_ms": ("QRS", "\u202fms", 16),
    "qt_ms": ("QT", "\u202fms", 30),
    "qtc_ms": ("QTc, Bazett", "\u202fms", 30),
    "axis_degrees": ("Frontal axis", "°", 30),
}
"""Name, unit, and the difference from the machine's value beyond which the page marks it. Algorithms of carts differ by
less in most recordings (Kligfield 2018, doi 10.1016/j.ahj.2018.02.014)."""
CART_FILTERS = {"highpass_hz": "high pass", "lowpass_hz": "low pass", "notch_hz": "notch"}


def holter_page(findings: Findings) -> str:
    """Return the HTML of the page about a recording: one file that makes no network requests.

    Raises:
        HeartlmError: the signal of a strip cannot be read, or Jinja is not installed.
    """
    return render("holter.html", **context(findings))


def context(findings: Findings) -> dict[str, Any]:
    """Return all values of the template."""
    recording, symbol = findings.recording, findings.symbol
    is_short = recording.duration_s <= SHORT_S
    rr_s, readable = np.diff(findings.sample) / recording.rate_hz, findings.readable()
    pairs = readable[1:] & readable[:-1]
    normal = (symbol[2:] == "N") & (symbol[1:-1] == "N") & (symbol[:-2] == "N")
    readable_s = recording.duration_s - findings.seconds_of("unreadable")
    summary, quality = findings.summary(), np.nan_to_num(findings.quality)
    shares = quality.mean(axis=1).tolist() if quality.size else []
    selected, waves = SelectedStrips(findings), waves_context(findings)
    af = sorted(findings.of_kind("AF"), key=lambda event: event.start - event.stop)
    return {
        # for the footer of printed pages: escaped for CSS, since it is in a style sheet
        "record_css": "".join(f"\\{ord(letter):06x}" for letter in str(recording.record_id)),
        "recording": recording,
        "start": recording.clock_time(0),
        "patient": _patient(recording),
        "clock": partial(clock_text, recording),
        "found": findings,
        "summary": summary,
        "findings": [_kind_row(findings, kind) for kind in KINDS if findings.of_kind(kind)],
        "kinds": findings.kinds,
        "patterns": PATTERNS,
        "af": [] if is_short else sorted(af[:MOST_EPISODES], key=lambda event: event.start),
        "absent": [kind for kind, num in summary["events"].items() if num == 0],
        "af_s": findings.seconds_of("AF"),
        "af_burden": None
        if "AF" in findings.unexamined
        else min(1.0, findings.seconds_of("AF") / max(readable_s, 1e-9)),
        "longest_af_s": (af[0].stop - af[0].start) / recording.rate_hz if af else 0.0,
        "is_short": is_short,
        "whole": whole_recording(findings) if is_short else [],
        "trend": None if is_short else charts.trend(findings),
        "poincare": None if is_short else charts.poincare(rr_s[:-1][pairs], rr_s[1:][pairs], normal[pairs]),
        "extremes": [] if is_short else selected.extremes(),
        "strips": [] if is_short else selected.by_kind(),
        "waves": waves,
        "cart": _cart(findings),
        "sheet": [] if waves is None else _sheet(summary, waves["rows"]),
        "hrv": findings.hrv(),
        "hours": findings.hours() if recording.duration_s > 3600 else [],
        "marks": findings.marks()[:MOST_MARKS],
        "num_marks": len(findings.marks()),
        "quality": list(zip(summary["leads"], shares, strict=False)),
    }


def _sheet(summary: dict[str, Any], rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the head of a sheet of twelve leads: rate, intervals, axis and what was found."""
    rate = [] if summary["mean_rate_bpm"] is None else [("Rate", f"{summary['mean_rate_bpm']:.0f}/min")]
    kept = ("PR", "QRS", "QT", "QTc, Framingham", "Frontal axis")
    values = {row["name"]: row["value"] for row in rows}
    kinds = [kind for kind, num in summary["events"].items() if num]
    named = [(name.replace(", Framingham", ""), values[name]) for name in kept if name in values]
    return [*rate, *named, ("Found", ", ".join(kinds) or "no events")]


def _cart(findings: Findings) -> dict[str, Any] | None:
    """Return what the machine wrote, its measurements next to ours; None if it wrote nothing."""
    if (cart := findings.recording.cart) is None:
        return None
    waves = findings.normal_waves()
    ours: dict[str, float | None] = {"rate_bpm": findings.rates()["mean_rate_bpm"]}
    if waves is not None:
        medians = waves.summary()
        ours |= {name: each["median"] for name, each in medians["intervals"].items()}
        ours |= {"qtc_ms": ours["qtc_bazett_ms"], "axis_degrees": medians["axis_degrees"]}
    rows = []
    for key, (name, unit, most) in CART_ROWS.items():
        theirs, own = cart.measured.get(key), ours.get(key)
        if theirs is None:
            continue
        # an axis of 190 degrees is one of -170
        apart = abs(theirs - own) if own is not None else 0.0
        apart = min(apart, 360 - apart) if unit == "°" else apart
        values = [MISSING if each is None else f"{each:.0f}{unit}".replace("-", "−") for each in (theirs, own)]
        rows.append({"name": name, "theirs": values[0], "own": values[1], "differs": own is not None and apart > most})
    filters = ", ".join(f"{CART_FILTERS[name]} {value:g} Hz" for name, value in cart.filters.items())
    return {"wrote": cart, "rows": rows, "filters": filters}


def _patient(recording: Recording) -> list[tuple[str, str]]:
    """Return the patient data of the header that are known, with their names."""
    patient, age = recording.patient, "" if recording.age is None else f"{recording.age} years"
    born = patient.birth_date.isoformat() if patient.birth_date else ""
    fields = ("Name", patient.name), ("Patient code", patient.identifier), ("Sex", patient.sex)
    return [(name, value) for name, value in (*fields, ("Born", born), ("Age", age)) if value]


def _kind_row(findings: Findings, kind: str) -> dict[str, Any]:
    """Return one row of the findings: number, duration, rate, confidence, and position of the worst event."""
    events, rate_hz = findings.of_kind(kind), findings.recording.rate_hz
    rates = [whole_rate(kind, event.rate_bpm) for event in events if math.isfinite(event.rate_bpm)]
    return {
        "kind": kind,
        "is_lethal": ALARMS.get(kind) == LETHAL,
        "num": len(events),
        "total_s": findings.seconds_of(kind),
        "longest_s": max(event.stop - event.start for event in events) / rate_hz,
        "num_beats": max(event.num_beats for event in events),
        "rate_bpm": (min if KINDS[kind].worst == "slowest" else max)(rates, default=None),
        "interval_ms": max((event.interval_ms for event in events if math.isfinite(event.interval_ms)), default=None),
        "confidence": np.mean([event.confidence for event in events]),
        "num_disputed": sum(bool(event.disputed) for event in events),
        "worst_s": max(events, key=badness).start / rate_hz,
    }
