"""Corrections teach: reviews become labels, and a model that learns from them keeps its head and what it knew."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from heartlm.cli.main import main
from heartlm.corpus.corpus import open_corpus
from heartlm.databases.database import open_database
from heartlm.ecg.recording import ARTEFACT, BEAT_CLASSES
from heartlm.labels.tokens import BEAT_TASK_CLASSES
from heartlm.models.store import load_foundation, load_model, save_model
from heartlm.review.records import Records
from heartlm.review.review import Review
from heartlm.review.teach import FEWEST, held_back, keep_weights, reviewed_recordings
from tests.conftest import Refused
from tests.reviewed import FALSE_VT, TRUE_V, beat_places, drawn, store

DELETED = 40


def reviewed(folder: Path, names: list[str]) -> Path:
    """Write recordings whose false VT a reviewer named N, and in which a beat was deleted; return the reviews."""
    for seed, name in enumerate(names):
        recording = drawn(folder / "ward", name, seed)
        store(recording, folder / "out")
        review = Review.open(recording, folder / "out")
        places = beat_places()
        review.apply({"do": "name", "beats": places[list(FALSE_VT)], "symbol": "N", "spread": False})
        review.apply({"do": "delete", "beats": [int(places[DELETED])]})
    return folder / "out"


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six reviewed recordings and one that is not reviewed; read it only."""
    folder = tmp_path_factory.mktemp("reviews")
    out = reviewed(folder, [f"r{number}" for number in range(6)])
    store(drawn(folder / "ward", "unseen"), out)
    return out


@pytest.fixture(scope="module")
def knows_artefacts(tiny_finetuned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a run with a head that has a class for artefacts too, as shipped models have."""
    run = Path(shutil.copytree(tiny_finetuned, tmp_path_factory.mktemp("start") / "beats"))
    classes = (*BEAT_TASK_CLASSES, ARTEFACT)
    model, info = load_foundation(run / "models/best", classes=classes, pooled=False, dropout=0.0, keep_weights=True)
    save_model(run / "models/best", model, replace(info, classes=classes))
    return run


def test_a_model_learns_from_reviews(
    reviews: Path, knows_artefacts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "ours"
    words = ["--reviews", str(reviews), "--out", str(run), "--steps", "3", "--threads", "1", "--keep", "1"]
    assert main(["finetune", str(knows_artefacts), *words]) == 0

    corpus = open_corpus(tmp_path / "ours.reviews" / "corpus")
    about = json.loads((run / "reviews.json").read_text())
    assert corpus.tokenizer_hash == load_model(knows_artefacts / "models/best")[1].tokenizer_hash
    # Labels: what the reviewer said, and no beat where a detection was deleted.
    for row in range(len(corpus.records)):
        found = corpus.beat_class[corpus.tokens_of(row)]
        expected = np.full(len(beat_places()), BEAT_CLASSES.index("N"))
        expected[list(TRUE_V)] = BEAT_CLASSES.index("V")
        expected[DELETED] = BEAT_CLASSES.index(ARTEFACT)
        assert found.tolist() == expected.tolist()
    # A patient is either trained on, by all leads, or scored, by one.
    rows = corpus.records.rows
    splits = {row.patient_id: row.split for row in rows}
    assert [row.split for row in rows].count("train") == 2 * 5
    assert {name for name, split in splits.items() if split == "test"} == set(about["held_back"])
    assert about["left_out"] == {"unseen": "not reviewed"}
    assert about["before"]["num_beats"] == about["after"]["num_beats"] == len(beat_places()) - 1

    # All weight to what it was: it answers as before.
    torch.testing.assert_close(head_of(run, "last"), head_of(knows_artefacts, "best"))
    assert about["before"]["confusion"] == about["after"]["confusion"]
    printed = capsys.readouterr().out
    assert "unseen: left out, not reviewed" in printed and "trained on reviews of 5 patients" in printed
    assert f"before {about['before']['per_class']['V']['f1']['value']:.3f}" in printed


def test_what_the_model_knew_is_kept_by_its_weight(reviews: Path, tiny_finetuned: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["--reviews", str(reviews), "--out", str(run), "--steps", "3", "--threads", "1", "--keep", "0"]
    assert main(["finetune", str(tiny_finetuned), *words]) == 0
    start, after = head_of(tiny_finetuned, "best"), head_of(run, "last")
    assert not torch.allclose(start, after)
    keep_weights(tiny_finetuned, run, 0.75)
    for which in ("best", "last"):
        torch.testing.assert_close(head_of(run, which), 0.75 * start + 0.25 * after)


def head_of(run: Path, which: str) -> torch.Tensor:
    return load_model(run / "models" / which)[0].state_dict()["class_head.weight"]


def test_a_head_for_artefacts_stays_where_the_labels_have_none(knows_artefacts: Path) -> None:
    asked = {"classes": BEAT_TASK_CLASSES, "pooled": False, "dropout": 0.0, "keep_weights": True}
    kept, info = load_foundation(knows_artefacts / "models/best", **asked, keeps_more=True)
    assert info.classes == (*BEAT_TASK_CLASSES, ARTEFACT)
    torch.testing.assert_close(kept.state_dict()["class_head.weight"], head_of(knows_artefacts, "best"))
    new, info = load_foundation(knows_artefacts / "models/best", **asked)
    assert info.classes == BEAT_TASK_CLASSES and len(new.state_dict()["class_head.weight"]) == len(BEAT_TASK_CLASSES)


def test_patients_held_back_stay_so_as_reviews_are_added() -> None:
    patients = [f"ward/{number}" for number in range(40)]
    assert len(held_back(set(patients[:5]))) == 1 and len(held_back(set(patients))) == 8
    # Those that change are few: a patient comes in only as the fifth grows.
    assert len(held_back(set(patients[:30])) - held_back(set(patients))) <= 2


@pytest.mark.parametrize("num", (0, FEWEST - 1))
def test_too_few_reviews_are_one_line(num: int, tiny_finetuned: Path, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "out").mkdir()
    reviewed(tmp_path, [f"r{number}" for number in range(num)])
    if num:  # one of which the analysis is of other samples
        (tmp_path / "out/damaged.analysis.safetensors").write_bytes(b"none")
    words = ["--reviews", str(tmp_path / "out"), "--out", str(tmp_path / "run")]
    line = refused("finetune", tiny_finetuned, *words)
    assert (f"{num} patients found, at least {FEWEST}" if num else "no RECORD.analysis.safetensors found") in line
    assert ("left out: " in line and "damaged.analysis.safetensors" in line) == bool(num)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("run")]


def test_a_run_is_not_replaced(reviews: Path, tiny_finetuned: Path, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "run").mkdir()
    assert "exists already" in refused("finetune", tiny_finetuned, "--reviews", reviews, "--out", tmp_path / "run")


def test_a_recording_that_changed_is_left_out(tmp_path: Path) -> None:
    out = reviewed(tmp_path, ["r1"])
    samples = tmp_path / "ward/r1.dat"
    samples.write_bytes(samples.read_bytes()[::-1])
    found, left_out = reviewed_recordings(out)
    assert found == [] and "changed since its analysis" in left_out["r1"]
    assert open_database(tmp_path / "ward").record_ids == ("r1",)


def test_the_queue_asks_first_where_most_wrong_beats_are_expected(tmp_path: Path) -> None:
    for seed, name in enumerate(("answered", "open", "unseen")):
        recording = drawn(tmp_path / "ward", name, seed)
        if name != "unseen":
            store(recording, tmp_path / "out")
    review = Review.open(tmp_path / "ward/answered", tmp_path / "out")
    while (question := review.question()) is not None and question.expected > 0.5:
        review.apply({"do": "name", "beats": question.beats, "symbol": question.symbol})
    plain = Records(tmp_path / "ward", tmp_path / "out", "")
    assert plain.names == ["answered", "open", "unseen"] and plain.about("open") == ""
    queue = Records(tmp_path / "ward", tmp_path / "out", "", queue=True)
    assert queue.names == ["open", "answered", "unseen"]
    expected = Review.open(tmp_path / "ward/open", tmp_path / "out").doubt().sum()
    assert queue.about("open") == f"About {expected:,.0f} wrong beats." and queue.about("unseen") == ""
