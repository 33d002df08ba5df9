"""Cross-validation by patients in one command: who is held out, what is scored, and how it resumes."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heartlm.cli.main import main
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.folds import _counts, fold_by_patient, in_fold
from heartlm.corpus.rows import RecordTable
from heartlm.databases.splits import fold_of
from heartlm.errors import HeartlmError
from heartlm.evaluation.results import Predictions
from heartlm.runs.run_folder import RunFolder
from heartlm.tasks.load import load_finetuned
from heartlm.training.log import Log
from tests.conftest import Refused
from tests.forked import Forked

SHORT = ("--window", "32", "--steps", "4", "--threads", "1", "--device", "cpu", "--checkpoint-every", "2")


def words(corpus: Path, parent: Path, out: Path, *more: str) -> list[str]:
    return ["finetune", str(parent), "--corpus", str(corpus), "--folds", "3", "--out", str(out), *SHORT, *more]


@pytest.fixture(scope="module")
def validated(tiny_corpus: Path, tiny_pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("folds") / "run"
    assert main(words(tiny_corpus, tiny_pretrained, out)) == 0
    return out


def scores_in(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "scores.json").read_text())
    return content


def with_rows(corpus: Corpus, **changes: str) -> Corpus:
    """The corpus with another first row."""
    first, *rest = corpus.records.rows
    return replace(corpus, records=RecordTable([replace(first, **changes), *rest]))


def test_the_fold_of_a_patient_follows_from_seed_and_name_alone():
    # By  printf '0/mitdb/100' | sha256sum,  whose first eight bytes are a number, modulo 5, plus 1.
    assert [fold_of(f"mitdb/{name}", 5, 0) for name in (100, 101, 103)] == [4, 1, 4]
    sizes = Counter(fold_of(f"p{number}", 5, 1) for number in range(5000))
    assert sorted(sizes) == [1, 2, 3, 4, 5]
    assert all(900 < size < 1100 for size in sizes.values())
    assert [fold_of("p1", 5, seed) for seed in range(8)] != [fold_of("p1", 5, 0)] * 8


def test_each_patient_is_held_out_once_and_never_on_two_sides(tiny_corpus: Path):
    corpus = open_corpus(tiny_corpus)
    held_out = list[str]()
    for number in (1, 2, 3):
        records = in_fold(corpus, {"number": number, "of": 3, "seed": 0}).records
        sides = {split: {*records.patient_id[records.select(split)]} for split in ("train", "validation", "test")}
        assert sum(map(len, sides.values())) == len(set.union(*sides.values())) == len({*records.patient_id})
        held_out += sides["test"]
    assert sorted(held_out) == sorted({*corpus.records.patient_id})


def test_excluded_recordings_stay_excluded_and_simulated_rhythms_follow_their_patient(tiny_corpus: Path):
    corpus = open_corpus(tiny_corpus)
    other, patient = corpus.records.rows[0].patient_id, str(corpus.records.patient_id[-1])
    left_out = with_rows(corpus, split="excluded")
    assert other not in fold_by_patient(left_out, 3, 0)
    assert in_fold(left_out, {"number": 1, "of": 3, "seed": 0}).records.split[0] == "excluded"
    simulated = with_rows(corpus, patient_id=patient.replace("/", "-retimed/"))
    own = fold_by_patient(corpus, 3, 0)[patient]
    splits = [in_fold(simulated, {"number": number, "of": 3, "seed": 0}).records.split[0] for number in (1, 2, 3)]
    assert splits[own - 1] == "excluded", "its beats are those of the held-out patient"
    assert Counter(splits) == {"excluded": 2, "train": 1}


def test_labels_are_counted_as_a_corpus_counts_them(tiny_corpus: Path):
    corpus = open_corpus(tiny_corpus)
    (database,) = corpus.manifest["databases"]
    assert _counts(corpus, corpus.records) == {database["name"]: database["splits"]}


def test_a_fold_without_a_patient_is_refused(tiny_corpus: Path):
    with pytest.raises(HeartlmError, match=r"folds: 40 found, but fold .* none of the 16 patients .* fewer folds"):
        fold_by_patient(open_corpus(tiny_corpus), 40, 0)


def test_scores_are_those_of_every_patient_by_the_model_that_did_not_see_it(validated: Path, tiny_corpus: Path):
    table = {row["patient"]: row["fold"] for row in csv.DictReader((validated / "folds.csv").open())}
    predictions = Predictions.read(validated / "scores" / "pooled")
    folds, parts = [scores_in(validated / f"fold-{n}" / "scores" / "held-out") for n in (1, 2, 3)], []
    for number, scores in enumerate(folds, 1):
        path = validated / f"fold-{number}"
        parts.append(Predictions.read(path / "scores" / "held-out"))
        assert {*parts[-1].patients} == {name for name, fold in table.items() if fold == str(number)}
        tuned = load_finetuned(path)
        trained = tuned.training_corpus().records
        assert not {*trained.patient_id[trained.select("train")]} & {*parts[-1].patients}
        assert scores["notes"] == [], "no patient was trained on"
        in_training = sum((Counter(lead.tokens.beat_class.tolist()) for lead in tuned.training_leads()), Counter())
        counts = tuned.training_counts("beats_per_class")
        assert [in_training[place] for place in range(4)] == [counts[name] for name in "NSVF"]
    pooled = scores_in(validated / "scores" / "pooled")
    assert {*predictions.patients} == {*table} == {*open_corpus(tiny_corpus).records.patient_id}
    assert pooled["scores"]["confusion"] == np.sum([each["scores"]["confusion"] for each in folds], axis=0).tolist()
    assert pooled["scores"]["num_patients"] == 16
    low, high = pooled["scores"]["accuracy"]["ci"]
    assert low < pooled["scores"]["accuracy"]["value"] < high
    assert [row["patient"] for row in pooled["scores"]["per_patient"]] == sorted(table)


def test_a_model_of_a_fold_is_later_scored_on_its_own_patients_too(
    validated: Path, tiny_corpus: Path, refused: Refused
):
    fold = validated / "fold-2"
    assert main(["evaluate", str(fold), "--on", str(tiny_corpus), "--threads", "1", "--name", "again"]) == 0
    again, held_out = (scores_in(fold / "scores" / name) for name in ("again", "held-out"))
    assert again["records"] == held_out["records"]
    assert again["scores"] == held_out["scores"]
    assert again["baselines"]["gradient boosting"], "fitted on the training patients of the fold"
    assert "holds the runs of several folds, one expected" in refused("evaluate", validated, "--on", tiny_corpus)
    assert "heartlm finetune --folds N trains and scores N models" in refused(
        "evaluate", fold, "--on", tiny_corpus, "--folds", "3"
    )


def test_a_stopped_cross_validation_continues_where_it_was(
    validated: Path,
    tiny_corpus: Path,
    tiny_pretrained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    refused: Refused,
):
    out, write = tmp_path / "run", Log.write

    def write_and_stop(self: Log, step: int, split: str, entry: dict[str, float]) -> None:
        write(self, step, split, entry)
        if self.job.folder.path.name == "fold-2" and step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Log, "write", write_and_stop)
    assert main(words(tiny_corpus, tiny_pretrained, out, "--log-every", "2")) == 143
    assert f"continue with --resume {out}/fold-2 alone, or with all folds by --resume {out}" in capfd.readouterr().err
    monkeypatch.setattr(Log, "write", write)
    first = (out / "fold-1" / "models" / "best" / "model.safetensors").stat()
    assert main(["finetune", "--resume", str(out)]) == 0
    assert (out / "fold-1" / "models" / "best" / "model.safetensors").stat() == first, "finished folds are kept"
    assert "step 2/4" not in capfd.readouterr().err.partition("fold 3 of 3")[0], "fold 2 continued after step 2"
    for number in (1, 2, 3):
        one, other = (path / f"fold-{number}" / "models" / "best" / "model.safetensors" for path in (out, validated))
        assert one.read_bytes() == other.read_bytes()
    assert scores_in(out / "scores" / "pooled")["scores"] == scores_in(validated / "scores" / "pooled")["scores"]
    assert "nothing to resume" in refused("finetune", "--resume", out)


@pytest.mark.slow
def test_a_killed_cross_validation_gives_the_same_scores(
    validated: Path, tiny_corpus: Path, tiny_pretrained: Path, tmp_path: Path
):
    out = tmp_path / "run"
    command: list[str] = words(tiny_corpus, tiny_pretrained, out)
    for sign in ("fold-1/checkpoints/*/files.json", "fold-2/run.json", "fold-3/scores/held-out", "scores/pooled"):
        with Forked(*command) as process:
            while not any(out.glob(sign)) and process.poll() is None:
                pass
            process.kill()
        command = ["finetune", "--resume", str(out)]
    if not RunFolder(out).is_finished:
        assert main(command) == 0
    assert scores_in(out / "scores" / "pooled")["scores"] == scores_in(validated / "scores" / "pooled")["scores"]


def test_settings_of_folds_that_do_not_fit(tiny_corpus: Path, tiny_pretrained: Path, tmp_path: Path, refused: Refused):
    base = ["finetune", str(tiny_pretrained), "--corpus", str(tiny_corpus), "--out", str(tmp_path / "run")]
    for options, message in {
        ("--folds", "2"): "folds: 2 found, at least 3 expected",
        ("--fold", "1"): "fold: 1 found, 1 to folds expected",
        ("--folds", "3", "--fold", "4"): "fold: 4 found, 1 to 3 expected",
        ("--folds", "3", "--measure"): "measure: true found",
    }.items():
        assert message in refused(*base, *options)
    assert not (tmp_path / "run").exists()
