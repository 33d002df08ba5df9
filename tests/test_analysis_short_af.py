"""AF in short recordings of one lead: its measures, and when they decide."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from heartlm.analysis.analyze import Analyst
from heartlm.analysis.findings import Findings
from heartlm.analysis.recordings import AnalysisTask
from heartlm.analysis.short_af import AF_BY_RR, MEASURES, WEIGHTS, log_odds, measures
from heartlm.delineation.delineate import delineate
from heartlm.delineation.intervals import measure
from heartlm.ecg.recording import Recording

RATE_HZ = 300.0
REGULAR = np.arange(0.5, 29.5, 0.8)
IRREGULAR = 0.5 + np.cumsum(np.random.default_rng(1).uniform(0.45, 1.15, 34))


def recording_of(
    beats_s: np.ndarray, p_mv: float = 0.0, f_mv: float = 0.0, seconds: int = 30, num_leads: int = 1
) -> Recording:
    """QRS complexes and T waves with P waves 0.16 s before, a wave of 6 Hz, and noise of 5 uV."""
    time_s = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    signal = np.random.default_rng(0).normal(0, 0.005, len(time_s)) + f_mv * np.sin(2 * np.pi * 6 * time_s)
    for at in beats_s:
        for place, width, height in ((0, 0.012, 1), (0.03, 0.012, -0.4), (0.25, 0.05, 0.25), (-0.16, 0.025, p_mv)):
            signal += height * np.exp(-(((time_s - at - place) / width) ** 2))
    signals = np.tile(signal.astype(np.float32), (num_leads, 1))
    return Recording(
        rate_hz=RATE_HZ,
        num_samples=len(signal),
        lead_names=("I", "II")[:num_leads],
        units=("mV",) * num_leads,
        path=Path("r"),
        samples=lambda start, stop, leads: signals[list(leads), start:stop],
    )


def af(findings: Findings) -> list[tuple[int, int]]:
    return [(event.start, event.stop) for event in findings.events if event.kind == "AF"]


def test_measures_tell_sinus_rhythm_from_fibrillation() -> None:
    odds = []
    for beats_s, p_mv, f_mv in ((REGULAR, 0.15, 0.0), (IRREGULAR, 0.0, 0.04)):
        sample = np.round(beats_s * RATE_HZ).astype(np.int64)
        waves = delineate(recording_of(beats_s, p_mv=p_mv, f_mv=f_mv), sample)
        found = measures(waves, np.array([0.5, 0.5, 1.0]), np.array([1.0, 0.8], np.float32))
        assert tuple(found) == MEASURES
        assert found["log odds of RR"] == pytest.approx(5 / 3)  # those of the third are limited to 5
        assert found["quality"] == pytest.approx(0.9)
        assert (found["confidence of P"] > 0.7) == (p_mv > 0) != (found["confidence of P"] < 0.3)
        odds.append(log_odds(found))
    assert odds[1] > odds[0] + 1


@pytest.mark.parametrize(("p_mv", "beats_s", "present"), [(0.15, REGULAR, False), (0.0, IRREGULAR, True)])
def test_a_short_recording_of_one_lead_is_in_af_or_not(
    analyst: Analyst, p_mv: float, beats_s: np.ndarray, present: bool
) -> None:
    findings = analyst.analyze(recording_of(beats_s, p_mv=p_mv, f_mv=0.0 if p_mv else 0.04))
    assert bool(af(findings)) is present


def test_all_measures_decide_where_rr_intervals_say_otherwise(
    analyst: Analyst, monkeypatch: pytest.MonkeyPatch
) -> None:
    for beats_s, p_mv, by_rr in ((REGULAR, 0.15, 0), (IRREGULAR, 0.0, 1)):
        recording = recording_of(beats_s, p_mv=p_mv)
        measured = analyst.analyze(recording).short_af
        assert measured.keys() == {*MEASURES, AF_BY_RR} and measured[AF_BY_RR] == by_rr
        monkeypatch.setitem(WEIGHTS, "threshold", log_odds(measured))
        found = analyst.analyze(recording)
        assert (af(found) == [(found.sample[0], found.sample[-1] + 1)]) or by_rr
        assert af(found)
        monkeypatch.setitem(WEIGHTS, "threshold", log_odds(measured) + 1e-6)
        assert af(analyst.analyze(recording)) == []


def test_waves_are_those_that_af_was_judged_by(analyst: Analyst, tmp_path: Path) -> None:
    recording = recording_of(REGULAR, p_mv=0.15)
    found = analyst.analyze(recording)
    again = measure(delineate(recording, found.sample))
    assert found.waves is not None and found.waves.summary() == again.summary()
    np.testing.assert_array_equal(found.waves.delineation.waves, again.delineation.waves)
    task = AnalysisTask((tmp_path,), tmp_path, (Path("beats"), Path("af"), Path("waveform")), page=None)
    _, content = task.write(dataclasses.replace(recording, record_id="r"), tmp_path / "r.json", iter)
    assert content["waves"] == again.summary()


@pytest.mark.parametrize(("seconds", "num_leads"), [(121, 1), (30, 2)])
def test_long_recordings_and_several_leads_are_judged_by_rr_intervals(
    analyst: Analyst, monkeypatch: pytest.MonkeyPatch, seconds: int, num_leads: int
) -> None:
    monkeypatch.setitem(WEIGHTS, "threshold", -99.0)
    beats_s = np.arange(0.5, seconds - 0.5, 0.8)
    found = analyst.analyze(recording_of(beats_s, p_mv=0.15, seconds=seconds, num_leads=num_leads))
    assert af(found) == [] and not found.short_af


def test_pieces_of_af_between_unreadable_intervals_are_no_af_of_30_s(analyst: Analyst) -> None:
    rng = np.random.default_rng(5)
    sample = np.cumsum(250 * rng.uniform(0.4, 1.1, 200)).astype(np.int64)
    clear = np.ones(199, np.bool_)
    (whole, *_), _ = analyst._af_events(sample, clear, 250.0)
    assert whole.stop - whole.start >= 30 * 250
    clear[15::16] = False  # pieces of about 12 s
    assert analyst._af_events(sample, clear, 250.0)[0] == []
    short, _ = analyst._af_events(sample[:20], clear[:19] | True, 250.0)  # all of a recording of 15 s
    assert [(event.start, event.stop) for event in short] == [(sample[0], sample[19] + 1)]
