"""Beats laid out on other rhythms: who they are of, what they are called, and when they come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heartlm.databases.database import open_database
from heartlm.ecg.recording import Annotations
from heartlm.errors import HeartlmError
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from recipes.patient_rhythms import ATRIAL, NORMAL, OWN, PatientRhythms, PlannedBeat
from recipes.retime import lay_out, main, retime_database, source_beats


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six patients, of whom some are trained on."""
    folder: Path = tmp_path_factory.mktemp("retime") / "simdb"
    simulate_database(folder, SimulationConfig(patients=6, minutes=8, seed=5))
    return folder


def test_recordings_are_of_training_patients_and_for_training(simulated: Path, tmp_path: Path) -> None:
    skipped = retime_database(simulated, tmp_path / "retimed", copies=1, num_beats=200)
    source, made = open_database(simulated), open_database(tmp_path / "retimed")
    training = [record for record in source.record_ids if source.split_of(record) == "train"]
    assert made.name == "simdb-retimed"
    assert sorted(made.record_ids) == sorted(f"{record}_1" for record in training if record not in skipped)
    for record in made.record_ids:
        assert made.split_of(record) == "train"
        assert made.patient_of(record) == source.patient_of(record[:-2]).replace("simdb/", "simdb-retimed/")
        assert (annotations := made.annotations(record)) is not None
        assert set(annotations.symbol.tolist()) <= {"N", "A", "V"}
        assert annotations.num_beats >= 200


def test_recordings_of_one_name_in_several_folders(simulated: Path, tmp_path: Path) -> None:
    for number, name in enumerate(open_database(simulated).record_ids[:3]):
        folder = tmp_path / "nested" / f"ward{number}"
        folder.mkdir(parents=True)
        for path in simulated.glob(f"{name}.*"):
            (folder / f"r{path.suffix}").write_bytes(path.read_bytes().replace(name.encode(), b"r"))
    splits = '{"splits": {"ward0/r": "train", "ward1/r": "train", "ward2/r": "train"}}'
    (tmp_path / "nested" / "database.json").write_text(splits)
    skipped = retime_database(tmp_path / "nested", tmp_path / "out", copies=1, num_beats=100)
    made = open_database(tmp_path / "out")
    assert len(made.record_ids) == 3 - len(skipped) >= 1
    patients = {made.patient_of(record) for record in made.record_ids}
    assert patients == {f"nested-retimed/{record[:-2].replace('_', '/')}" for record in made.record_ids}


def test_without_labels_beats_are_judged_from_the_signal(simulated: Path, tmp_path: Path) -> None:
    """Annotated beats keep their places and lose their labels: what is taken for N and V is N and V."""
    database, agreed, judged = open_database(simulated), 0, 0
    for record in database.record_ids:
        recording, annotations = database.recording(record), database.annotations(record)
        assert annotations is not None
        hidden = replace(annotations, symbol=np.full(annotations.num_beats, "N", "<U1"), beats_labelled=False)
        assert source_beats(recording, hidden, labels=True) is None
        if (beats := source_beats(recording, hidden, labels=False)) is None:
            continue
        classes = annotations.beat_classes()[np.isin(annotations.sample, beats.sample)]
        for symbol, index in (("N", 0), ("V", 2)):
            agreed += int((classes[beats.symbol == symbol] == index).sum())
            judged += int((beats.symbol == symbol).sum())
    assert judged > 1000
    assert agreed / judged > 0.95
    retime_database(simulated, tmp_path / "drawn", copies=1, num_beats=200, labels=False)
    made = open_database(tmp_path / "drawn")
    assert all((known := made.annotations(record)) is not None and known.beats_labelled for record in made.record_ids)


def test_the_same_seed_writes_the_same_bytes(simulated: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        retime_database(simulated, tmp_path / name, copies=1, num_beats=100, seed=seed)
    sums = [(tmp_path / name / "SHA256SUMS.txt").read_text() for name in ("one", "two", "other")]
    assert sums[0] == sums[1] != sums[2]


def test_beats_stand_where_the_plan_says(simulated: Path) -> None:
    database = open_database(simulated)
    recording = database.recording("s0001")
    annotations = database.annotations("s0001")
    assert annotations is not None
    symbol = np.where(annotations.beat_classes() == 0, "N", "").astype("<U1")
    known = Annotations(annotations.rate_hz, annotations.sample, symbol)
    plan = [PlannedBeat(1.0 + 0.7 * place, NORMAL, OWN) for place in range(60)]
    signal, position = lay_out(plan, recording.signal(leads=[0])[0], known, 0, np.random.default_rng(0))
    np.testing.assert_array_equal(position, [round(beat.at_s * annotations.rate_hz) for beat in plan])
    size = np.abs(signal - np.median(signal))
    at_beats = np.median(size[position])
    between = np.median(size[position[:-1] + round(0.6 * annotations.rate_hz)])
    assert at_beats > 5 * between


def test_tachycardia_is_fast_steady_and_atrial() -> None:
    intervals_s = 0.8 + 0.03 * np.sin(np.arange(400))
    rhythms = PatientRhythms(intervals_s, False, np.random.default_rng(1))
    rhythms.sinus(20)
    first = len(rhythms.beats)
    rhythms.incessant = 0.0
    rhythms.tachycardia()
    run = [beat for beat in rhythms.beats[first:] if beat.symbol == ATRIAL]
    assert [beat.symbol for beat in rhythms.beats[first:]] == [ATRIAL] * len(run) + [NORMAL]
    interval_s = np.diff([beat.at_s for beat in run])
    assert np.median(interval_s) < 0.75 * rhythms.base_s
    assert interval_s.std() < 0.03 * interval_s.mean()


def test_sinus_tachycardia_is_normal_and_comes_slowly() -> None:
    rhythms = PatientRhythms(np.full(400, 0.8), False, np.random.default_rng(2))
    rhythms.sinus_tachycardia()
    interval_s = np.diff([beat.at_s for beat in rhythms.beats])
    assert {beat.symbol for beat in rhythms.beats} == {NORMAL}
    assert interval_s.min() < 0.9 * interval_s.max()
    assert np.abs(np.diff(np.log(interval_s))).max() < 0.05


def test_a_database_without_training_beats_is_refused(tmp_path: Path) -> None:
    simulate_database(tmp_path / "short", SimulationConfig(patients=2, minutes=0.5))
    with pytest.raises(HeartlmError, match="no training recording can be retimed"):
        retime_database(tmp_path / "short", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_recipe_writes_what_the_function_writes_and_replaces_nothing(
    simulated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(simulated), str(tmp_path / "out"), "--copies", "1", "--beats", "50"])
    assert "1 recordings of each training recording" in capsys.readouterr().out
    retime_database(simulated, tmp_path / "other", copies=1, num_beats=50)
    assert (tmp_path / "out/SHA256SUMS.txt").read_bytes() == (tmp_path / "other/SHA256SUMS.txt").read_bytes()
    with pytest.raises(SystemExit):
        main([str(simulated), str(tmp_path / "out")])
    assert "exists and is not empty" in capsys.readouterr().err
