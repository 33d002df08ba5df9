"""Page about one recording, arranged as a Holter report: findings, trends, tables and strips.

Findings ─► context: numbers, charts (holter_charts), strips read in slices ─► templates/holter.html ─► one file
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heartlm.analysis import hrv
from heartlm.analysis.findings import KINDS, RATE_INTERVALS, Event, Findings
from heartlm.report import holter_charts as charts
from heartlm.report.numbers import MISSING, clock, count, decimal, duration, percent
from heartlm.report.page import render
from heartlm.report.strip import Beats, Rhythm, Strip
from heartlm.report.svg import Markup
from heartlm.report.svg_strip import sheet

SHORT_S = 60.0
"""Maximum length of a recording that is drawn whole, with all leads, instead of hourly tables and selected strips."""

ROW_S, STRIP_S = 10.0, 7.0
"""Lengths of a row of a whole recording and of a selected strip; both fit the width of A4 paper at 25 mm/s."""

LEADS_PER_STRIP, STRIPS_PER_KIND = 2, 3
MOST_EPISODES = 20
"""Maximum number of atrial fibrillation episodes that are listed, the longest first."""

_SLOW, _LONG = ("bradycardia",), ("VF", "asystole", "pause", "flutter", "AF", "bigeminy", "trigeminy", "unreadable")


def holter_page(findings: Findings) -> str:
    """Return the HTML of the page about a recording: one file that makes no network requests.

    Raises:
        HeartlmError: the signal of a strip cannot be read, or Jinja is not installed.
    """
    return render("holter.html", context(findings))


def context(findings: Findings) -> dict[str, Any]:
    """Return all values of the template, arranged and formatted."""
    recording = findings.recording
    is_short = recording.duration_s <= SHORT_S
    rr_s, readable = np.diff(findings.sample) / recording.rate_hz, findings.readable()
    normal = (findings.symbol[1:] == "N") & (findings.symbol[:-1] == "N")
    pairs = readable[1:] & readable[:-1]
    readable_s = recording.duration_s - findings.seconds_of("unreadable")
    hours = findings.hours() if recording.duration_s > 3600 else []
    shown = {
        "record": str(recording.record_id),
        # for the footer of printed pages: escaped for CSS, since it is in a style sheet
        "record_css": "".join(f"\\{ord(letter):06x}" for letter in str(recording.record_id)),
        "recording": recording,
        "summary": findings.summary(),
        "findings": [_kind_row(findings, kind) for kind in KINDS if findings.of_kind(kind)],
        "absent": [kind for kind in KINDS if not findings.of_kind(kind)],
        "kinds": KINDS,
        "af_s": findings.seconds_of("AF"),
        "af_burden": min(1.0, findings.seconds_of("AF") / readable_s) if readable_s > 0 else 0.0,
        "longest_af_s": max((event.stop - event.start for event in findings.of_kind("AF")), default=0)
        / recording.rate_hz,
        "is_short": is_short,
        "whole": _whole(findings) if is_short else [],
        **dict.fromkeys(("trend", "histogram", "poincare", "af", "extremes", "strips")),
        "hrv": _variability(findings),
        "hours": hours,
        "has_signal": recording.has_signal,
        "quality": charts.quality(findings),
        "notes": findings.notes,
        "unlike": findings.unlike,
        "made_by": findings.made_by,
    }
    if not is_short:
        longest = sorted(findings.of_kind("AF"), key=lambda event: event.start - event.stop)[:MOST_EPISODES]
        shown |= {
            "trend": charts.trend(findings),
            "histogram": charts.histogram(rr_s[readable], normal[readable]),
            "poincare": charts.poincare(rr_s[:-1][pairs], rr_s[1:][pairs], (normal[1:] & normal[:-1])[pairs]),
            "af": sorted(longest, key=lambda event: event.start),
            "extremes": _extremes(findings),
            "strips": _strips_by_kind(findings),
        }
    return shown


def _kind_row(findings: Findings, kind: str) -> dict[str, str]:
    """Return one row of the findings: number, duration, rate, confidence, and position of the worst event."""
    events, rate_hz = findings.of_kind(kind), findings.recording.rate_hz
    rates = [event.rate_bpm for event in events if math.isfinite(event.rate_bpm)]
    extreme = min if kind in _SLOW else max
    worst = max(events, key=_badness(kind))
    confidences = [event.confidence for event in events if math.isfinite(event.confidence)]
    return {
        "kind": kind,
        "meaning": KINDS[kind],
        "num": count(len(events)),
        "total": duration(findings.seconds_of(kind)),
        "longest": duration(max(event.stop - event.start for event in events) / rate_hz),
        "beats": count(max(event.num_beats for event in events)),
        "rate": count(extreme(rates)) if rates else MISSING,
        "confidence": percent(np.mean(confidences), 0) if confidences else MISSING,
        "worst": clock(worst.start / rate_hz),
    }


def _badness(kind: str) -> Callable[[Event], tuple[float, float]]:
    """Return the sort key of events of a kind: by duration, high rate or low rate, then by confidence."""

    def of(event: Event) -> tuple[float, float]:
        rate = event.rate_bpm if math.isfinite(event.rate_bpm) else 0.0
        length = event.stop - event.start
        return length if kind in _LONG else -rate if kind in _SLOW else rate, event.confidence

    return of


def _variability(findings: Findings) -> dict[str, Any]:
    """Return rows of heart rate variability, or the reason why there are none."""
    found = hrv.variability(findings)
    if not found:
        num = len(hrv.normal_intervals(findings)[0])
        return {
            "rows": [],
            "why": f"Not computed: {count(num)} intervals between normal beats outside of atrial fibrillation; "
            f"{hrv.FEWEST_INTERVALS} or more are needed.",
        }
    names = {
        "sdnn_ms": ("SDNN", "ms", "of all NN intervals"),
        "sdann_ms": ("SDANN", "ms", "of the means of 5 minutes"),
        "sdnn_index_ms": ("SDNN index", "ms", "mean of the SDNN of 5 minutes"),
        "rmssd_ms": ("RMSSD", "ms", "of successive differences"),
        "pnn50_pct": ("pNN50", "%", "differences above 50 ms"),
        "lf_ms2": ("LF", "ms²", "0.04 to 0.15 Hz"),
        "hf_ms2": ("HF", "ms²", "0.15 to 0.40 Hz"),
        "lf_hf": ("LF/HF", "", "median of 5-minute pieces"),
    }
    rows = [
        (
            name,
            f"{decimal(found[key], 2 if key == 'lf_hf' else 0)} {unit}".strip() if key in found else MISSING,
            meaning,
        )
        for key, (name, unit, meaning) in names.items()
    ]
    intervals, pieces, spectra = (count(found[f"num_{name}"]) for name in ("intervals", "pieces", "spectra"))
    note = (
        f"From {intervals} intervals between normal beats; {pieces} full pieces of 5 minutes, {spectra} of them with "
        "a spectrum by NeuroKit2. Intervals in atrial fibrillation, in unreadable stretches and outside of 0.3 to 2 s "
        "are left out."
    )
    if found["num_pieces"] and not found["num_spectra"]:
        note += " LF and HF need the package neurokit2: pip install 'heartlm[analyze]'."
    return {"rows": rows, "note": note}


def _extremes(findings: Findings) -> list[dict[str, Any]]:
    """Return strips of the longest RR interval, the slowest rate and the fastest rate."""
    sample, rate_hz = findings.sample, findings.recording.rate_hz
    places: list[tuple[str, int, int]] = []
    rr = np.where(findings.readable(), np.diff(sample), -1)
    if len(rr) and rr.max() >= 0:
        beat = int(rr.argmax())
        words = f"Longest RR interval: {rr[beat] / rate_hz:.2f} s"
        places.append((words, int(sample[beat]), int(sample[beat + 1])))
    means = findings.mean_rr_s()
    if np.isfinite(means).any():
        for words, beat in (("Slowest", int(np.nanargmax(means))), ("Fastest", int(np.nanargmin(means)))):
            title = f"{words} rate: {60 / means[beat]:.0f}/min over {RATE_INTERVALS} intervals"
            places.append((title, int(sample[beat]), int(sample[beat + RATE_INTERVALS])))
    return [
        _figure(findings, title, (start + stop) // 2 - _strip_samples(findings) // 2) for title, start, stop in places
    ]


def _strips_by_kind(findings: Findings) -> list[dict[str, Any]]:
    """Return strips of the worst events of each kind, by time; strips of one kind do not overlap."""
    sections, rate_hz, strip = [], findings.recording.rate_hz, _strip_samples(findings)
    for kind in KINDS:
        chosen: dict[int, Event] = {}
        for event in sorted(findings.of_kind(kind), key=_badness(kind), reverse=True):
            length = event.stop - event.start
            # a short event is centred; for a long event the strip shows its start
            start = (event.start + event.stop - strip) // 2 if length < strip else event.start - strip // 5
            if all(abs(start - other) >= strip for other in chosen):
                chosen[start] = event
            if len(chosen) == STRIPS_PER_KIND:
                break
        figures = []
        for start, event in sorted(chosen.items()):
            seconds = duration((event.stop - event.start) / rate_hz)
            parts = [clock(event.start / rate_hz), seconds, _beats(event.num_beats)]
            if math.isfinite(event.rate_bpm):
                parts.append(f"{event.rate_bpm:.0f}/min")
            figures.append(_figure(findings, ", ".join(parts), start, f"confidence {percent(event.confidence, 0)}"))
        if figures:
            num = len(findings.of_kind(kind))
            sections.append({"kind": kind, "meaning": KINDS[kind], "num": num, "figures": figures})
    return sections


def _beats(num: int) -> str:
    return f"{count(num) if num else 'no'} beat{'' if num == 1 else 's'}"


def _strip_samples(findings: Findings) -> int:
    return min(round(STRIP_S * findings.recording.rate_hz), findings.recording.num_samples)


def _figure(findings: Findings, title: str, start: int, note: str = "") -> dict[str, Any]:
    """Return a strip of the best leads with its texts; `start` is moved so that the strip lies within the recording."""
    length = _strip_samples(findings)
    start = max(0, min(start, findings.recording.num_samples - length))
    return {
        "title": title,
        "note": note,
        "drawing": _draw(findings, start, start + length, findings.leads[:LEADS_PER_STRIP], title),
    }


def _whole(findings: Findings) -> list[dict[str, Any]]:
    """Return the whole recording with all leads, in rows."""
    recording, rows = findings.recording, []
    step = round(ROW_S * recording.rate_hz)
    for start in range(0, recording.num_samples, step):
        stop = min(start + step, recording.num_samples)
        title = f"{start / recording.rate_hz:g} to {stop / recording.rate_hz:g} s"
        rows.append(
            {"title": title, "note": "", "drawing": _draw(findings, start, stop, range(recording.num_leads), title)}
        )
    return rows


def _draw(findings: Findings, start: int, stop: int, leads: Sequence[int], title: str) -> Markup | None:
    """Read and draw a section; return None if it has no signal."""
    recording, rate_hz = findings.recording, findings.recording.rate_hz
    if not recording.has_signal or not leads or start >= stop:
        return None
    first, last = np.searchsorted(findings.sample, [start, stop])
    beats = Beats.of_classes(findings.sample[first:last] / rate_hz, findings.symbol[first:last].tolist())
    probability = findings.probability[first:last]
    sure = [str(min(int(100 * each), 99)) if math.isfinite(each) else MISSING for each in probability]
    words = zip(beats.time_s, beats.labels, sure, strict=True)
    hovers = [f"{clock(time_s, 2)}: {name}, {part} %" for time_s, name, part in words]
    strip = Strip(
        recording.signal(start, stop, leads),
        rate_hz,
        [recording.lead_names[lead] for lead in leads],
        start / rate_hz,
        replace(beats, notes=sure, hovers=hovers),
        [
            Rhythm(event.start / rate_hz, event.stop / rate_hz, event.kind)
            for event in findings.events
            if event.start < stop and event.stop > start
        ],
    )
    found = _beats(int(last - first))
    label = f"ECG strip at {clock(start / rate_hz)}, leads {', '.join(strip.lead_names)}, {found}. {title}"
    return sheet(strip, label)
