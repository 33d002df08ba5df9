"""Findings from intervals: simulated leads with known PR, QRS and rate, and what must not be called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heartlm.analysis.conduction import conduction
from heartlm.analysis.findings import Event, Findings
from heartlm.delineation.delineate import Delineation
from heartlm.delineation.intervals import Intervals, measure
from heartlm.ecg.recording import Patient, Recording

RATE_HZ = 500.0
LEADS = ("I", "V1", "V6")


def findings(
    pr_ms: float = 160,
    qrs_ms: float = 90,
    qt_ms: float = 400,
    ends: tuple[float, float, float] = (0.0, 0.0, 0.0),
    seconds: float = 20,
    rr_s: float = 1.0,
    has_p: float = 1.0,
    sex: str = "",
    leads: tuple[str, ...] = LEADS,
) -> Findings:
    """Findings of beats with exact intervals; `ends` is the level in mV of the last third of QRS in each lead."""
    onset = np.round(np.arange(0.5, seconds - 1, rr_s) * RATE_HZ).astype(np.int64)
    offset = onset + round(qrs_ms / 1000 * RATE_HZ)
    waves = np.full((len(onset), 3, 3), -1, np.int64)
    waves[:, 1] = np.stack([onset, (onset + offset) // 2, offset], axis=1)
    waves[:, 2, :] = (onset + round(qt_ms / 1000 * RATE_HZ))[:, None] - np.array([40, 20, 0])
    with_p = np.arange(len(onset)) < has_p * len(onset)
    waves[with_p, 0] = (onset - round(pr_ms / 1000 * RATE_HZ))[with_p, None] + np.array([0, 20, 40])
    signal = np.zeros((len(leads), round(seconds * RATE_HZ)), np.float32)
    for first, last in zip(onset.tolist(), offset.tolist(), strict=True):
        third = (last - first) // 3
        signal[:, first + third : last - third] = 1.0
        signal[:, last - third : last + 1] = np.array(ends[: len(leads)], np.float32)[:, None]
    recording = Recording.from_array(signal, rate_hz=RATE_HZ, leads=list(leads))
    recording = replace(recording, patient=Patient(sex=sex))
    of_leads = np.repeat(waves[:, None], len(leads), axis=1)
    confidence = np.ones((len(onset), 3), np.float32)
    delineation = Delineation(
        recording=recording,
        leads=tuple(range(len(leads))),
        beats=onset,
        waves=of_leads,
        confidence=np.repeat(confidence[:, None], len(leads), axis=1),
        all_leads=waves,
        all_confidence=confidence,
        other_p=(),
    )
    measured: Intervals = measure(delineation)
    return Findings(
        recording,
        tuple(range(len(leads))),
        onset,
        np.full(len(onset), "N"),
        np.ones(len(onset), np.float32),
        (),
        np.ones((len(leads), 2), np.float32),
        waves=measured,
    )


def conduction_of(found: Findings) -> list[Event]:
    return conduction(found.recording, found.waves, found.symbol, list(found.events), found.lost)[0]


def kinds(found: Findings) -> list[str]:
    return [event.kind for event in conduction_of(found)]


def test_usual_intervals_are_no_finding() -> None:
    assert kinds(findings()) == []
    assert conduction_of(replace(findings(pr_ms=300), waves=None)) == []


def test_a_long_pr_is_first_degree_block_with_its_value_and_extent() -> None:
    found = findings(pr_ms=240)
    (event,) = conduction_of(found)
    assert event.kind == "AV block I" and event.confidence == 1
    assert event.interval_ms == pytest.approx(240, abs=2)
    assert (event.start, event.stop) == (found.sample[0], found.sample[-1] + 1)
    assert event.num_beats == found.num_beats and event.rate_bpm == pytest.approx(60)


@pytest.mark.parametrize("case", ["few P waves", "fibrillation", "other beats"])
def test_a_pr_needs_conducted_normal_beats(case: str) -> None:
    found = findings(pr_ms=240, has_p=0.4 if case == "few P waves" else 1)
    if case == "fibrillation":
        found = replace(found, events=(Event("AF", 0, found.recording.num_samples, 0.9),))
    if case == "other beats":
        found = replace(found, symbol=np.full(found.num_beats, "V"))
    assert kinds(found) == []


@pytest.mark.parametrize(
    ("qrs_ms", "ends", "sex", "expected"),
    [
        (150, (0.4, -0.5, 0.4), "", ["LBBB"]),
        (134, (0.4, -0.5, 0.4), "female", ["LBBB"]),
        (134, (0.4, -0.5, 0.4), "male", ["wide QRS"]),
        (130, (-0.3, 0.5, -0.3), "male", ["RBBB"]),
        (130, (-0.3, -0.5, -0.3), "", ["wide QRS"]),
        (110, (0.4, -0.5, 0.4), "", []),
    ],
)
def test_the_end_of_a_wide_qrs_tells_the_side(
    qrs_ms: float, ends: tuple[float, float, float], sex: str, expected: list[str]
) -> None:
    assert kinds(findings(qrs_ms=qrs_ms, ends=ends, sex=sex)) == expected


@pytest.mark.parametrize(("rate_hz", "expected"), [(500.0, ["wide QRS"]), (250.0, ["AV block I", "LBBB"])])
def test_paced_beats_have_a_width_alone(rate_hz: float, expected: list[str]) -> None:
    """A spike of one sample at the onset of a wide QRS; below 400 Hz it cannot be told from a steep wave."""
    found = findings(pr_ms=240, qrs_ms=150, ends=(0.4, -0.5, 0.4))
    assert kinds(found) == ["AV block I", "LBBB"] and found.waves is not None
    signal = found.recording.signal().copy()
    signal[:, found.waves.delineation.all_leads[:, 1, 0] - 2] += 1.0
    recording = Recording.from_array(signal, rate_hz=RATE_HZ, leads=list(LEADS))
    delineation = replace(found.waves.delineation, recording=replace(recording, rate_hz=rate_hz))
    waves = replace(found.waves, delineation=delineation)
    assert sorted(kinds(replace(found, waves=waves))) == expected


def test_a_lead_without_a_valid_sample_gives_no_side() -> None:
    found = findings(qrs_ms=150, ends=(0.4, np.nan, 0.4))
    assert kinds(found) == ["wide QRS"]


def test_without_v1_a_wide_qrs_has_no_side() -> None:
    assert kinds(findings(qrs_ms=150, ends=(0.4, 0.4, 0.0), leads=("I", "V6"))) == ["wide QRS"]


def test_long_qt_by_sex_and_corrected_for_rate() -> None:
    """Framingham: QT + 154 ms (1 - RR); a QT of 484 ms at 60/min is long in men alone, of 500 in all."""
    assert kinds(findings(qt_ms=484, sex="male")) == ["long QT"]
    assert kinds(findings(qt_ms=484, sex="female")) == kinds(findings(qt_ms=484)) == []
    (event,) = conduction_of(findings(qt_ms=500))
    assert event.kind == "long QT" and event.interval_ms == pytest.approx(500, abs=2)
    assert kinds(findings(qt_ms=500, rr_s=1.3)) == []  # 500 - 46
    assert kinds(findings(qt_ms=460, rr_s=0.58)) == []  # 460 + 65, at 103/min
    assert kinds(findings(qt_ms=500, qrs_ms=150, ends=(0.4, -0.5, 0.4))) == ["LBBB"], "QT of a wide QRS is not judged"


def test_stretches_of_a_long_recording_have_their_own_begin_and_end() -> None:
    """Two thirds of a quarter of an hour with a PR of 240 ms: two blocks of five minutes, one event."""
    found = findings(pr_ms=240, seconds=900)
    assert found.waves is not None
    late = found.sample > 600 * RATE_HZ
    pr = np.where(late, 160.0, found.waves.intervals["pr_ms"])
    waves = replace(found.waves, intervals={**found.waves.intervals, "pr_ms": pr})
    (event,) = conduction_of(replace(found, waves=waves))
    assert event.start == found.sample[0] and event.stop <= 600 * RATE_HZ < event.stop + 2 * RATE_HZ
