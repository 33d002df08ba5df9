"""A gap in the signal is no pause, no prematurity and no longest interval; notes of the recording reach the results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from heartlm.analysis.analyze import Analyst
from heartlm.analysis.lost_signal import cut_lost, lost_intervals, lost_stretches
from heartlm.api import detect_beats
from heartlm.cli.main import main
from heartlm.ecg.recording import Recording
from heartlm.formats.read import read_recording
from tests.conftest import shared_data
from tests.edf_files import Lead, edf_bytes, times
from tests.synthetic_leads import beat_times_s, ecg_mv

RATE_HZ = 250


def signal_mv(seconds: int = 60) -> np.ndarray:
    return ecg_mv(np.arange(seconds * RATE_HZ) / RATE_HZ, beat_times_s(2 * seconds, 3)).astype(np.float32)


def with_gaps(signal: np.ndarray, rate_hz: float, *gaps: tuple[float, float]) -> np.ndarray:
    """Insert invalid samples, the length of each gap in seconds, at a time of the signal."""
    parts, done = list[np.ndarray](), 0
    for at_s, length_s in gaps:
        at = round(at_s * rate_hz)
        parts += [signal[done:at], np.full(round(length_s * rate_hz), np.nan, np.float32)]
        done = at
    return np.concatenate([*parts, signal[done:]])


def test_stretches_and_intervals() -> None:
    signal = np.zeros((2, 2000), np.float32)
    signal[0, 100:500] = signal[1, 300:600] = signal[:, 900:910] = signal[:, 1500:] = np.nan
    stretches = lost_stretches(signal, RATE_HZ)
    assert stretches.tolist() == [[300, 500], [1500, 2000]]  # one lead is enough; 10 samples hide no beat
    assert lost_intervals(np.array([50, 250, 700, 1400]), stretches).tolist() == [False, True, False, False]
    assert lost_intervals(np.array([], np.int64), stretches).tolist() == []


def test_an_interval_becomes_as_long_as_those_around_it() -> None:
    sample = np.array([0, 200, 400, 600, 1700, 1900, 2100])
    signal = np.arange(2400, dtype=np.float32)[np.newaxis].copy()
    signal[0, 700:1600] = np.nan
    moved, kept = cut_lost(sample, signal, lost_stretches(signal, RATE_HZ))
    assert moved.tolist() == [0, 200, 400, 600, 800, 1000, 1200]
    np.testing.assert_array_equal(kept[0, moved], signal[0, sample])
    # a gap shorter than the missing time is cut out as a whole, and never a valid sample
    signal[0, 700:1400] = np.arange(700, 1400)
    moved, kept = cut_lost(sample, signal, lost_stretches(signal, RATE_HZ))
    assert np.diff(moved).tolist() == [200, 200, 200, 900, 200, 200]
    assert not np.isnan(kept).any()
    for unchanged in (sample[:1], sample[3:5], np.array([0, 200, 1650])):  # nothing to compare with, or nothing lost
        assert cut_lost(unchanged, signal, lost_stretches(signal[:, :700], RATE_HZ))[1] is signal
    short = np.array([0, 1000, 2000, 2300])  # already shorter than usual
    signal[0, 2100:2200] = np.nan
    assert cut_lost(short, signal, lost_stretches(signal, RATE_HZ)[1:])[1] is signal


@pytest.mark.parametrize("gaps", [[(20.0, 13.37)], [(20.2, 2.9), (40.1, 0.8)], [(10.0, 3600.0)]])
def test_beats_around_gaps_have_the_classes_of_a_recording_without(
    analyst: Analyst, gaps: list[tuple[float, float]]
) -> None:
    record = read_recording(shared_data("mitdb/100.hea"))
    signal = record.signal(0, round(60 * record.rate_hz), ["MLII"])[0]
    whole = Recording.from_array(signal, rate_hz=record.rate_hz, leads="II")
    cut = Recording.from_array(with_gaps(signal, record.rate_hz, *gaps), rate_hz=record.rate_hz, leads="II")
    expected, found = analyst.analyze(whole), analyst.analyze(cut)
    removed = sum(length_s for _, length_s in gaps)
    assert abs(found.num_beats - expected.num_beats) <= 2 * len(gaps)
    assert sorted(set(expected.symbol.tolist())) == ["N", "S"]
    assert (found.symbol == "S").sum() == (expected.symbol == "S").sum() == 1
    assert set(found.symbol.tolist()) == {"N", "S"}
    assert found.sample[-1] - expected.sample[-1] == round(removed * record.rate_hz)
    before, after = expected.summary(), found.summary()
    assert after["longest_rr_s"] <= before["longest_rr_s"]
    assert abs(after["mean_rate_bpm"] - before["mean_rate_bpm"]) < 1
    assert not {event.kind for event in found.events} & {"pause", "asystole", "bradycardia", "SVT"}


def test_a_pause_with_a_signal_stays_a_pause(analyst: Analyst) -> None:
    record = read_recording(shared_data("mitdb/100.hea"))
    signal, num = record.signal(0, round(60 * record.rate_hz), ["MLII"])[0], round(2 * record.rate_hz)
    beats = detect_beats(Recording.from_array(signal, rate_hz=record.rate_hz, leads="II"))
    place = int(beats[24]) + 150  # after a T wave
    quiet = signal[place] + np.random.default_rng(0).normal(0, 0.005, num)
    for inserted, expected in ((quiet, ["pause"]), (np.full(num, np.nan), [])):
        longer = np.concatenate([signal[:place], inserted, signal[place:]]).astype(np.float32)
        found = analyst.analyze(Recording.from_array(longer, rate_hz=record.rate_hz, leads="II"))
        assert [event.kind for event in found.events if event.kind in ("pause", "asystole")] == expected


@pytest.mark.parametrize("gap", [(30.0, 5.0), (27.4, 3.25), (19.7, 41.6), (28.6, 1.5)])
def test_a_gap_is_unreadable_to_the_sample_and_loses_no_beat_next_to_it(
    analyst: Analyst, gap: tuple[float, float]
) -> None:
    signal = signal_mv(60)
    whole = Recording.from_array(signal, rate_hz=RATE_HZ, leads="II")
    cut = Recording.from_array(with_gaps(signal, RATE_HZ, gap), rate_hz=RATE_HZ, leads="II")
    expected, found = analyst.analyze(whole), analyst.analyze(cut)
    first, last = round(gap[0] * RATE_HZ), round((gap[0] + gap[1]) * RATE_HZ)
    assert [(each.start, each.stop) for each in found.of_kind("unreadable")] == [(first, last)]
    assert abs(found.num_beats - expected.num_beats) <= 1  # the beat that the gap cuts
    assert found.summary()["readable_share"] == pytest.approx(60 / (60 + gap[1]), abs=1e-3)


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    digits = np.round(6553.4 * signal_mv(70)).astype(np.int64)
    notes = (3, b"+3.5\x14<b>button</b>\x14\0"), (40, b"+40\x1510\x14Ada walks\x14\0")
    own = Lead("EDF Annotations", None, "", "-1", "1", texts=times(range(70), *notes))
    (tmp_path / "r.edf").write_bytes(edf_bytes([Lead("II", digits), own], 70, reserved="EDF+C"))
    return tmp_path / "r.edf"


def test_notes_are_on_the_page_and_in_the_results(noted: Path, tmp_path: Path) -> None:
    assert main(["analyze", str(noted), "--out", str(tmp_path / "out"), "--processes", "1"]) == 0
    page, result = (tmp_path / "out" / "r.html").read_text(), json.loads((tmp_path / "out" / "r.json").read_text())
    assert result["marks"] == [
        {"start_s": 3.5, "duration_s": 0.0, "text": "<b>button</b>"},
        {"start_s": 40.0, "duration_s": 10.0, "text": "Ada walks"},
    ]
    assert "&lt;b&gt;button&lt;/b&gt;" in page
    assert "Ada walks" in page
    assert main(["analyze", str(noted), "--out", str(tmp_path / "anonymous"), "--anonymous"]) == 0
    for path in (tmp_path / "anonymous").iterdir():
        assert "Ada" not in path.read_text("latin-1")


def test_annotations_that_cannot_be_read_do_not_stop_an_analysis(noted: Path, tmp_path: Path) -> None:
    noted.with_suffix(".atr").write_bytes(b"\x01\x04\x01")
    assert main(["analyze", str(noted), "--out", str(tmp_path / "out"), "--processes", "1", "--no-page"]) == 0
    result = json.loads((tmp_path / "out" / "r.json").read_text())
    assert result["marks"] == []
    assert any(note.startswith("annotations not read: ") and "r.atr" in note for note in result["notes"])
