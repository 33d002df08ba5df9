"""Detections that are no heartbeat: their training data, their class, and what the analysis does with them."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heartlm.analysis.analyze import Analyst
from heartlm.cli.main import main
from heartlm.corpus.corpus import open_corpus
from heartlm.databases.database import open_database
from heartlm.ecg.recording import ARTEFACT, BEAT_CLASSES, Annotations
from heartlm.errors import HeartlmError
from heartlm.inference.transformer import Transformer
from heartlm.models.store import load_model
from heartlm.runs.run_folder import RunFolder
from heartlm.simulate.randomness import stream
from heartlm.storage.reading import read_json
from recipes.noisy_pieces import add_noise, detections, noisy_database, weak_labels
from recipes.noisy_pieces import main as make_pieces

RATE = 250.0


def lead_of(beats_s: np.ndarray, pulses_s: tuple[float, ...] = (), seconds: float = 30.0) -> np.ndarray:
    """A lead with QRS complexes of 1 mV, pulses of 3 mV that are 0.3 s wide, and noise of 10 uV."""
    time_s = np.arange(round(seconds * RATE)) / RATE
    signal = np.random.default_rng(0).normal(0, 0.01, len(time_s))
    for at in beats_s:
        signal += np.exp(-(((time_s - at) / 0.012) ** 2))
    for at in pulses_s:
        signal -= 3 * np.exp(-(((time_s - at) / 0.08) ** 2))
    return signal.astype(np.float32)


BEATS_S = np.arange(0.6, 29.5, 0.8)


def test_detections_have_the_class_of_the_beat_near_them_or_none() -> None:
    sample = np.round(BEATS_S * RATE).astype(np.int64)
    known = Annotations(RATE, sample, np.where(np.arange(len(sample)) % 5 == 4, "V", "N"))
    marked = detections(lead_of(BEATS_S, (10.6,)), known)
    extra = marked.sample[marked.symbol == ARTEFACT] / RATE
    assert extra == pytest.approx([10.6], abs=0.15)
    assert (marked.symbol == "V").sum() == (known.symbol == "V").sum()


def test_weak_labels_are_normal_beats_and_pulses() -> None:
    beats = weak_labels(lead_of(BEATS_S, (10.6,)), RATE)
    assert beats.sample[beats.symbol == ARTEFACT] / RATE == pytest.approx([10.6], abs=0.15)
    assert (beats.symbol == "N").sum() >= len(BEATS_S) - 2
    noise = np.random.default_rng(1).normal(0, 0.3, round(30 * RATE)).astype(np.float32)
    assert weak_labels(noise, RATE).num_beats == 0


def test_noise_is_a_function_of_its_seed_and_has_the_height_of_beats() -> None:
    clean = lead_of(BEATS_S)
    recorded = [(np.random.default_rng(2).normal(0, 1, 90_000).astype(np.float32), 360.0)]
    first = [add_noise(clean, RATE, 1.0, recorded, stream(3, piece)) for piece in range(40)]
    again = [add_noise(clean, RATE, 1.0, recorded, stream(3, piece)) for piece in range(40)]
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    added = np.array([np.abs(noisy - clean).max() for noisy in first])
    assert 0.5 < np.median(added) < 5 and added.max() < 30


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory, tiny_database: Path) -> Path:
    folder = tmp_path_factory.mktemp("noisy") / "noisy"
    noisy_database(tiny_database, folder, pieces=3)
    return folder


def test_a_noisy_database_has_artefacts_and_patients_of_the_training_split_alone(
    tmp_path: Path, tiny_database: Path, noisy: Path
) -> None:
    source, database = open_database(tiny_database), open_database(noisy)
    counts = np.zeros(len(BEAT_CLASSES), np.int64)
    for record_id in database.record_ids:
        assert database.split_of(record_id) == "train"
        assert source.split_of(record_id.rsplit("_", 1)[0]) == "train"
        counts += np.bincount(database.annotations(record_id).beat_classes(), minlength=len(counts))
    assert counts[BEAT_CLASSES.index(ARTEFACT)] > 5 and counts[0] > 500 and counts[2] > 5
    again = tmp_path / "again"
    make_pieces([str(tiny_database), str(again), "--pieces", "3"])
    assert (again / "SHA256SUMS.txt").read_bytes() == (noisy / "SHA256SUMS.txt").read_bytes()
    about = read_json(noisy / "database.json", dict) | {"artefacts": False}
    (again / "database.json").write_text(json.dumps(about))
    assert ARTEFACT not in open_database(again).annotations(database.record_ids[0]).symbol


def test_a_database_without_known_beats_is_refused(tmp_path: Path, tiny_database: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in tiny_database.glob("*.[hd]*a*"):
        if path.suffix in (".hea", ".dat"):
            (bare / path.name).symlink_to(path)
    with pytest.raises(HeartlmError, match="no training recording can be used"):
        noisy_database(bare, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_learns_the_class_and_is_scored_on_beats_alone(
    tmp_path: Path, tiny_database: Path, noisy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, foundation, tuned = tmp_path / "corpus", tmp_path / "foundation", tmp_path / "tuned"
    words = ["tokenize", str(tiny_database), str(noisy), "--training-leads", "all", "--out", str(corpus)]
    assert main(words) == 0
    assert (np.asarray(open_corpus(corpus).beat_class) == BEAT_CLASSES.index(ARTEFACT)).sum() > 5
    size = ["--depth", "1", "--width", "32", "--steps", "2", "--threads", "1", "--out", str(foundation)]
    assert main(["pretrain", "--corpus", str(corpus), *size]) == 0
    words = ["finetune", str(foundation), "--task", "beats", "--corpus", str(corpus), "--steps", "3"]
    assert main([*words, "--threads", "1", "--out", str(tuned)]) == 0
    _, info = load_model(RunFolder(tuned).model("last"))
    assert info.classes == (*"NSVF", ARTEFACT)
    assert main(["evaluate", str(tuned), "--on", str(corpus), "--split", "train", "--no-baselines"]) == 0
    scores = read_json(next(tuned.glob("scores/*/scores.json")), dict)["scores"]
    assert scores["classes"] == list("NSVF")


def test_what_is_no_heartbeat_is_left_out_of_the_findings(tiny_database: Path) -> None:
    """If the class `|` is as probable as V, and a little more, every V becomes no heartbeat."""
    analyst = Analyst.load(Path("beats"), Path("af"), Path("waveform"))
    database = open_database(tiny_database)
    usual = {record_id: analyst.analyze(database.recording(record_id)) for record_id in database.record_ids}
    record_id = max(usual, key=lambda each: int((usual[each].symbol == "V").sum()))
    num_v = int((usual[record_id].symbol == "V").sum())
    assert num_v > 20
    model, info = copy.deepcopy(analyst.beats.model), analyst.beats.info
    assert isinstance(model, Transformer) and model.head is not None
    (weight, bias), v, artefact = model.head, info.classes.index("V"), info.classes.index(ARTEFACT)
    weight[artefact], bias[artefact] = weight[v], bias[v] + 0.01
    beats = replace(analyst.beats, model=model)
    findings = replace(analyst, beats=beats).analyze(database.recording(record_id))
    assert (findings.symbol == "V").sum() < num_v / 4
    assert findings.num_beats <= usual[record_id].num_beats - 0.7 * num_v
    assert set(findings.symbol.tolist()) <= set("NSVF")
    (note,) = [each for each in findings.notes if "artefacts, not heartbeats" in each]
    assert int(note.split()[0].replace(",", "")) >= 0.7 * num_v
    assert not any(each.kind in ("pause", "asystole") and not each.disputed for each in findings.events)
