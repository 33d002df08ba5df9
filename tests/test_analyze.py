"""`heartlm analyze` from a recording to its files, with the models that come with heartlm."""

from __future__ import annotations

import csv
import itertools
import math
import re
from dataclasses import asdict, fields
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heartlm.analysis.analyze import Analyst, _blocks, _voted
from heartlm.analysis.findings import Findings
from heartlm.analysis.limits import Limits
from heartlm.analysis.signal_quality import SWINGS, LeadQuality, best_leads, lead_quality
from heartlm.cli.analyze import _print_findings
from heartlm.cli.main import main
from heartlm.databases.database import Database, open_database
from heartlm.ecg.definitions import LIMITS
from heartlm.ecg.matching import match_beats
from heartlm.ecg.recording import Recording
from heartlm.inference import transformer
from heartlm.inference.transformer import Transformer
from heartlm.models.heart import TOKENS_AT_ONCE
from heartlm.monitor.alarms import AlarmRules
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording
from heartlm.storage.reading import read_json
from tests.conftest import Refused
from tests.test_ecg_detect import fast_lead


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    folder = tmp_path_factory.mktemp("analyze") / "simdb"
    words = ["data", "simulate", str(folder), "--patients", "4", "--minutes", "3", "--seed", "5", "--noise", "0.3"]
    assert main(words) == 0
    return open_database(folder)


@pytest.fixture(scope="module")
def findings(database: Database, analyst: Analyst) -> list[Findings]:
    return [analyst.analyze(database.recording(record_id)) for record_id in database.record_ids]


def recording_of(signals: np.ndarray, rate_hz: float = 250.0) -> Recording:
    """A recording in memory; `signals` float32 `[num_leads, num_samples]` in mV."""
    names = tuple(["I", "II", "III", "V1", "V2", "V3"][: len(signals)])
    return Recording(
        rate_hz=rate_hz,
        num_samples=signals.shape[1],
        lead_names=names,
        units=("mV",) * len(names),
        path=Path("r"),
        samples=lambda start, stop, leads: signals[list(leads), start:stop],
    )


def test_beats_are_where_the_simulator_put_them(database: Database, findings: list[Findings]) -> None:
    for found in findings:
        known = database.annotations(found.recording.record_id)
        match = match_beats(known.sample, found.sample, found.recording.rate_hz)
        assert len(match.reference) > 0.75 * known.num_beats  # the simulator draws V beats that one lead hardly shows
        assert len(match.extra) < 0.03 * known.num_beats
        assert found.probability.min() >= 0.25
        assert set(found.symbol.tolist()) <= set("NSVF")


def test_a_piece_without_signal_is_unreadable_and_has_no_beats(analyst: Analyst, database: Database) -> None:
    signals = database.recording(database.record_ids[0]).signal()
    signals[:, 60 * 250 : 90 * 250] = np.nan
    found = analyst.analyze(recording_of(signals))
    (event,) = found.of_kind("unreadable")
    assert abs(event.start - 60 * 250) <= 250 * 10
    assert abs(event.stop - 90 * 250) <= 250 * 10
    assert not found.of_kind("asystole")
    assert not np.any((found.sample > event.start) & (found.sample < event.stop))


def test_seconds_of_blocks_stay_in_step_at_a_fractional_rate(
    analyst: Analyst, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of 20 s has 2,560 samples at 127.97 Hz, which are a little more than 20 s."""
    monkeypatch.setattr("heartlm.analysis.analyze.BLOCK_S", 20.0)
    monkeypatch.setattr("heartlm.analysis.analyze.MARGIN_S", 10.0)
    recording = recording_of(database.recording(database.record_ids[0]).signal()[:1, ::2], 127.97)
    blocks = [analyst._block(recording, start, stop, (0,), (0,)) for start, stop in _blocks(recording)]
    assert len(blocks) > 6
    for name in ("seconds", "regular", "flutter"):
        assert sum(len(getattr(block, name)) for block in blocks) == math.ceil(recording.duration_s)


@pytest.mark.parametrize("kind", ["flat", "missing", "noise", "short"])
def test_hopeless_signals_give_findings_without_alarms(analyst: Analyst, kind: str) -> None:
    rng, num = np.random.default_rng(0), 250 * (2 if kind == "short" else 60)
    signal = {"flat": np.zeros(num), "missing": np.full(num, np.nan)}.get(kind, rng.normal(0, 0.3, num))
    found = analyst.analyze(recording_of(signal[None].astype(np.float32)))
    assert {event.kind for event in found.events} <= {"unreadable"}
    assert found.annotations().rhythms[-1].stop == num


def test_a_dead_lead_is_not_chosen_and_does_not_vote(database: Database) -> None:
    signals = database.recording(database.record_ids[0]).signal()
    dead = np.zeros_like(signals[:1])
    assert best_leads(recording_of(np.concatenate([dead, signals])), (0, 1, 2))[-1] != 0
    quality = lead_quality(signals[0], 250.0)
    assert quality.quality.mean() > 0.8
    assert lead_quality(dead[0], 250.0).quality.max() < 0.001


def lead_of(sample: np.ndarray, quality: float = 1.0, off: slice = slice(0, 0)) -> LeadQuality:
    """A lead with these beats and this quality, whose electrode is off in some samples."""
    swings = np.zeros(100 + int(sample[-1]), np.uint8)
    swings[off] = SWINGS
    pieces = np.full(len(swings) // 2500 + 1, quality, np.float32)
    return LeadQuality(sample, np.ones(len(sample)), pieces, swings)


def test_leads_vote_by_their_quality() -> None:
    clean, noisy = np.arange(100, 2400, 200), np.arange(50, 2400, 70)
    voted = _voted([lead_of(clean), lead_of(clean + 4, 0.9), lead_of(noisy, 0.3)], 250.0)
    assert voted.tolist() == clean.tolist()
    assert _voted([lead_of(clean), lead_of(noisy, 0.9)], 250.0).tolist() == clean.tolist()


def test_a_lead_does_not_vote_where_it_is_off() -> None:
    beats = np.arange(100, 2400, 200)
    off = slice(620, 1480)
    shown = beats[(beats < 620) | (beats >= 1480)]
    wrong = np.sort(np.append(shown, [850, 1040]))
    assert _voted([lead_of(wrong, 1.0, off), lead_of(beats, 0.7)], 250.0).tolist() == beats.tolist()
    assert _voted([lead_of(wrong), lead_of(beats, 0.7)], 250.0).tolist() == wrong.tolist()


@pytest.mark.parametrize("rate_bpm", [75, 150, 240, 300])
def test_leads_that_mark_the_beats_of_a_fast_rhythm_at_other_places_vote_for_each_beat(rate_bpm: int) -> None:
    beats = 100 + np.arange(100) * round(60 * 250 / rate_bpm)
    assert _voted([lead_of(beats), lead_of(beats + 15), lead_of(beats - 5)], 250.0).tolist() == beats.tolist()


@pytest.mark.parametrize("rate_bpm", [240, 300])
def test_a_regular_rhythm_of_an_infant_is_no_af(analyst: Analyst, rate_bpm: int) -> None:
    signal, peaks = fast_lead(rate_bpm)
    result = analyst.analyze(recording_of(signal[None]))
    assert len(result.sample) == len(peaks)
    assert [event.kind for event in result.events if event.kind in ("AF", "flutter", "VF", "pause")] == []


def test_af_that_is_shorter_than_the_windows_of_the_model_is_found(analyst: Analyst) -> None:
    """54 s between two minutes of sinus rhythm and one."""
    config = SimulationConfig(minutes=4.0)
    signal, known = simulate_recording(config, 9)
    [(start, stop)] = [(span.start, span.stop) for span in known.rhythms if span.name == "AFIB"]
    found = [event for event in analyst.analyze(recording_of(signal)).events if event.kind == "AF"]
    inside = sum(min(event.stop, stop) - max(event.start, start) for event in found)
    assert 60 > (stop - start) / config.rate_hz > 50
    assert inside > 0.5 * (stop - start) and inside > 0.8 * sum(event.stop - event.start for event in found)


def bigeminy(coupling_s: float = 0.45) -> np.ndarray:
    """One lead of a minute in which each beat is followed by a wide one; float32 `[num_samples]`."""
    random = np.random.default_rng(1)
    time_s = np.arange(60 * 250) / 250
    signal = 0.03 * np.sin(1.3 * time_s) + random.normal(0, 0.01, len(time_s))
    for at_s in np.arange(0.5, 58.5, 1.5):
        height, wide_s = random.normal(1, 0.03), at_s + coupling_s
        for centre_s, mv, width_s in ((-0.12, 0.12, 0.02), (0, 1.2, 0.012), (0.03, -0.25, 0.012), (0.2, 0.32, 0.035)):
            signal += height * mv * np.exp(-0.5 * ((time_s - at_s - centre_s) / width_s) ** 2)
        for centre_s, mv, width_s in ((0, 2.0, 0.04), (0.1, -0.7, 0.03), (0.33, -0.6, 0.06)):
            signal += height * mv * np.exp(-0.5 * ((time_s - wide_s - centre_s) / width_s) ** 2)
    return signal.astype(np.float32)


@pytest.mark.parametrize("coupling_s", [0.4, 0.45, 0.5])
def test_the_wide_beats_of_bigeminy_are_beats(analyst: Analyst, coupling_s: float) -> None:
    result = analyst.analyze(recording_of(bigeminy(coupling_s)[None]))
    assert len(result.sample) >= 2 * 39 - 1
    kinds = {event.kind for event in result.events}
    assert "bigeminy" in kinds and "bradycardia" not in kinds
    assert np.mean(result.symbol[1:-1:2] != result.symbol[2::2]) > 0.9


def test_a_rate_that_depends_on_detections_that_are_left_out_is_disputed_and_tells_so(
    analyst: Analyst, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave_out_every_second(_: Any, num_beats: int, *__: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.tile(np.float32([1, 0, 0, 0]), (num_beats, 1)), np.arange(num_beats) % 2 == 1

    monkeypatch.setattr("heartlm.analysis.analyze.without_artefacts", leave_out_every_second)
    result = analyst.analyze(recording_of(bigeminy()[None]))
    assert result.summary()["num_left_out"] == 39
    assert [event for event in result.events if event.kind in ("bradycardia", "pause") and not event.disputed] == []
    _print_findings(result.summary(), result.kinds)
    assert "39 detections left out that are artefacts" in capsys.readouterr().out
    assert "Detections left out as artefacts" in result.report(tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("mains_hz", "height_mv"), [(50, 4.0), (60, 2.0)])
def test_hum_harms_no_finding_and_is_told(
    analyst: Analyst, capsys: pytest.CaptureFixture[str], tmp_path: Path, mains_hz: int, height_mv: float
) -> None:
    signal, peaks = fast_lead(75)
    hum = height_mv * np.sin(2 * np.pi * mains_hz * np.arange(len(signal)) / 250 + 1)
    noisy = recording_of((signal + hum)[None].astype(np.float32))
    result, clean = analyst.analyze(noisy), analyst.analyze(recording_of(signal[None]))
    assert len(result.sample) == len(peaks) and result.events == clean.events
    assert result.symbol.tolist() == clean.symbol.tolist() and clean.hum_hz == {}
    np.testing.assert_array_equal(result.recording.signal(), noisy.signal())
    _print_findings(result.summary(), result.kinds)
    assert f"mains hum removed before the analysis: {mains_hz} Hz in I" in capsys.readouterr().out
    assert f"{mains_hz} Hz in I" in result.report(tmp_path / "page.html").read_text(encoding="utf-8")


def test_blocks_cover_a_recording_once_whatever_its_length() -> None:
    for minutes in (0.2, 59, 61, 75, 76, 24 * 60 + 7):
        recording = recording_of(np.zeros((1, 1), np.float32))
        object.__setattr__(recording, "num_samples", round(minutes * 60 * 250))
        blocks = _blocks(recording)
        assert [blocks[0][0], blocks[-1][1]] == [0, recording.num_samples]
        assert all(one[1] == other[0] for one, other in itertools.pairwise(blocks))
        assert max(stop - start for start, stop in blocks) <= 1.25 * 3600 * 250


def test_a_folder_gives_files_for_each_recording_and_one_table(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import wfdb

    out = tmp_path / "out"
    words = ["analyze", str(database.folder), "--out", str(out), "--processes", "1"]
    assert main(words) == 0
    assert f"{len(database.record_ids)} recordings analysed, 0 left out" in capsys.readouterr().out
    with (out / "summary.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["record"] for row in rows] == list(database.record_ids)
    for row in rows:
        written = wfdb.rdann(str(out / row["record"]), "hlm")
        beats = [symbol for symbol in written.symbol if symbol in "NSVF"]
        summary = read_json(out / f"{row['record']}.json")["summary"]
        assert int(row["num_beats"]) == len(beats) == summary["num_beats"]
        hrv = read_json(out / f"{row['record']}.json")["hrv"]
        assert (float(row["sdnn_ms"]) if row["sdnn_ms"] else None) == hrv["sdnn_ms"] and hrv["notes"]
        with (out / f"{row['record']}.events.csv").open() as stream:
            assert len(list(csv.DictReader(stream))) == sum(num or 0 for num in summary["events"].values())
        with (out / f"{row['record']}.hours.csv").open() as stream:
            assert sum(int(hour["num_beats"]) for hour in csv.DictReader(stream)) == len(beats)
    links = re.findall(r'<a href="(.*?)">', (out / "index.html").read_text())
    assert links == [f"{record_id}.html" for record_id in database.record_ids]
    assert all((out / link).is_file() for link in links)
    before = {path: path.stat().st_mtime_ns for path in out.glob("s0*")}
    assert main(words) == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("s0*")} == before


def test_several_recordings_folders_and_patterns_are_one_command(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str], refused: Refused
) -> None:
    first, second = database.record_ids[:2]
    ward = tmp_path / "ward"
    ward.mkdir()
    for path in database.folder.glob(f"{second}.*"):
        (ward / path.name).write_bytes(path.read_bytes())
    (ward / "readme.txt").write_text("no recording")
    words = ["--out", str(tmp_path / "out"), "--processes", "1", "--no-page"]
    assert main(["analyze", str(database.folder / first), str(ward / "*"), str(ward), *words]) == 1
    shown = capfd.readouterr().out
    assert "2 recordings analysed, 1 left out" in shown and "readme.txt: is no table" in shown
    with (tmp_path / "out/summary.csv").open() as stream:
        assert [row["record"] for row in csv.DictReader(stream)] == [first, second]
    assert "its results would have the name of those of" in refused(
        "delineate", database.folder / second, ward, *words[:4]
    )
    assert refused("analyze", ward / "*.edf", *words) == f"heartlm analyze: {ward}/*.edf: no file has such a name"


def test_results_have_clock_times_and_the_patient_unless_anonymous(database: Database, tmp_path: Path) -> None:
    edfio = pytest.importorskip("edfio")
    recording = database.recording(database.record_ids[0])
    signals = [
        edfio.EdfSignal(mv, 250, label=f"ECG {name}", physical_dimension="mV", physical_range=(-9, 9))
        for name, mv in zip(recording.leads, recording.signal().astype(float), strict=True)
    ]
    patient = edfio.Patient(code="MCH-0234567", sex="F", birthdate=date(1951, 5, 2), name="Haagse_Harriet")
    start = {"recording": edfio.Recording(startdate=date(2024, 3, 1)), "starttime": time(23, 58, 30)}
    edfio.Edf(signals, patient=patient, **start).write(tmp_path / "h.edf")
    out, identifying = tmp_path / "out", ("Haagse", "0234567", "1951", "2024-03")

    def results(*words: str) -> tuple[dict[str, Any], str]:
        assert main(["analyze", str(tmp_path / "h.edf"), "--out", str(out), *words]) == 0
        return read_json(out / "h.json"), "".join(path.read_text("latin-1") for path in sorted(out.iterdir()))

    found, text = results()
    assert all(word in text for word in identifying)
    assert found["patient"] == {
        "name": "Haagse Harriet",
        "identifier": "MCH-0234567",
        "sex": "female",
        "birth_date": "1951-05-02",
        "age": 72,
    }
    assert found["summary"]["start"] == "2024-03-01 23:58:30"
    for event in found["events"]:
        elapsed = datetime.fromisoformat(event["clock"]) - datetime(2024, 3, 1, 23, 58, 30)
        assert elapsed.total_seconds() == pytest.approx(event["start_s"], abs=0.001)
    with (out / "h.events.csv").open() as stream:
        assert [row["clock"] for row in csv.DictReader(stream)] == [event["clock"] for event in found["events"]]
    with (out / "h.hours.csv").open() as stream:
        assert [(row["start_s"], row["clock"]) for row in csv.DictReader(stream)] == [("0.0", "2024-03-01 23:58:30")]
    found, text = results("--anonymous")  # replaces the results with the patient
    assert found["summary"]["start"] == "23:58:30"
    assert not any(word in text for word in identifying)


def test_limits_are_options_or_a_file_with_the_names_of_the_monitor(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str], refused: Refused
) -> None:
    record, out, file = database.folder / database.record_ids[0], tmp_path / "out", tmp_path / "limits.yaml"

    def analyzed(*words: str) -> dict[str, Any]:
        assert main(["analyze", str(record), "--out", str(out), "--no-page", *words]) == 0
        return read_json(out / f"{record.name}.json")

    usual = analyzed()
    assert usual["settings"]["limits"] == asdict(Limits())
    slow = analyzed("--bradycardia-bpm", "300", "--bradycardia-beats", "4")
    assert slow["summary"]["seconds"]["bradycardia"] > usual["summary"]["seconds"]["bradycardia"]
    assert slow["settings"]["limits"] == asdict(Limits(bradycardia_bpm=300, bradycardia_beats=4))
    assert "below 300/min over 4 beats" in capfd.readouterr().out
    file.write_text("bradycardia_bpm: 200\npause_s: 3\n")
    limits = analyzed("--rules", str(file), "--bradycardia-bpm", "300")["settings"]["limits"]
    assert (limits["bradycardia_bpm"], limits["pause_s"]) == (300, 3)
    wrong = {
        "vt_veto_below: 1": "vt_veto_below: found",
        "pause_s: -1": "pause_s: -1.0 found",
        "- 1": "fields with their values",
    }
    for text, reason in wrong.items():
        file.write_text(text)
        line = refused("analyze", record, "--out", out, "--rules", file)
        assert "limits.yaml" in line and reason in line
    for words, num in ((), 0), (("--bradycardia-bpm", "300"), 1):
        assert main(["alarms", str(record), "--out", str(out), *words]) == 0
        assert ("extreme bradycardia" in capfd.readouterr().out) == num
    assert set(LIMITS) == {field.name for field in fields(Limits)} <= {field.name for field in fields(AlarmRules)}


def test_what_cannot_be_analysed_is_listed(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str], refused: Refused
) -> None:
    folder = tmp_path / "db"
    folder.mkdir()
    first = database.record_ids[0]
    for path in database.folder.glob(f"{first}.*"):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "torn.hea").write_text("torn 1 250 1000\ntorn.dat 212 200 11 1024 0 0 0 MLII\n")
    assert main(["analyze", str(folder), "--out", str(tmp_path / "out"), "--processes", "1", "--no-page"]) == 1
    out = capfd.readouterr().out
    assert "left out: torn: " in out
    assert "1 recordings analysed, 1 left out" in out
    refused("analyze", folder / "torn", "--out", tmp_path / "out")


def test_leads_and_windows_are_computed_together_where_a_device_takes_many(
    analyst: Analyst, database: Database, findings: list[Findings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches as large as those of a GPU, the findings are the same."""
    num_windows, num_passes = list[int](), 0
    compute, classify = Transformer.probabilities, Analyst._class_probabilities

    def counted(model: Transformer, codes: NDArray[np.uint16]) -> NDArray[np.float32]:
        if model is analyst.beats.model:
            num_windows.append(len(codes))
        return compute(model, codes)

    def classified(*arguments: Any) -> Any:
        nonlocal num_passes
        num_passes += 1
        return classify(*arguments)

    monkeypatch.setattr(Transformer, "probabilities", counted)
    monkeypatch.setattr(Analyst, "_class_probabilities", classified)
    monkeypatch.setattr(transformer, "TOKENS_AT_ONCE", TOKENS_AT_ONCE["cuda"])
    found = analyst.analyze(database.recording(database.record_ids[0]))
    assert len(found.leads) > 1 and len(num_windows) == num_passes
    assert min(num_windows) > len(found.leads)
    expected = findings[0]
    assert np.array_equal(found.sample, expected.sample) and found.symbol.tolist() == expected.symbol.tolist()
    np.testing.assert_allclose(found.probability, expected.probability, atol=1e-5)
    assert [(each.kind, each.start, each.stop) for each in found.events] == [
        (each.kind, each.start, each.stop) for each in expected.events
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("words", [["--processes", "1"], pytest.param(["--processes", "2"], marks=pytest.mark.slow)])
def test_a_gpu_that_cannot_compute_is_a_user_error(
    database: Database, tmp_path: Path, refused: Refused, words: list[str]
) -> None:
    said = refused("analyze", database.folder, "--out", tmp_path, "--device", "cuda", *words)
    assert said.startswith("heartlm analyze: device: 'cuda' found")


def test_an_unknown_model_is_reported_once_for_all_processes(
    database: Database, tmp_path: Path, refused: Refused
) -> None:
    words = ["--out", str(tmp_path), "--beats", "nonesuch", "--processes", "2"]
    assert refused("analyze", database.folder, *words).startswith("heartlm analyze: nonesuch: no such run folder")


def test_a_recording_unlike_those_learned_from_is_said_to_be_so(analyst: Analyst, findings: list[Findings]) -> None:
    assert not any(found.unlike for found in findings)
    signals = findings[0].recording.signal(0, 60 * 250)
    found = analyst.analyze(recording_of(np.float32(1000) * signals))  # microvolts that a header calls millivolts
    assert any("mV" in line for line in found.unlike)
    assert found.summary()["unlike"] == "; ".join(found.unlike)
    noise = np.random.default_rng(0).normal(0, 0.3, (1, 60 * 250)).astype(np.float32)
    assert any("codes" in line for line in analyst.analyze(recording_of(noise)).unlike)


@pytest.mark.parametrize("rate_hz", [0.02, 20.0])
def test_several_leads_at_a_rate_too_low_for_beats_are_one_line(
    rate_hz: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    time_s = np.arange(300) / rate_hz
    signal = np.random.default_rng(1).normal(size=(2, 300))
    lines = [f"{at},{first},{second}" for at, first, second in zip(time_s, *signal, strict=True)]
    (tmp_path / "r.csv").write_text("\n".join(["time_s,I (mV),II (mV)", *lines]))
    assert main(["analyze", str(tmp_path / "r.csv"), "--out", str(tmp_path / "out")]) == 2
    assert f"r.csv: rate_hz is {rate_hz:g}, beats can be detected from 62 Hz on" in capsys.readouterr().err
