"""Delineation of simulated hearts whose waves are known; failures that users of other programs report; files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import heartlm
from heartlm.cli.main import main
from heartlm.delineation.delineate import (
    ABSENT,
    OFFSET,
    ONSET,
    PEAK,
    QRS,
    Delineation,
    P,
    T,
    _assign,
    add_p_of_some_leads,
)
from heartlm.delineation.intervals import Intervals, measure
from heartlm.delineation.network import CLASSES, Waves
from heartlm.delineation.recordings import write_waves
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import read_annotation_file
from tests.conftest import Refused
from tests.synthetic_leads import VENTRICULAR, WAVES

RATES = (100.0, 128.0, 250.0, 257.0, 360.0, 500.0, 1000.0)
WITHOUT_P = WAVES[1:]


def heart_mv(beats_s: np.ndarray, duration_s: float, rate_hz: float, waves: tuple = WAVES) -> np.ndarray:
    """A lead with the same waves after each beat, and a little noise; float32 `[num_samples]`."""
    time_s = np.arange(int(duration_s * rate_hz)) / rate_hz
    signal = np.random.default_rng(0).normal(0, 0.01, len(time_s))
    for beat_s in beats_s:
        for after_s, height_mv, width_s in waves:
            signal += height_mv * np.exp(-0.5 * ((time_s - beat_s - after_s) / width_s) ** 2)
    return signal.astype(np.float32)


def delineated(
    signal: np.ndarray, rate_hz: float = 250.0, beats: np.ndarray | None = None, leads: str = "II"
) -> Intervals:
    recording = Recording.from_array(np.atleast_2d(signal), rate_hz=rate_hz, leads=leads.split())
    return heartlm.delineate(recording, beats)


def has(found: Delineation, wave: int, lead: int = 0) -> np.ndarray:
    return found.waves[:, lead, wave, PEAK] >= 0


REGULAR_S = np.arange(1.0, 29.0, 0.8)


@pytest.mark.parametrize("rate_hz", RATES)
def test_waves_lie_where_they_are_at_every_rate(rate_hz: float) -> None:
    found = delineated(heart_mv(REGULAR_S, 30, rate_hz), rate_hz).delineation
    assert found.num_beats == len(REGULAR_S)
    points_s = found.waves[:, 0] / rate_hz - REGULAR_S[:, None, None]
    for wave, (peak_s, onset_s, offset_s, reach_s) in {
        P: (-0.17, -0.23, -0.11, 0.025),
        QRS: (0.0, -0.05, 0.06, 0.02),
        T: (0.26, 0.14, 0.36, 0.05),
    }.items():
        assert np.abs(points_s[:, wave, PEAK] - peak_s).max() < 0.02
        assert np.abs(np.median(points_s[:, wave, ONSET]) - onset_s) < reach_s
        assert np.abs(np.median(points_s[:, wave, OFFSET]) - offset_s) < reach_s
    assert (np.diff(found.waves[:, 0].reshape(len(REGULAR_S), 9), axis=1) > 0).all()
    assert (found.confidence > 0.5).all() and not len(found.other_p[0].peak)


def test_given_beats_keep_their_positions_and_their_waves() -> None:
    signal, beats = heart_mv(REGULAR_S, 30, 250.0), np.round(REGULAR_S * 250).astype(np.int64) + 6
    found, own = delineated(signal, beats=beats[3:9]).delineation, delineated(signal).delineation
    np.testing.assert_array_equal(found.beats, beats[3:9])
    np.testing.assert_array_equal(found.waves, own.waves[3:9])


def test_a_given_beat_without_a_complex_has_no_waves() -> None:
    signal = heart_mv(REGULAR_S, 40, 250.0)
    found = delineated(signal, beats=np.array([9 * 250, 38 * 250])).delineation
    assert has(found, QRS).tolist() == [True, False]
    assert (found.waves[1] == ABSENT).all() and (found.confidence[1] == 0).all()


def test_p_waves_without_any_beat_must_be_as_sure_as_others() -> None:
    places, kinds = np.arange(100, 600, 100), np.array([CLASSES.index("P")] * 4 + [CLASSES.index("T")])
    waves = Waves(kinds, places - 10, places, places + 10, np.array([0.9, 0.5, 0.79, 0.8, 0.9], np.float32))
    others = [_assign(waves, beats, 250.0)[2] for beats in (np.array([5000]), np.empty(0, np.int64))]
    assert [each.peak.tolist() for each in others] == [[100, 400], [100, 400]]


def test_leads_of_the_same_name_are_told_apart() -> None:
    signal = heart_mv(REGULAR_S, 30, 250.0)
    found = delineated(np.stack([signal, 2 * signal, signal]), leads="ECG ECG V1")
    assert list(found.summary()["leads"]) == ["ECG", "ECG (2)", "V1"]
    height_mv = {name: each["r_mv"]["median"] for name, each in found.summary()["leads"].items()}
    assert height_mv["ECG (2)"] == pytest.approx(2 * height_mv["ECG"], rel=0.05)
    assert {"ECG_t_mv", "ECG (2)_t_mv", "V1_t_mv"} <= found.hour_rows()[0].keys()
    assert [row["lead"] for row in found.lead_rows()[:3]] == ["ECG", "ECG (2)", "V1"]


def test_a_few_beats_of_a_long_recording_are_read_alone() -> None:
    num, rate_hz, asked = 4 * 3600 * 100, 100.0, list[int]()

    def read(start: int, stop: int, leads: Sequence[int]) -> np.ndarray:
        asked.append(stop - start)
        return np.zeros((len(leads), stop - start), np.float32)

    recording = Recording(
        rate_hz=rate_hz, num_samples=num, lead_names=("II",), units=("mV",), path=Path("r"), samples=read
    )
    beats = np.arange(1000, num, 8000)  # every 80 s
    absent, none = np.full((len(beats), 1, 3, 3), ABSENT), np.zeros((len(beats), 1, 3), np.float32)
    measured = measure(Delineation(recording, (0,), beats, absent, none, absent[:, 0], none[:, 0], ()))
    assert len(measured.beat_rows()) == len(beats) and max(asked) < 10 * rate_hz


def test_no_file_of_an_earlier_delineation_stays(tmp_path: Path) -> None:
    signal = heart_mv(REGULAR_S, 30, 250.0)
    some = delineated(np.stack([signal, signal]), leads="II V1").delineation
    assert {path.name for path in write_waves(some, tmp_path / "r")} == {"r.ii", "r.v1", "r.all"}
    absent = np.where(np.arange(2)[:, None, None] == 1, ABSENT, some.waves)
    assert {path.name for path in write_waves(replace(some, waves=absent), tmp_path / "r")} == {"r.ii", "r.all"}
    assert {path.name for path in tmp_path.iterdir()} == {"r.ii", "r.all"}


def test_frames_without_beats_have_their_columns() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    signal = heart_mv(REGULAR_S, 30, 250.0)
    some, none = delineated(signal), delineated(signal, beats=np.empty(0, np.int64))
    for frame, expected in ((none.to_frame(), some.to_frame()), (none.leads_frame(), some.leads_frame())):
        assert len(frame) == 0 and frame.columns.tolist() == expected.columns.tolist()


@pytest.mark.parametrize("rate_bpm", [45, 100, 140])
def test_slow_and_fast_hearts(rate_bpm: int) -> None:
    # neurokit2 issues 364 and 1042: boundaries are lost or belong to another beat at 140/min
    rr_s, shrunk = 60 / rate_bpm, min(1, (60 / rate_bpm / 0.8) ** 0.5)
    waves = tuple((after_s * (shrunk if abs(after_s) > 0.1 else 1), mv, s * shrunk) for after_s, mv, s in WAVES)
    beats_s = np.arange(1.0, 28.0, rr_s)
    found = delineated(heart_mv(beats_s, 29, 250.0, waves), 250.0).delineation
    assert found.num_beats == len(beats_s)
    for wave in (P, QRS, T):
        assert has(found, wave).mean() >= 0.95
    assert (found.waves[:-1, 0, T, OFFSET] < found.waves[1:, 0, QRS, ONSET]).all()


def test_a_recording_may_begin_and_end_within_a_wave() -> None:
    # neurokit2 issues 422, 506 and 1127: errors, or waves outside of the recording
    whole = heart_mv(REGULAR_S, 30, 250.0)
    for begin_s, end_s in ((0.99, 12.0), (1.02, 11.67), (1.2, 11.4), (0.85, 11.28)):
        signal = whole[round(begin_s * 250) : round(end_s * 250)]
        found = delineated(signal).delineation
        assert found.num_beats >= 12
        assert found.waves.max() < len(signal) and found.waves.min() >= ABSENT
        assert found.all_leads.max() < len(signal)
        inner = found.waves[2:-2, 0]
        assert (inner >= 0).all()
    for length in (1, 2, 15, 40, 250):
        assert delineated(whole[:length]).delineation.waves.shape[1:] == (1, 3, 3)


def test_no_p_wave_is_invented_in_atrial_fibrillation() -> None:
    # neurokit2 issues 532 and 761
    random = np.random.default_rng(5)
    beats_s = 1 + np.cumsum(random.uniform(0.45, 1.1, 60))
    signal = heart_mv(beats_s, beats_s[-1] + 2, 250.0, WITHOUT_P)
    time_s = np.arange(len(signal)) / 250
    fibrillation = 0.03 * np.sin(2 * np.pi * 6.3 * time_s + 3 * np.sin(2 * np.pi * 0.9 * time_s))
    found = delineated(signal + fibrillation.astype(np.float32)).delineation
    assert has(found, QRS).all() and found.num_beats == 60
    assert has(found, P).mean() <= 0.1 and len(found.other_p[0].peak) <= 3


def test_ventricular_beats_have_no_p_wave() -> None:
    normal_s, early_s = np.arange(1.0, 60.0, 0.8), np.arange(1.0, 60.0, 0.8)[5::6] - 0.3
    normal_s = np.setdiff1d(normal_s, normal_s[5::6])
    signal = heart_mv(normal_s, 61, 250.0) + heart_mv(early_s, 61, 250.0, VENTRICULAR)
    found = delineated(signal).delineation
    is_early = np.abs(found.beats[:, None] / 250 - early_s).min(axis=1) < 0.1
    assert is_early.sum() == len(early_s)
    assert has(found, P)[is_early].mean() <= 0.1 and has(found, P)[~is_early].mean() >= 0.95
    width = found.all_leads[:, QRS, OFFSET] - found.all_leads[:, QRS, ONSET]
    assert np.median(width[is_early]) > 1.3 * np.median(width[~is_early])


def test_several_p_waves_between_two_complexes() -> None:
    atria_s = np.arange(1.0, 59.0, 0.75)
    signal = heart_mv(atria_s + 0.17, 60, 250.0, WAVES[:1]) + heart_mv(atria_s[::2] + 0.17, 60, 250.0, WITHOUT_P)
    found = delineated(signal).delineation
    assert found.num_beats == len(atria_s[::2]) and has(found, P).mean() > 0.9
    assert len(found.other_p[0].peak) >= 0.8 * len(atria_s[1::2])


@pytest.mark.parametrize(
    ("num_leads", "peaks", "sure", "expected"),
    [
        (12, [100, 104, 96, 102], 0.8, 101),  # four of twelve
        (12, [100, 104, 96, 102], 0.7, None),
        (12, [100, 104, 96], 0.8, None),
        (12, [100, 140, 180, 220], 0.8, None),  # not the same wave
        (12, [100, 104, 96, 102, 400], 0.8, 101),
        (4, [100, 104, 96], 0.8, 100),
        (2, [100, 100], 0.8, None),  # the mean decides
    ],
)
def test_a_clear_p_wave_of_a_third_of_the_leads_counts(
    num_leads: int, peaks: list[int], sure: float, expected: int | None
) -> None:
    """Peaks of P in the first leads, at 500 Hz, while the mean of the leads shows none."""
    waves, confidence = np.full((1, num_leads, 3, 3), ABSENT), np.zeros((1, num_leads, 3), np.float32)
    waves[0, : len(peaks), P] = np.array(peaks)[:, None] + [-20, 0, 20]
    confidence[0, : len(peaks), P] = sure
    common, common_confidence = np.full((1, 3, 3), ABSENT), np.zeros((1, 3), np.float32)
    add_p_of_some_leads(waves, confidence, common, common_confidence, 500.0)
    assert common[0, P].tolist() == ([ABSENT] * 3 if expected is None else [expected - 20, expected, expected + 20])
    assert common_confidence[0, P] == pytest.approx(0 if expected is None else sure)
    assert (common[0, QRS:] == ABSENT).all()
    already = np.full((1, 3, 3), 7)
    add_p_of_some_leads(waves, confidence, already, common_confidence, 500.0)
    assert (already == 7).all(), "what the mean shows stays"


def test_two_leads_have_edges_of_their_own() -> None:
    """Leads whose waves end at other times: together they decide which waves there are, each where its own end."""
    wide = tuple((after_s, height_mv, 1.4 * width_s) for after_s, height_mv, width_s in WAVES)
    first, second = heart_mv(REGULAR_S, 30, 250.0), heart_mv(REGULAR_S, 30, 250.0, wide)
    both = delineated(np.stack([first, second]), leads="II V1").delineation
    for lead, signal in enumerate((first, second)):
        alone = delineated(signal, beats=both.beats).delineation.all_leads
        np.testing.assert_allclose(both.waves[:, lead][..., [ONSET, OFFSET]], alone[..., [ONSET, OFFSET]], atol=1)
    t_end = both.waves[:, :, T, OFFSET]
    assert np.median(t_end[:, 1] - t_end[:, 0]) >= 4
    together = both.all_leads[:, T, OFFSET]
    assert (together <= t_end.max(axis=1)).all() and np.median(t_end.max(axis=1) - together) >= 1


def test_flat_leads_and_gaps_have_no_waves() -> None:
    # neurokit2 issue 1032: a flat or missing lead ends in an error
    signal = np.stack([np.zeros(7500, np.float32), heart_mv(REGULAR_S, 30, 250.0), np.full(7500, np.nan, np.float32)])
    signal[1, 2500:3500], signal[1, 5000:5100] = np.nan, np.nan
    found = delineated(signal, leads="I II III").delineation
    assert found.leads == (1, 0, 2)
    assert (found.waves[:, 1:] == ABSENT).all() and not found.confidence[:, 1:].any()
    positions = found.waves[:, 0, :, PEAK]
    assert not np.isnan(signal[1][positions[positions >= 0]]).any()
    expected = REGULAR_S[(REGULAR_S < 9.7) | (REGULAR_S > 14.3)]
    expected = expected[np.abs(expected - 20.2) > 0.5] * 250
    assert np.abs(found.beats[:, None] - expected).min(axis=0).max() < 10
    assert delineated(np.zeros(5000)).delineation.num_beats == 0


def test_a_single_bad_sample_spoils_one_wave_at_most() -> None:
    signal = heart_mv(REGULAR_S, 30, 250.0)
    clean = delineated(signal).delineation
    for bad in (np.inf, -np.inf, np.nan, 1e30):
        spoilt = signal.copy()
        spoilt[2510] = bad
        measured = delineated(spoilt)
        assert np.abs(measured.delineation.waves - clean.waves).max(axis=(1, 2, 3)).astype(bool).sum() <= 1
        json.dumps(measured.summary(), allow_nan=False)


def test_the_result_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    beats_s = np.arange(1.0, 119.0, 0.83)
    signal = heart_mv(beats_s, 120, 250.0)
    whole = delineated(signal).delineation
    monkeypatch.setattr("heartlm.delineation.delineate._BLOCK_S", 15 * 2.048)
    blocks = delineated(signal).delineation
    np.testing.assert_array_equal(blocks.beats, whole.beats)
    assert np.abs(blocks.waves - whole.waves).max() <= 1


def test_intervals_amplitudes_and_axis() -> None:
    heart = heart_mv(REGULAR_S, 30, 500.0)
    measured = delineated(np.stack([0.5 * heart, heart]), 500.0, leads="I aVF")
    summary = measured.summary()
    medians = {name: each["median"] for name, each in summary["intervals"].items()}
    assert medians["rr_ms"] == pytest.approx(800, abs=2) and summary["p_share"] > 0.95
    assert medians["pr_ms"] == pytest.approx(180, abs=30) and medians["qt_ms"] == pytest.approx(410, abs=50)
    qt = medians["qt_ms"]
    assert medians["qtc_bazett_ms"] == pytest.approx(qt / 0.8**0.5, abs=3)
    assert medians["qtc_fridericia_ms"] == pytest.approx(qt / 0.8 ** (1 / 3), abs=3)
    assert medians["qtc_framingham_ms"] == pytest.approx(qt + 30.8, abs=3)
    assert medians["qtc_hodges_ms"] == pytest.approx(qt + 26.25, abs=3)
    foot = {name: each["median"] for name, each in summary["leads"]["aVF"].items()}
    assert foot["p_mv"] == pytest.approx(0.12, abs=0.03) and foot["r_mv"] == pytest.approx(1.0, abs=0.15)
    assert foot["t_mv"] == pytest.approx(0.3, abs=0.04) and foot["q_mv"] < -0.05 and foot["s_mv"] < -0.1
    assert summary["leads"]["I"]["r_mv"]["median"] == pytest.approx(0.5 * foot["r_mv"], rel=0.1)
    assert summary["axis_degrees"] == pytest.approx(np.degrees(np.arctan2(2 / 3**0.5, 0.5)), abs=3)
    assert len(measured.beat_rows()) == len(REGULAR_S) == len(measured.lead_rows()) // 2
    assert measured.beat_rows()[0]["rr_ms"] is None


def test_st_levels_are_relative_to_the_baseline_before_the_complex() -> None:
    elevated = (*WAVES, (0.12, 0.2, 0.03), (0.16, 0.2, 0.03))
    plain, raised = (delineated(heart_mv(REGULAR_S, 30, 250.0, waves) + 0.7) for waves in (WAVES, elevated))
    level = {name: [np.nanmedian(each.amplitudes[name]) for each in (plain, raised)] for name in ("st60_mv", "st80_mv")}
    for flat, high in level.values():
        assert abs(flat) < 0.06 and high - flat > 0.1


def test_errors_name_what_to_do() -> None:
    signal = heart_mv(REGULAR_S, 30, 250.0)
    with pytest.raises(HeartlmError, match="from 100 Hz on"):
        delineated(signal, 90.0)
    for beats in ([5, 4], [-1, 4], [0, 10**9], [0.5, 3.0], [[1, 2]]):
        with pytest.raises(HeartlmError, match="beats: "):
            delineated(signal, beats=np.array(beats))
    with pytest.raises(HeartlmError, match="no lead 'V9'"):
        heartlm.delineate(Recording.from_array(signal, rate_hz=250.0, leads=["II"]), leads=["V9"])


def test_files_are_written_once_and_hold_the_waves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heart = heart_mv(REGULAR_S, 30, 250.0)
    Recording.from_array(np.stack([heart, -heart]), rate_hz=250.0, leads=["MLII", "V1"]).to_wfdb(tmp_path / "db", "1")
    out = tmp_path / "out"
    assert main(["delineate", str(tmp_path / "db/1"), "--out", str(out)]) == 0
    assert f"{len(REGULAR_S)} beats, P wave in 100 %" in capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    assert names == {"1.mlii", "1.v1", "1.all", "1.beats.csv", "1.leads.csv", "1.hours.csv", "1.json"}
    found = heartlm.delineate(tmp_path / "db/1").delineation
    for annotator, table in (("mlii", found.waves[:, 0]), ("v1", found.waves[:, 1]), ("all", found.all_leads)):
        read = read_annotation_file(out / f"1.{annotator}")
        np.testing.assert_array_equal(read.sample, np.sort(table[table >= 0]))
        assert "".join(read.symbol[9:18]) == "(p)(N)(t)"
    stamp = (out / "1.mlii").stat().st_mtime_ns
    assert main(["delineate", str(tmp_path / "db"), "--out", str(out)]) == 0  # not again
    assert (out / "1.mlii").stat().st_mtime_ns == stamp and (out / "summary.csv").is_file()
    assert main(["delineate", str(tmp_path / "db/1"), "--out", str(out), "--leads", "V1"]) == 0
    assert list(json.loads((out / "1.json").read_text())["summary"]["leads"]) == ["V1"]
    assert (out / "1.v1").stat().st_mtime_ns > stamp


def test_wrong_requests_end_with_one_line(tmp_path: Path, refused: Refused) -> None:
    heart = heart_mv(REGULAR_S, 30, 250.0)
    folder = tmp_path / "db"
    Recording.from_array(heart, rate_hz=250.0, leads=["II"]).to_wfdb(folder, "1")
    for arguments, text in (
        (["--out", str(folder)], "choose another"),
        (["--beats", "annotated"], "no annotated beats"),
        (["--leads", "V7"], "no lead 'V7'"),
        (["--processes", "0"], "at least 1"),
    ):
        assert text in refused("delineate", folder / "1", "--out", tmp_path / "out", *arguments)


def test_unreadable_recordings_of_a_folder_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "db"
    for name in ("1", "2"):
        Recording.from_array(heart_mv(REGULAR_S, 30, 250.0), rate_hz=250.0, leads=["II"]).to_wfdb(folder, name)
    header = folder / "2.hea"
    header.write_text(header.read_text().replace("2 1 250", "2 1 80", 1))
    assert main(["delineate", str(folder), "--out", str(tmp_path / "out"), "--processes", "1"]) == 1
    printed = capsys.readouterr().out
    assert "left out: 2: " in printed and "1 recordings delineated, 1 left out" in printed
