"""Findings in the words of a report: the rhythm and its rate, ectopic beats, conduction, events, doubt.

    Findings ─► clauses of three groups ─► one line; of more than an hour, one sentence for each group

The page, the terminal, tables and `Findings.reading` have the same words, which add nothing to what was found.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from heartlm.analysis.findings import Event, Findings
from heartlm.ecg.statements import STATEMENTS, SUPERCLASSES, words_of

LONG_S = 3600.0
"""Duration from which on each group of clauses is one sentence."""
WHOLE, HALF = 0.9, 0.5
"""Fraction of the readable time from which on a rhythm is the rhythm of the recording, and of normal beats with a P
wave, or of all beats with a pacing spike, from which on the rhythm is named after them."""
SURE = 0.6
"""Confidence below which an event is possible."""
SLOW_BPM, FAST_BPM = 50.0, 100.0
"""Rates of sinus bradycardia and tachycardia (Kusumoto 2019, doi 10.1016/j.jacc.2018.10.044; Page 2016, doi
10.1016/j.jacc.2015.08.856)."""

RHYTHMS = {
    "AF": "atrial fibrillation",
    "flutter": "atrial flutter",
    "AV block III": "third degree AV block with an escape rhythm",
    "junctional": "junctional rhythm",
}
RUNS = {
    "VT": "ventricular tachycardia",
    "IVR": "slow ventricular run",
    "SVT": "supraventricular tachycardia",
    "bigeminy": "ventricular bigeminy",
    "trigeminy": "ventricular trigeminy",
    "quadrigeminy": "ventricular quadrigeminy",
    "AV block II": "second degree AV block, 2:1 or Mobitz type II",
    "Wenckebach": "second degree AV block, Wenckebach type",
}
LENGTHS = {"VF": "ventricular fibrillation or flutter", "asystole": "asystole", "pause": "pause"}
INTERVALS = {
    "AV block I": ("first degree AV block", "PR"),
    "LBBB": ("left bundle branch block", "QRS"),
    "RBBB": ("right bundle branch block", "QRS"),
    "wide QRS": ("wide QRS complexes", "QRS"),
    "long QT": ("long QT", "QTc"),
}
SAID_ELSEWHERE = {"couplet", "bradycardia", "tachycardia", "unreadable"}
"""Kinds whose words are part of another clause: of the beats, the rates and what could not be read."""

_NAMED = {"NORM", "CD", "SR", "AFIB", "AFLT", "SBRAD", "STACH", "PACE", "PVC", "PAC", "CLBBB", "CRBBB", "1AVB", "LNGQT"}
"""Statements that the findings name, or that tell less than they do."""
SINUS = {"SR", "SBRAD", "STACH", "SARRH"}
"""Statements of a sinus rhythm."""
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def reading(findings: Findings) -> str:
    """Return the findings in one line, of more than an hour in three sentences or fewer."""
    groups = _rhythm(findings), _ectopy(findings) + _events(findings), _conduction(findings) + _doubts(findings)
    if findings.recording.duration_s > LONG_S:
        return " ".join(_sentence("; ".join(group)) for group in groups if group)
    return " ".join(_sentence(clause) for group in groups for clause in group)


def brief(findings: Findings) -> dict[str, Any]:
    """Return what a report of one line needs: see `Findings.brief`."""
    summary, waves = findings.summary(), findings.normal_waves()
    medians: dict[str, Any] = {} if waves is None else waves.summary()
    intervals = medians.get("intervals", {})
    names = ("record", "start", "duration_s", "readable_share", "mean_rate_bpm", "slowest_bpm", "fastest_bpm")
    measured = ("pr_ms", "qrs_ms", "qt_ms", "qtc_framingham_ms")
    return {
        "reading": reading(findings),
        "rhythm": _main_rhythm(findings),
        **{name: summary[name] for name in names},
        "beats": summary["beats"],
        "paced_beats": int(findings.paced.sum()),
        **{name: _rounded(intervals[name]["median"] if name in intervals else None) for name in measured},
        "axis_degrees": _rounded(medians.get("axis_degrees")),
        "events": {kind: num for kind, num in summary["events"].items() if num},
        "stated": {name: round(value, 2) for name, value in findings.stated.items()},
        "unexamined": sorted(findings.unexamined),
        "unlike": list(findings.unlike),
    }


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _share_of(findings: Findings, kind: str) -> float:
    readable_s = findings.recording.duration_s - findings.seconds_of("unreadable")
    return findings.seconds_of(kind) / max(readable_s, 1e-9)


def _main_rhythm(findings: Findings) -> str:
    """Return the rhythm of most of the recording in words; empty if it is not known."""
    if findings.num_beats < 2:
        return ""
    normal = findings.symbol == "N"
    for kind, words in RHYTHMS.items():
        of_kind = findings.of_kind(kind)
        span = findings.sample[[0, -1]]
        inside = sum(min(each.stop, span[1] + 1) - max(each.start, span[0]) for each in of_kind)
        if of_kind and inside >= WHOLE * (span[1] + 1 - span[0]):
            return _possibly(of_kind, words)
    if findings.paced.mean() >= HALF:
        return "paced rhythm"
    waves = findings.waves
    if waves is None or not normal.any():
        return ""
    # All leads together may state sinus rhythm, or a long PR interval, where single P waves are not seen.
    has_sinus = bool(SINUS & findings.stated.keys()) or bool(findings.of_kind("AV block I"))
    if waves.delineation.has_p[normal].mean() < HALF and not has_sinus:
        return "rhythm without visible P waves"
    rate = findings.rates()["mean_rate_bpm"]
    return "sinus " + ("rhythm" if rate is None or SLOW_BPM <= rate <= FAST_BPM else _sinus(rate))


def _sinus(rate_bpm: float) -> str:
    return "bradycardia" if rate_bpm < SLOW_BPM else "tachycardia"


def _rhythm(findings: Findings) -> list[str]:
    mean, slowest, fastest = findings.rates().values()
    main = _main_rhythm(findings)
    if mean is None:
        return ["no heartbeats found" if not findings.num_beats else f"{_count(findings.num_beats, 'heartbeat')} found"]
    rate = f"{mean:.0f}/min"
    if findings.recording.duration_s > LONG_S and slowest is not None and fastest is not None:
        rate = f"mean {rate}, {slowest:.0f} to {fastest:.0f}"
    clauses = [f"{main}, {rate}" if main else f"heart rate {rate}, rhythm not determined"]
    for kind, words in RHYTHMS.items():
        of_kind = findings.of_kind(kind)
        if not of_kind or words in main:
            continue
        longest = max(each.stop - each.start for each in of_kind) / findings.recording.rate_hz
        share = f"{_percent(_share_of(findings, kind))} of the time"
        number = f", {_count(len(of_kind), 'episode')}, the longest {_time(longest)}" if len(of_kind) > 1 else ""
        clauses.append(f"{_possibly(of_kind, words)} {share}{number}")
    return clauses


def _ectopy(findings: Findings) -> list[str]:
    of_class, total = Counter(findings.symbol.tolist()), max(1, findings.num_beats)
    clauses = []
    for name, words in (("V", "ventricular"), ("S", "supraventricular"), ("F", "fusion")):
        if not (num := of_class[name]):
            continue
        share = f" ({_percent(num / total)})" if findings.recording.duration_s > LONG_S else ""
        couplets = len(findings.of_kind("couplet")) if name == "V" else 0
        with_couplets = f" with {_count(couplets, 'couplet')}" if couplets else ""
        clauses.append(f"{_count(num, f'{words} beat')}{share}{with_couplets}")
    if 0 < findings.paced.sum() < HALF * total:
        clauses.append(_count(int(findings.paced.sum()), "paced beat"))
    return clauses


def _events(findings: Findings) -> list[str]:
    clauses = []
    for kind in findings.kinds:
        of_kind = findings.of_kind(kind)
        if not of_kind or kind in SAID_ELSEWHERE or kind in RHYTHMS or kind in INTERVALS:
            continue
        longest = max(each.stop - each.start for each in of_kind) / findings.recording.rate_hz
        if kind in LENGTHS:
            clauses.append(_episodes(of_kind, LENGTHS[kind], _time(longest)))
        elif kind in RUNS:
            most = max(of_kind, key=lambda each: each.num_beats)
            rates = [each.rate_bpm for each in of_kind if math.isfinite(each.rate_bpm)]
            # of slow runs the rate is not rounded up to the limit of fast ones
            rate = f" at up to {int(max(rates))}/min" if rates and kind in ("VT", "SVT", "IVR") else ""
            length = f"{_count(most.num_beats, 'beat')}{rate}" if most.num_beats else _time(longest)
            clauses.append(_episodes(of_kind, RUNS[kind], length))
        else:
            clauses.append(_episodes(of_kind, kind, _time(longest)))
    return clauses


def _conduction(findings: Findings) -> list[str]:
    clauses = []
    for kind, (words, interval) in INTERVALS.items():
        if not (of_kind := findings.of_kind(kind)):
            continue
        known = [each.interval_ms for each in of_kind if math.isfinite(each.interval_ms)]
        length = f", {interval} {np.median(known):.0f} ms" if known else ""
        clauses.append(_possibly(of_kind, words) + length)
    diagnoses = [name for name in findings.stated if name not in _NAMED]
    detailed = {STATEMENTS[name].superclass for name in diagnoses if name in STATEMENTS}
    diagnoses = [name for name in diagnoses if not (name in SUPERCLASSES and name in detailed)]
    if diagnoses:
        clauses.append(f"all leads together suggest {', '.join(words_of(diagnoses))}")
    elif "NORM" in findings.stated and not clauses:
        clauses.append("all leads together suggest a normal ECG")
    return clauses


def _doubts(findings: Findings) -> list[str]:
    clauses = list[str]()
    if findings.of_kind("unreadable"):
        unreadable = findings.seconds_of("unreadable") / findings.recording.duration_s
        clauses.append(f"{_percent(unreadable)} of the recording could not be read")
    clauses += findings.warnings
    if findings.hum_hz:
        clauses.append(f"mains hum removed: {findings.hum_in_words()}")
    if findings.unlike:
        clauses.append("unlike the recordings that the models learned from, so expect more errors")
    return clauses


def _episodes(events: list[Event], words: str, longest: str) -> str:
    """Return one event with its length, or the number of events with the longest."""
    words = _possibly(events, words)
    return f"{words}, {longest}" if len(events) == 1 else f"{words} {_times(len(events))}, the longest {longest}"


def _possibly(events: list[Event], words: str) -> str:
    """Return the words, with doubt if no event is sure."""
    return words if any(each.confidence >= SURE for each in events) else f"possible {words}"


def _times(number: int) -> str:
    return "twice" if number == 2 else f"{_number(number)} times"


def _number(number: int) -> str:
    return _NUMBERS[number] if number < len(_NUMBERS) else f"{number:,}"


def _count(number: int, noun: str) -> str:
    return f"{_number(number)} {noun}{'' if number == 1 else 's'}"


def _percent(share: float) -> str:
    percent = 100 * min(1.0, share)
    return "less than 0.1 %" if percent < 0.05 else f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


def _time(seconds: float) -> str:
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
