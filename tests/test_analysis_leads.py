"""Agreement of leads: a lead refutes pauses and fibrillation that another one seems to show."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from heartlm.analysis.analyze import Analyst
from heartlm.analysis.certain_beats import certain_beats
from heartlm.analysis.findings import Event, Findings
from heartlm.analysis.lead_agreement import combined, fill_gaps, regular_seconds
from heartlm.analysis.signal_quality import LeadQuality, lead_quality
from heartlm.cli.main import main
from heartlm.databases.database import Database, open_database
from tests.conftest import shared_data

RATE = 250.0
SECONDS = 30
MISSED = (12, 13, 14)
"""Seconds whose beats the first lead hardly shows."""


def signal_of(heights: dict[float, float]) -> np.ndarray:
    """A lead with a QRS complex of each height in mV at each time in seconds, and noise of 10 uV."""
    time_s = np.arange(round(SECONDS * RATE)) / RATE
    signal = np.random.default_rng(0).normal(0, 0.01, len(time_s))
    for at, height in heights.items():
        near = (time_s - at) / 0.012
        signal += height * (np.exp(-(near**2)) - 0.4 * np.exp(-((near - 2.5) ** 2)))
    return signal.astype(np.float32)


BEATS = {second + 0.5: 1.0 for second in range(SECONDS)}
LOW = BEATS | {second + 0.5: 0.1 for second in MISSED}


def filled(*signals: np.ndarray) -> tuple[list[float], list[float]]:
    """Beats after filling in seconds, and those that begin a disputed interval."""
    leads = [lead_quality(signal, RATE) for signal in signals]
    beats = np.array([at for at in BEATS if int(at) not in MISSED])
    sample, disputed = fill_gaps(np.round(beats * RATE).astype(np.int64), leads, np.stack(signals), RATE)
    return (sample / RATE).tolist(), (sample[disputed] / RATE).tolist()


def shares_of_s(first: list[float], second: list[float]) -> list[str]:
    """Classes of beats by two leads of the same quality, which each give S these probabilities."""
    answers = np.array([[[1 - s, s, 0, 0] for s in lead] for lead in (first, second)], np.float32)
    probability = combined(answers, np.ones((2, len(first)), np.float32), "NSVF")
    np.testing.assert_allclose(probability.sum(axis=1), 1, rtol=1e-5)
    return ["NSVF"[index] for index in probability.argmax(axis=1)]


def test_classes_are_the_mean_of_leads_that_agree() -> None:
    assert "".join(shares_of_s([0.1] * 9 + [0.7], [0.2] * 9 + [0.4])) == "N" * 9 + "S"


def test_a_lead_that_takes_the_usual_rhythm_for_s_does_not_decide() -> None:
    calm, excited = [0.2] * 9 + [0.9], [0.95] * 10
    assert "".join(shares_of_s(calm, excited)) == "".join(shares_of_s(excited, calm)) == "N" * 9 + "S"


def test_beats_that_another_lead_shows_are_added() -> None:
    beats, disputed = filled(signal_of(LOW), signal_of(BEATS))
    assert beats == pytest.approx(list(BEATS), abs=0.02)
    assert disputed == []


@pytest.mark.parametrize("num_alike", [3, 2])
def test_wide_beats_that_one_lead_alone_shows_are_added_if_their_shape_recurs(num_alike: int) -> None:
    """Each with a compensatory pause; the neighbours of each are narrow."""
    ventricular = 7.0, 14.0, 21.0
    usual = {second + 0.5: 1.0 for second in range(SECONDS)}
    for at in ventricular:
        del usual[at + 0.5]
    alone, time_s = signal_of(usual), np.arange(round(SECONDS * RATE)) / RATE
    for number, at in enumerate(ventricular):
        shape = 1 if number < num_alike else -1
        alone += np.float32(1.6) * np.exp(-(((time_s - at - 0.1) / 0.05) ** 2)).astype(np.float32) * shape
    signals = np.stack([signal_of(usual), alone, signal_of(usual)])
    leads = [lead_quality(signal, RATE) for signal in signals]
    filled, _ = fill_gaps(np.round(np.array(list(usual)) * RATE).astype(np.int64), leads, signals, RATE)
    added = [round(float(at), 1) for at in filled / RATE if np.abs(np.array(list(usual)) - at).min() > 0.1]
    assert added == ([7.1, 14.1, 21.1] if num_alike == 3 else [])


def bigeminy(pulses: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A lead of one minute and its detections: narrow beats, and 0.45 s after each a wide one, or a pulse of any shape.

    The detections are a beat, a wide wave, a beat, and so on.
    """
    random = np.random.default_rng(seed)
    time_s, at_s = np.arange(round(60 * RATE)) / RATE, np.arange(0.5, 59, 1.5)
    wide_s = at_s + (random.uniform(0.35, 1.1, len(at_s)) if pulses else random.normal(0.45, 0.01, len(at_s)))
    signal = random.normal(0, 0.01, len(time_s))
    for beat_s, other_s in zip(at_s, wide_s, strict=True):
        signal += np.exp(-(((time_s - beat_s) / 0.015) ** 2))
        for centre_s in random.normal(0, 0.04, 3) if pulses else (0, 0.09):
            height = random.normal() if pulses else (1.6 if centre_s == 0 else -0.6)
            signal += height * np.exp(-(((time_s - other_s - centre_s) / 0.05) ** 2))
    sample = np.rint(np.stack([at_s, wide_s], axis=1).ravel() * RATE).astype(np.int64)
    return signal.astype(np.float32), sample


def lead_of(sample: np.ndarray, quality: float = 0.95) -> LeadQuality:
    on = np.zeros(round(60 * RATE), np.uint8)
    return LeadQuality(sample, np.ones(len(sample)), np.full(6, quality, np.float32), on)


def test_waves_that_repeat_at_a_steady_interval_are_beats_and_pulses_are_not() -> None:
    signal, sample = bigeminy(pulses=False)
    certain, wide = certain_beats(sample, [lead_of(sample)], signal[None], RATE)
    assert certain[1:].all() and wide[1::2].all() and not wide[::2].any()
    signal, sample = bigeminy(pulses=True)
    certain, _ = certain_beats(sample, [lead_of(sample)], signal[None], RATE)
    assert not certain[1::2].any()


def test_a_wave_that_two_readable_leads_show_is_a_beat() -> None:
    signal, sample = bigeminy(pulses=True)
    both = np.stack([signal, signal])
    for others, quality, expected in ((sample, 0.95, True), (sample, 0.8, False), (sample[::2], 0.95, False)):
        certain, _ = certain_beats(sample, [lead_of(sample), lead_of(others, quality)], both, RATE)
        assert certain[1::2].all() == expected and certain[1::2].any() == expected


def test_a_gap_of_minutes_at_a_high_rate_takes_little_memory() -> None:
    rate_hz = 1000.0
    time_s = np.arange(round(260 * rate_hz)) / rate_hz
    signal = np.where((time_s < 10) | (time_s > 250), np.exp(-((((time_s % 1) - 0.5) / 0.012) ** 2)), 0)
    signal = (signal + 0.8 * np.sin(0.3 * time_s)).astype(np.float32)  # a sway that is higher than half a beat
    sample = (1000 * np.array([*range(10), *range(250, 260)]) + 500).astype(np.int64)
    lead = LeadQuality(sample, np.ones(len(sample)), np.ones(26, np.float32), np.zeros(len(signal), np.uint8))
    tracemalloc.start()
    filled, _ = fill_gaps(sample, [lead], signal[None], rate_hz)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(filled) == len(sample)
    assert peak_bytes < 200e6  # 430 MB if the whole gap is compared at once


def test_beats_that_the_detector_missed_in_its_only_lead_are_added() -> None:
    signal = signal_of(BEATS)
    on = np.zeros(len(signal), np.uint8)
    deaf = LeadQuality(np.empty(0, np.int64), np.empty(0), np.ones(3, np.float32), on)
    beats = np.array([round(at * RATE) for at in BEATS if int(at) not in MISSED])
    sample, disputed = fill_gaps(beats, [deaf], signal[None], RATE)
    assert sample / RATE == pytest.approx(list(BEATS), abs=0.02)
    assert not disputed.any()


def test_a_pause_of_all_leads_stays_and_is_not_disputed() -> None:
    beats, disputed = filled(signal_of(LOW), signal_of(LOW))
    assert beats == [at for at in BEATS if int(at) not in MISSED]
    assert disputed == []


def test_a_pause_is_disputed_where_a_lead_is_not_quiet_or_none_can_be_read() -> None:
    loud = signal_of(LOW)
    sway = np.arange(round(12.2 * RATE), round(14.9 * RATE))
    loud[sway] += np.random.default_rng(1).normal(0, 0.5, len(sway)).astype(np.float32)
    assert 11.5 in filled(signal_of(LOW), loud)[1]
    lost = signal_of(LOW)
    lost[round(12 * RATE) : round(15 * RATE)] = np.nan
    assert filled(lost, lost)[1] == [11.5]
    # another lead can be read
    assert filled(lost, signal_of(LOW))[1] == []


def test_regular_beats_of_one_shape_are_found_at_any_rate_and_irregular_ones_are_not() -> None:
    for step in (0.3, 1.0):
        at = np.arange(0.5, SECONDS, step)
        regular = regular_seconds([lead_quality(signal_of(dict.fromkeys(at.tolist(), 1.0)), RATE)], SECONDS, RATE)
        assert regular[3:-3].all()
    at = np.cumsum(np.random.default_rng(2).uniform(0.25, 1.0, 40))
    irregular = lead_quality(signal_of(dict.fromkeys(at[at < SECONDS].tolist(), 1.0)), RATE)
    assert regular_seconds([irregular], SECONDS, RATE).mean() < 0.2
    on = np.zeros(round(SECONDS * RATE), np.uint8)
    nothing = LeadQuality(np.empty(0, np.int64), np.empty(0), np.ones(3, np.float32), on)
    assert not regular_seconds([nothing], SECONDS, RATE).any()


@pytest.fixture(scope="module")
def mitdb() -> Database:
    return open_database(shared_data("mitdb"))


def refuted(database: Database, findings: Findings) -> list[Event]:
    """Pauses and asystoles in which a beat is annotated, 150 ms or more from their ends."""
    known, reach = database.annotations(findings.recording.record_id), round(0.15 * findings.recording.rate_hz)
    assert known is not None
    return [
        event
        for event in findings.events
        if event.kind in ("pause", "asystole")
        and np.any((known.sample > event.start + reach) & (known.sample < event.stop - reach))
    ]


@pytest.mark.parametrize("record_id", ["203", "208"])
def test_no_pause_of_mitdb_holds_a_beat(mitdb: Database, analyst: Analyst, record_id: str) -> None:
    findings = analyst.analyze(mitdb.recording(record_id))
    assert refuted(mitdb, findings) == []


def test_the_pauses_of_mitdb_are_found(mitdb: Database, analyst: Analyst) -> None:
    findings, known = analyst.analyze(mitdb.recording("232")), mitdb.annotations("232")
    long = np.flatnonzero(np.diff(known.sample) >= 2 * known.rate_hz)
    ends = zip(known.sample[long].tolist(), known.sample[long + 1].tolist(), strict=True)
    pauses = [each for each in findings.events if each.kind in ("pause", "asystole")]
    lost = [end for end in ends if not any(each.start < end[1] and end[0] < each.stop for each in pauses)]
    assert len(long) > 50 and len(lost) <= 1  # before the beat at 58.69 s, a P wave is marked
    assert not any(each.disputed for each in pauses)


def test_noise_with_regular_beats_is_not_vf_and_flutter_is(mitdb: Database, analyst: Analyst) -> None:
    noisy = analyst.analyze(mitdb.recording("105"))
    assert not noisy.of_kind("VF")
    assert any("VF by the waveform of one lead" in note for note in noisy.notes)
    assert sum(event.stop - event.start for event in analyst.analyze(mitdb.recording("207")).of_kind("VF")) > 140 * 360


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3])
def test_no_pause_of_six_simulated_hours_holds_a_beat(tmp_path: Path, analyst: Analyst, seed: int) -> None:
    assert (
        main(["data", "simulate", str(tmp_path / "day"), "--patients", "1", "--minutes", "360", "--seed", str(seed)])
        == 0
    )
    database = open_database(tmp_path / "day")
    for record_id in database.record_ids:
        findings, known = analyst.analyze(database.recording(record_id)), database.annotations(record_id)
        assert [each for each in refuted(database, findings) if not each.disputed] == []
        vf = [(span.start, span.stop) for span in known.rhythms if span.name == "VFIB"]
        assert all(
            any(start < each.stop and each.start < stop for start, stop in vf) for each in findings.of_kind("VF")
        )


@pytest.mark.slow
def test_no_pause_of_any_record_of_mitdb_holds_a_beat(mitdb: Database, analyst: Analyst) -> None:
    for record_id in mitdb.record_ids:
        assert refuted(mitdb, analyst.analyze(mitdb.recording(record_id))) == []
