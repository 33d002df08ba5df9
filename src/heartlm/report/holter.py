"""Page about one recording, arranged as a Holter report: findings, trends, tables and strips.

Findings ─► context: numbers, charts (holter_charts), strips read in slices ─► templates/holter.html ─► one file
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from heartlm.analysis import hrv
from heartlm.analysis.findings import KINDS, RATE_INTERVALS, Event, Findings
from heartlm.ecg.recording import Recording
from heartlm.report import holter_charts as charts
from heartlm.report.numbers import MISSING, duration, elapsed, percent
from heartlm.report.render import render
from heartlm.report.strip import ROW_S, Beat, Strip, sheet

SHORT_S = 60.0
"""Maximum length of a recording that is drawn whole, with all leads, instead of hourly tables and selected strips."""

STRIP_S = 7.0
"""Length of a selected strip, which fits the width of A4 paper at 25 mm/s."""

LEADS_PER_STRIP, STRIPS_PER_KIND = 2, 3
MOST_EPISODES = 20
"""Maximum number of atrial fibrillation episodes that are listed, the longest first."""

_SLOW, _LONG = ("bradycardia",), ("VF", "asystole", "pause", "flutter", "AF", "bigeminy", "trigeminy", "unreadable")


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
    af = sorted(findings.of_kind("AF"), key=lambda event: event.start - event.stop)
    return {
        # for the footer of printed pages: escaped for CSS, since it is in a style sheet
        "record_css": "".join(f"\\{ord(letter):06x}" for letter in str(recording.record_id)),
        "recording": recording,
        "start": recording.clock_time(0),
        "patient": _patient(recording),
        "clock": partial(_clock, recording),
        "found": findings,
        "summary": summary,
        "findings": [_kind_row(findings, kind) for kind in KINDS if findings.of_kind(kind)],
        "kinds": KINDS,
        "af": [] if is_short else sorted(af[:MOST_EPISODES], key=lambda event: event.start),
        "af_s": findings.seconds_of("AF"),
        "af_burden": min(1.0, findings.seconds_of("AF") / readable_s) if readable_s > 0 else 0.0,
        "longest_af_s": (af[0].stop - af[0].start) / recording.rate_hz if af else 0.0,
        "is_short": is_short,
        "whole": _whole(findings) if is_short else [],
        "trend": None if is_short else charts.trend(findings),
        "poincare": None if is_short else charts.poincare(rr_s[:-1][pairs], rr_s[1:][pairs], normal[pairs]),
        "extremes": [] if is_short else _extremes(findings),
        "strips": [] if is_short else _strips_by_kind(findings),
        "hrv": hrv.variability(findings),
        "fewest_intervals": hrv.FEWEST_INTERVALS,
        "hours": findings.hours() if recording.duration_s > 3600 else [],
        "quality": list(zip(summary["leads"], shares, strict=False)),
    }


def _clock(recording: Recording, elapsed_s: float, decimals: int = 0) -> str:
    """Return the clock time, without the date if the recording has a single one; empty if the start is unknown."""
    text = recording.clock_time(elapsed_s, decimals) or ""
    first, last = ((recording.clock_time(at) or "").partition(" ")[0] for at in (0, recording.duration_s))
    return text.partition(" ")[2] if isinstance(recording.start, datetime) and first == last else text


def _time(recording: Recording, elapsed_s: float, decimals: int = 0) -> str:
    """Return the clock time and the time since the start: `13:05:10 (+5:10)`, `+5:10` if the start is unknown."""
    clock, since = _clock(recording, elapsed_s, decimals), elapsed(elapsed_s, decimals)
    return f"{clock} ({since})" if clock else since


def _patient(recording: Recording) -> list[tuple[str, str]]:
    """Return the patient data of the header that are known, with their names."""
    patient, age = recording.patient, "" if recording.age is None else f"{recording.age} years"
    born = patient.birth_date.isoformat() if patient.birth_date else ""
    fields = ("Name", patient.name), ("Patient code", patient.identifier), ("Sex", patient.sex)
    return [(name, value) for name, value in (*fields, ("Born", born), ("Age", age)) if value]


def _kind_row(findings: Findings, kind: str) -> dict[str, Any]:
    """Return one row of the findings: number, duration, rate, confidence, and position of the worst event."""
    events, rate_hz = findings.of_kind(kind), findings.recording.rate_hz
    rates = [event.rate_bpm for event in events if math.isfinite(event.rate_bpm)]
    return {
        "kind": kind,
        "num": len(events),
        "total_s": findings.seconds_of(kind),
        "longest_s": max(event.stop - event.start for event in events) / rate_hz,
        "num_beats": max(event.num_beats for event in events),
        "rate_bpm": (min if kind in _SLOW else max)(rates, default=None),
        "confidence": np.mean([event.confidence for event in events]),
        "worst_s": max(events, key=_badness).start / rate_hz,
    }


def _badness(event: Event) -> tuple[float, float]:
    """Return the sort key of events of a kind: by duration, high rate or low rate, then by confidence."""
    rate = event.rate_bpm if math.isfinite(event.rate_bpm) else 0.0
    if event.kind in _LONG:
        return event.stop - event.start, event.confidence
    return -rate if event.kind in _SLOW else rate, event.confidence


def _extremes(findings: Findings) -> list[dict[str, Any]]:
    """Return strips of the longest RR interval, the slowest rate and the fastest rate."""
    sample, rate_hz, places = findings.sample, findings.recording.rate_hz, list[tuple[str, int, int]]()
    rr, means = np.where(findings.readable(), np.diff(sample), -1), findings.mean_rr_s()
    if len(rr) and rr.max() >= 0:
        beat = int(rr.argmax())
        places.append((f"Longest RR interval: {rr[beat] / rate_hz:.2f} s", beat, beat + 1))
    if np.isfinite(means).any():
        for words, beat in (("Slowest", int(np.nanargmax(means))), ("Fastest", int(np.nanargmin(means)))):
            title = f"{words} rate: {60 / means[beat]:.0f}/min over {RATE_INTERVALS} intervals"
            places.append((title, beat, beat + RATE_INTERVALS))
    figures = []
    for title, first, last in places:
        title += f", at {_time(findings.recording, sample[first] / rate_hz)}"
        start = int(sample[first] + sample[last] - _strip_samples(findings)) // 2
        figures.append(_figure(findings, title, start))
    return figures


def _strips_by_kind(findings: Findings) -> list[dict[str, Any]]:
    """Return strips of the worst events of each kind, by time; strips of one kind do not overlap."""
    sections, rate_hz, strip = [], findings.recording.rate_hz, _strip_samples(findings)
    for kind in KINDS:
        chosen: dict[int, Event] = {}
        for event in sorted(findings.of_kind(kind), key=_badness, reverse=True):
            length = event.stop - event.start
            # a short event is centred; for a long event the strip shows its start
            start = (event.start + event.stop - strip) // 2 if length < strip else event.start - strip // 5
            if all(abs(start - other) >= strip for other in chosen) and len(chosen) < STRIPS_PER_KIND:
                chosen[start] = event
        figures = []
        for start, event in sorted(chosen.items()):
            lasts, rate = duration((event.stop - event.start) / rate_hz), event.rate_bpm
            title = f"{_time(findings.recording, event.start / rate_hz)}, {lasts}, {event.num_beats} beats"
            title += f", {rate:.0f}/min" if math.isfinite(rate) else ""
            figures.append(_figure(findings, title, start, f"confidence {percent(event.confidence, 0)}"))
        if figures:
            sections.append({"kind": kind, "num": len(findings.of_kind(kind)), "figures": figures})
    return sections


def _strip_samples(findings: Findings) -> int:
    return min(round(STRIP_S * findings.recording.rate_hz), findings.recording.num_samples)


def _figure(findings: Findings, title: str, start: int, note: str = "") -> dict[str, Any]:
    """Return a strip of the best leads with its texts; `start` is moved so that the strip lies within the recording."""
    length = _strip_samples(findings)
    start = max(0, min(start, findings.recording.num_samples - length))
    return _strip(findings, start, start + length, findings.leads[:LEADS_PER_STRIP], title, note)


def _whole(findings: Findings) -> list[dict[str, Any]]:
    """Return the whole recording with all leads, in rows."""
    recording, rate_hz = findings.recording, findings.recording.rate_hz
    starts = range(0, recording.num_samples, round(ROW_S * rate_hz))
    rows, leads = pairwise([*starts, recording.num_samples]), range(recording.num_leads)
    return [_strip(findings, *row, leads, f"{row[0] / rate_hz:g} to {row[1] / rate_hz:g} s") for row in rows]


def _strip(
    findings: Findings, start: int, stop: int, leads: Sequence[int], title: str, note: str = ""
) -> dict[str, Any]:
    """Read and draw a section; `drawing` is None if it has no signal."""
    recording, rate_hz, drawing = findings.recording, findings.recording.rate_hz, None
    if recording.has_signal and leads and start < stop:
        own, beats = slice(*np.searchsorted(findings.sample, [start, stop])), list[Beat]()
        found = (findings.sample[own] / rate_hz, findings.symbol[own], findings.probability[own])
        for time_s, name, each in zip(*found, strict=True):
            sure = str(min(int(100 * each), 99)) if math.isfinite(each) else MISSING
            beats.append(Beat(float(time_s), str(name), sure, f"{_time(recording, time_s, 2)}: {name}, {sure} %"))
        names = [recording.lead_names[lead] for lead in leads]
        rhythms = [(event.start / rate_hz, event.stop / rate_hz, event.kind) for event in findings.events]
        signal, clock_s = recording.signal(start, stop, leads), charts.seconds_since_midnight(recording)
        strip = Strip(signal, rate_hz, names, start / rate_hz, clock_s, beats, rhythms)
        label = (
            f"ECG strip at {_time(recording, start / rate_hz)}, leads {', '.join(names)}, {len(beats)} beats. {title}"
        )
        drawing = sheet(strip, label)
    return {"title": title, "note": note, "drawing": drawing}
