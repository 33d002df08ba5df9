"""Findings with corrected beats and events: what follows from them is derived again by the rules of the analysis.

    corrected beats ─► intervals that can be read ─► `beat_events` ─► precedence over the waveform ─► events
    refused and added events ──────┴────────────────────────────────────────────────────────────────────┘

Events that do not follow from beats, such as VF, AF and unreadable stretches, stay as the models found them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.events import ABSENCES, RUNS, beat_events, in_order
from heartlm.analysis.findings import Event, Findings, readable_intervals
from heartlm.analysis.stages import settled, timed, vt_is_possible
from heartlm.delineation.intervals import Intervals
from heartlm.ecg.definitions import PATTERNS
from heartlm.errors import HeartlmError

BY_BEATS = frozenset((*RUNS, *ABSENCES, "tachycardia", *PATTERNS))
"""Kinds of events that the rules derive from beats; of these the waveform shows VT and asystole too."""

Places = NDArray[np.int64]
Flags = NDArray[np.bool_]


def corrected(
    findings: Findings,
    sample: Places | None = None,
    symbol: NDArray[np.str_] | None = None,
    probability: NDArray[np.float32] | None = None,
    refused: Iterable[Event] = (),
    added: Iterable[Event] = (),
) -> Findings:
    """Return `findings` with other beats, without refused events and with added ones; see `Findings.corrected`."""
    sample, symbol, probability, rows = _beats(findings, sample, symbol, probability)
    refused, added = list(refused), list(added)
    rate_hz, limits = findings.recording.rate_hz, findings.limits
    own = [each for each in findings.events if not refuses(refused, each)] + added
    own = [each for each in own if each.kind not in BY_BEATS]
    if rows is not None:  # rates of rhythms follow from the beats in them
        rhythms = [replace(each, num_beats=0) for each in own if each.kind in ("AF", "flutter")]
        own = [each for each in own if each.kind not in ("AF", "flutter")]
        own += [timed(each, sample, limits.vt_bpm, rate_hz) for each in rhythms]
    old_lost = np.zeros(max(0, findings.num_beats - 1), np.bool_)
    old_lost[findings.lost] = True
    lost = np.flatnonzero(_intervals(findings.sample, old_lost, sample))
    clear = readable_intervals(own, sample, lost)
    disputed = _intervals(findings.sample, findings.disputed, sample)
    by_beats = beat_events(sample, symbol, probability, clear, rate_hz, disputed, limits)
    # Of the waveform: what stayed and what had yielded to beats, which may be others now.
    by_waveform = [each for each in findings.by_waveform if _stays(each, findings, sample, symbol)]
    derived = settled({"beats": by_beats, "waveform": by_waveform}, sample)
    derived = [timed(each, sample, limits.vt_bpm, rate_hz) for each in derived if not refuses(refused, each)]
    stated = [timed(each, sample, limits.vt_bpm, rate_hz) for each in added if each.kind in BY_BEATS]
    derived = [each for each in derived if not refuses(stated, each)] + stated
    waves = findings.waves if findings.waves is None or rows is None else _waves(findings.waves, rows, sample)
    paced = findings.paced if rows is None else (rows >= 0) & findings.paced[rows]
    return replace(
        findings,
        sample=sample,
        symbol=symbol,
        probability=probability,
        events=in_order([*own, *derived]),
        lost=lost,
        disputed=disputed,
        left_out=findings.left_out[~_are_beats(findings.left_out, sample)],
        paced=paced & ((symbol == "N") | (symbol == "V")),
        waves=waves,
        unexamined={
            kind: reason for kind, reason in findings.unexamined.items() if not any(each.kind == kind for each in added)
        },
    )


def refuses(refused: Iterable[Event], event: Event) -> bool:
    """Return whether a refused event of this kind overlaps `event`: its ends may follow from beats that changed."""
    return any(each.kind == event.kind and each.start < event.stop and event.start < each.stop for each in refused)


def _beats(
    findings: Findings, sample: Any, symbol: Any, probability: Any
) -> tuple[Places, NDArray[np.str_], NDArray[np.float32], Places | None]:
    """Check the beats; return them and the index of each in `findings`, -1 for new ones, None if none was moved.

    Raises:
        HeartlmError: lengths differ, positions do not ascend or lie outside the recording, or a class is unknown.
    """
    old = findings.sample
    sample = old if sample is None else np.asarray(sample, np.int64)
    symbol = findings.symbol if symbol is None else np.asarray(symbol, "<U1")
    if len(symbol) != len(sample):
        raise HeartlmError(f"symbol: {len(symbol):,} classes found, one for each of {len(sample):,} beats expected")
    end = findings.recording.num_samples
    if len(sample) and (np.any(np.diff(sample) <= 0) or not 0 <= sample[0] <= sample[-1] < end):
        raise HeartlmError(f"sample: ascending positions from 0 to {end - 1:,} expected, without equal ones")
    if not np.logical_or.reduce([symbol == name for name in "NSVF"]).all():  # ten times as fast as np.isin
        unknown = sorted(set(symbol.tolist()) - set("NSVF"))
        raise HeartlmError(f"symbol: {', '.join(map(repr, unknown))} found, N, S, V or F expected")
    rows = None
    if len(sample) == len(old) and np.array_equal(sample, old):
        old_symbol, old_probability = findings.symbol, findings.probability
    else:
        at = np.minimum(np.searchsorted(old, sample), max(0, len(old) - 1))
        rows = np.where(old[at] == sample, at, -1) if len(old) else np.full(len(sample), -1)
        old_symbol = np.where(rows >= 0, findings.symbol[rows], "") if len(old) else np.full(len(sample), "")
        old_probability = findings.probability[rows] if len(old) else np.ones(len(sample), np.float32)
    if probability is None:  # a corrected class is certain
        probability = np.where(symbol == old_symbol, old_probability, 1).astype(np.float32)
    elif len(probability) != len(sample):
        raise HeartlmError(f"probability: {len(probability):,} found, one for each of {len(sample):,} beats expected")
    return sample, symbol, np.asarray(probability, np.float32), rows


def _intervals(old: Places, marked: Flags, sample: Places) -> Flags:
    """Return whether the interval from each beat to the next overlaps a marked one of the old beats, bool."""
    if not marked.any():
        return np.zeros(max(0, len(sample) - 1), np.bool_)
    start, stop = old[:-1][marked], old[1:][marked]
    first = np.searchsorted(stop, sample[:-1], side="right")  # first marked interval that ends after the beat
    return np.append(start, np.iinfo(np.int64).max)[first] < sample[1:]


def _are_beats(places: Places, sample: Places) -> Flags:
    """Return whether each place is a beat: as `np.isin`, which is slow."""
    if not len(sample):
        return np.zeros(len(places), np.bool_)
    return np.asarray(sample[np.minimum(np.searchsorted(sample, places), len(sample) - 1)] == places)


def _stays(event: Event, findings: Findings, sample: Places, symbol: NDArray[np.str_]) -> bool:
    """Return whether beats that were corrected allow an event of the waveform, VT or asystole."""
    inside = slice(*np.searchsorted(sample, [event.start, event.stop]))
    before = slice(*np.searchsorted(findings.sample, [event.start, event.stop]))
    is_same = np.array_equal(sample[inside], findings.sample[before])
    if is_same and np.array_equal(symbol[inside], findings.symbol[before]):
        return True
    if event.kind == "asystole":
        return bool(inside.start == inside.stop)
    return vt_is_possible(event, sample, symbol, findings.limits.vt_bpm, findings.recording.rate_hz)


def _waves(waves: Intervals, rows: Places, sample: Places) -> Intervals:
    """Return the measurements of the beats `rows`; new beats, -1, have none."""
    part, new = waves.of_beats(np.maximum(rows, 0)), rows < 0
    whole = replace(part.delineation, beats=sample)
    for name, absent in (("waves", -1), ("all_leads", -1), ("confidence", 0), ("all_confidence", 0)):
        getattr(whole, name)[new] = absent
    for values in (*part.intervals.values(), *part.amplitudes.values()):
        values[new] = np.nan
    return replace(part, delineation=whole)
