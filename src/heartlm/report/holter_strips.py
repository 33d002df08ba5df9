"""Strips of a Holter page: extremes, the worst events of each kind, or a short recording as a whole.

Signals are read in slices. A strip that shows another event too is drawn once and referred to by its number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np

from heartlm.analysis.findings import RATE_INTERVALS, Event, Findings
from heartlm.ecg.definitions import KINDS
from heartlm.ecg.recording import Recording
from heartlm.report.holter_charts import seconds_since_midnight
from heartlm.report.numbers import MISSING, duration, elapsed, percent
from heartlm.report.strip import ROW_S, Beat, Strip, sheet

STRIP_S = 7.0
"""Length of a selected strip, which fits the width of A4 paper at 25 mm/s."""

LEADS_PER_STRIP, STRIPS_PER_KIND = 2, 3
TALLEST_MM, TALLEST_TWELVE_MM = 110.0, 135.0
"""Highest paper at 10 mm/mV, so that two strips, or a row of twelve leads with its heading, fit a page of A4."""
# Least distance of an event from the ends of a strip that shows it.
_MARGIN_S = 0.3

TWELVE_LEADS = ("I", "AVR", "V1", "V4"), ("II", "AVL", "V2", "V5"), ("III", "AVF", "V3", "V6"), ("II",)
"""Usual layout of twelve leads on paper: three lanes of four leads, a quarter of the time each, and a rhythm strip."""
_SHORTEST_TWELVE_S = 8.0


def clock_text(recording: Recording, elapsed_s: float, decimals: int = 0) -> str:
    """Return the clock time, without the date if the recording has a single one; empty if the start is unknown."""
    text = recording.clock_time(elapsed_s, decimals) or ""
    first, last = ((recording.clock_time(at) or "").partition(" ")[0] for at in (0, recording.duration_s))
    return text.partition(" ")[2] if isinstance(recording.start, datetime) and first == last else text


def time_text(recording: Recording, elapsed_s: float, decimals: int = 0) -> str:
    """Return the clock time and the time since the start: `13:05:10 (+5:10)`, `+5:10` if the start is unknown."""
    clock, since = clock_text(recording, elapsed_s, decimals), elapsed(elapsed_s, decimals)
    return f"{clock} ({since})" if clock else since


def badness(event: Event) -> tuple[bool, float, float]:
    """Return the sort key of events of a kind: undisputed, then by duration, high or low rate, then by confidence."""
    rate = event.rate_bpm if math.isfinite(event.rate_bpm) else 0.0
    worst = KINDS[event.kind].worst
    if worst == "longest":
        return not event.disputed, event.stop - event.start, event.confidence
    return not event.disputed, -rate if worst == "slowest" else rate, event.confidence


def whole_rate(kind: str, rate_bpm: float) -> int:
    """Return a finite rate without decimals; that of a kind with an upper limit is not rounded up to the limit."""
    return math.floor(rate_bpm) if kind in ("IVR", "bradycardia") else round(rate_bpm)


@dataclass
class SelectedStrips:
    """Strips of the best leads of a recording, numbered in the order in which they are drawn.

    Attributes:
        findings: findings to draw.
        drawn: first sample and leads of each strip.
    """

    findings: Findings
    drawn: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    @property
    def num_samples(self) -> int:
        """Length of a strip."""
        return min(round(STRIP_S * self.findings.recording.rate_hz), self.findings.recording.num_samples)

    def extremes(self) -> list[dict[str, Any]]:
        """Return the strips of the longest RR interval, the slowest rate and the fastest rate."""
        findings, beats = self.findings, list[tuple[str, int, int]]()
        sample, rate_hz = findings.sample, findings.recording.rate_hz
        rr, means = np.where(findings.readable(), np.diff(sample), -1), findings.mean_rr_s()
        if len(rr) and rr.max() >= 0:
            beat = int(rr.argmax())
            beats.append((f"Longest RR interval: {rr[beat] / rate_hz:.2f} s", beat, beat + 1))
        if np.isfinite(means).any():
            for words, beat in (("Slowest", int(np.nanargmax(means))), ("Fastest", int(np.nanargmin(means)))):
                title = f"{words} rate: {60 / means[beat]:.0f}/min over {RATE_INTERVALS} intervals"
                beats.append((title, beat, beat + RATE_INTERVALS))
        figures = []
        for title, first, last in beats:
            begin, end = int(sample[first]), int(sample[last])
            title += f", at {time_text(findings.recording, begin / rate_hz)}"
            figures.append(self._figure(title, (begin + end - self.num_samples) // 2, begin, end))
        return figures

    def by_kind(self) -> list[dict[str, Any]]:
        """Return the strips of the worst events of each kind, by time; strips of one kind do not overlap."""
        sections, rate_hz, strip = [], self.findings.recording.rate_hz, self.num_samples
        for kind in KINDS:
            chosen: dict[int, Event] = {}
            for event in sorted(self.findings.of_kind(kind), key=badness, reverse=True):
                length = event.stop - event.start
                # a short event is centred; for a long event the strip shows its start
                start = (event.start + event.stop - strip) // 2 if length < strip else event.start - strip // 5
                if all(abs(start - other) >= strip for other in chosen) and len(chosen) < STRIPS_PER_KIND:
                    chosen[start] = event
            figures = []
            for start, event in sorted(chosen.items()):
                lasts, rate = duration((event.stop - event.start) / rate_hz), event.rate_bpm
                title = f"{time_text(self.findings.recording, event.start / rate_hz)}, {lasts}, {event.num_beats} beats"
                title += f", {whole_rate(kind, rate)}/min" if math.isfinite(rate) else ""
                title += f", {event.interval_ms:.0f} ms" if math.isfinite(event.interval_ms) else ""
                note = f"confidence {percent(event.confidence, 0)}"
                leads = self.findings.leads[:LEADS_PER_STRIP]
                if event.disputed:
                    leads = self.findings.leads
                    note += ", disputed by another lead" if len(leads) > 1 else ", disputed"
                figures.append(self._figure(title, start, event.start, event.stop, note, leads))
            if figures:
                sections.append({"kind": kind, "num": len(self.findings.of_kind(kind)), "figures": figures})
        return sections

    def _figure(
        self, title: str, start: int, begin: int, end: int, note: str = "", leads: tuple[int, ...] | None = None
    ) -> dict[str, Any]:
        """Return the strip from sample `start` on, moved into the recording, or a strip that shows `begin` to `end`."""
        recording, length = self.findings.recording, self.num_samples
        start = max(0, min(start, recording.num_samples - length))
        leads = self.findings.leads[:LEADS_PER_STRIP] if leads is None else leads
        margin = round(_MARGIN_S * recording.rate_hz)
        for number, (other, its_leads) in enumerate(self.drawn, 1):
            room = begin - other, other + length - (end if end - begin < length else begin + length // 2)
            if set(leads) <= set(its_leads) and (other == start or min(room) >= margin):
                return {"title": title, "note": note, "shown_in": number}
        figure = strip_of(self.findings, start, start + length, leads, title, note)
        if figure["drawing"] is not None:
            self.drawn.append((start, leads))
            figure["number"] = len(self.drawn)
        return figure


def whole_recording(findings: Findings) -> list[dict[str, Any]]:
    """Return a recording with all leads in rows that fit the width of paper at 25 mm/s.

    Twelve leads are in their usual layout, in rows of ten seconds for landscape paper; `is_twelve` of a row says so.
    """
    recording, rate_hz, num = findings.recording, findings.recording.rate_hz, findings.recording.num_samples
    lanes = _twelve_leads(recording) if recording.duration_s >= _SHORTEST_TWELVE_S else []
    row = min(num, round(ROW_S * rate_hz))
    if lanes:  # the last row overlaps the one before: a quarter of a short row would show little of a lead
        edges = [(start, start + row) for start in [*range(0, num - row, row), num - row]]
    else:
        edges = list(pairwise(np.linspace(0, num, math.ceil(recording.duration_s / STRIP_S) + 1).astype(int).tolist()))
    return [
        strip_of(
            *(findings, start, stop, range(recording.num_leads)),
            f"{start / rate_hz:.4g} to {stop / rate_hz:.4g} s",
            lanes=lanes,
        )
        for start, stop in edges
    ]


def _twelve_leads(recording: Recording) -> list[tuple[int, ...]]:
    """Return the lanes of the usual layout, other leads below; empty if one of the twelve leads is missing."""
    names = [re.sub(r"^(ECG|EKG|LEAD)[ _]*", "", name.upper()) for name in recording.lead_names]
    used = {name for lane in TWELVE_LEADS for name in lane}
    if not used <= set(names):
        return []
    lanes = [tuple(names.index(name) for name in lane) for lane in TWELVE_LEADS]
    return lanes + [(lead,) for lead, name in enumerate(names) if name not in used]


def strip_of(
    findings: Findings,
    start: int,
    stop: int,
    leads: Sequence[int],
    title: str,
    note: str = "",
    lanes: Sequence[Sequence[int]] = (),
) -> dict[str, Any]:
    """Read and draw a section; `drawing` is None if it has no signal."""
    recording, rate_hz, drawing = findings.recording, findings.recording.rate_hz, None
    if recording.has_signal and leads and start < stop:
        in_section, beats = slice(*np.searchsorted(findings.sample, [start, stop])), list[Beat]()
        columns = (findings.sample[in_section] / rate_hz, findings.symbol[in_section], findings.probability[in_section])
        for time_s, name, each in zip(*columns, strict=True):
            sure = str(min(int(100 * each), 99)) if math.isfinite(each) else MISSING
            beats.append(Beat(float(time_s), str(name), sure, f"{time_text(recording, time_s, 2)}: {name}, {sure} %"))
        names = [recording.lead_names[lead] for lead in leads]
        momentary = (event for event in findings.events if not KINDS[event.kind].of_recording)
        rhythms = [(event.start / rate_hz, event.stop / rate_hz, event.kind) for event in momentary]
        signal, clock_s = recording.signal(start, stop, leads), seconds_since_midnight(recording)
        tallest_mm = TALLEST_TWELVE_MM if lanes else TALLEST_MM
        strip = Strip(signal, rate_hz, names, start / rate_hz, clock_s, beats, rhythms, tallest_mm, lanes)
        at, shown = time_text(recording, start / rate_hz), ", ".join(names)
        drawing = sheet(strip, f"ECG strip at {at}, leads {shown}, {len(beats)} beats. {title}")
    parts = {"title": title, "note": note, "drawing": drawing, "is_twelve": bool(lanes)}
    return parts | {"number": None, "shown_in": None}
