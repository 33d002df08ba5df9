"""`heartlm evaluate` from end to end on a small simulated database: what it writes, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from heartlm.cli.main import main
from heartlm.corpus.build import build_corpus
from heartlm.databases.database import open_database
from heartlm.errors import HeartlmError
from heartlm.report.page import write_report
from heartlm.tasks.finetune import finetune
from heartlm.tasks.load import load_finetuned, load_random_init
from heartlm.tasks.task import FinetuneConfig
from heartlm.tokenizers.rhythm import RhythmTokenizer
from heartlm.training.config import PretrainConfig
from heartlm.training.pretrain import pretrain
from tests.scored_again import check_scored_again

FAST = ("--threads", "1", "--bootstrap", "50")


@pytest.fixture
def beats_run(tiny_finetuned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_finetuned, tmp_path / "beats"))


@pytest.fixture(scope="module")
def scratch_run(tiny_pretrained: Path, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scratch") / "run"
    settings = {"run": tiny_pretrained, "corpus": tiny_corpus, "out": out, "from_scratch": True}
    return finetune(FinetuneConfig(**settings, window=32, steps=2, threads=1, device="cpu"))


@pytest.fixture(scope="module")
def rhythm_corpus(tiny_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rhythm") / "intervals"
    build_corpus([tiny_database], RhythmTokenizer(), folder, fit=False)
    return folder


@pytest.fixture(scope="module")
def rhythm_runs(rhythm_corpus: Path) -> dict[str, Path]:
    """Runs of the rhythm task whose heads label tokens and windows."""
    common = {"corpus": rhythm_corpus, "window": 32, "threads": 1, "device": "cpu"}
    parent = pretrain(PretrainConfig(**common, out=rhythm_corpus.parent / "foundation", depth=1, steps=2))
    labels = {**common, "run": parent, "task": "rhythm", "learning_rate": 5e-3}
    runs = {
        head: finetune(FinetuneConfig(**labels, out=rhythm_corpus.parent / head, head=head, steps=steps))
        for head, steps in (("token", 40), ("window", 3))
    }
    mixed = {"out": rhythm_corpus.parent / "mixed", "head": "window", "shortest_window": 8, "threshold": 0.4}
    return runs | {"mixed": finetune(FinetuneConfig(**labels, **mixed, steps=6))}


def evaluate(run: Path, on: Path, *options: str) -> int:
    return main(["evaluate", str(run), "--on", str(on), *FAST, *options])


def scores_of(run: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "scores" / name / "scores.json").read_text())
    return content


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err.strip().splitlines()[-1]
    assert text.startswith("heartlm evaluate: ")
    return text


def test_beats_of_a_corpus_are_scored_beside_baselines(
    beats_run: Path, scratch_run: Path, tiny_corpus: Path, capsys: pytest.CaptureFixture[str]
):
    assert evaluate(beats_run, tiny_corpus, "--random-init", str(scratch_run)) == 0
    folder = beats_run / "scores" / "corpus-test-annotated"
    files = {"predictions.parquet", "scores.json"}
    assert {path.name for path in folder.iterdir()} == files
    scores = scores_of(beats_run, folder.name)
    assert scores["schema"] == 1
    assert (scores["task"], scores["split"], scores["beats"]) == ("beats", "test", "annotated")
    assert set(scores["baselines"]) == {"majority class", "gradient boosting", "random initialisation"}
    assert scores["notes"] == ["random initialisation was trained for 2 steps, the model for 30"]
    block = scores["scores"]
    assert (block["num_beats"], block["num_patients"], block["num_left_out"]) == (721, 5, 0)
    assert [block["per_class"][name]["support"] for name in "NSVF"] == [665, 28, 27, 1]
    assert scores["baselines"]["majority class"]["per_class"]["N"]["se"]["value"] == 1.0
    assert all(np.sum(each["confusion"]) == 721 for each in scores["baselines"].values())
    printed = capsys.readouterr().out
    assert "721 beats, annotated, 5 recordings, 5 patients" in printed
    assert "F1, gradient boosting" in printed
    assert f"wrote {folder}" in printed


def test_the_model_beats_the_majority_class(beats_run: Path, tiny_corpus: Path):
    assert evaluate(beats_run, tiny_corpus) == 0
    scores = scores_of(beats_run, "corpus-test-annotated")
    assert scores["scores"]["macro_f1"]["value"] > scores["baselines"]["majority class"]["macro_f1"]["value"]


def test_the_predictions_table_gives_the_confusion_matrix_again(beats_run: Path, tiny_corpus: Path):
    assert evaluate(beats_run, tiny_corpus, "--no-baselines", "--name", "mine") == 0
    table = pyarrow.parquet.read_table(beats_run / "scores" / "mine" / "predictions.parquet")
    names = ["database", "record", "patient", "sample", "time_s", "reference", "predicted", "probabilities"]
    assert table.column_names == names
    classes = table.schema.metadata[b"classes"].decode().split(",")
    probabilities = np.array(table["probabilities"].to_pylist())
    assert probabilities.sum(axis=1) == pytest.approx(1, abs=1e-4)
    assert [classes[place] for place in probabilities.argmax(axis=1)] == table["predicted"].to_pylist()
    confusion = np.zeros((4, 4), int)
    for reference, predicted in zip(table["reference"].to_pylist(), table["predicted"].to_pylist(), strict=True):
        confusion[classes.index(reference), classes.index(predicted)] += 1
    scores = scores_of(beats_run, "mine")
    assert scores["scores"]["confusion"] == confusion.tolist()
    check_scored_again(beats_run / "scores" / "mine")
    assert scores["baselines"] == {}


def test_a_folder_of_recordings_gives_the_scores_of_its_corpus(beats_run: Path, tiny_corpus: Path, tiny_database: Path):
    assert evaluate(beats_run, tiny_corpus, "--no-baselines", "--name", "tokens") == 0
    assert evaluate(beats_run, tiny_database, "--no-baselines", "--name", "recordings") == 0
    assert scores_of(beats_run, "tokens")["scores"] == scores_of(beats_run, "recordings")["scores"]


def test_the_report_shows_the_scores(beats_run: Path, tiny_corpus: Path):
    assert evaluate(beats_run, tiny_corpus) == 0
    page = write_report(beats_run).read_text(encoding="utf-8")
    assert "F1, gradient boosting" in page
    assert f"heartlm evaluate {beats_run} --on {tiny_corpus}" in page


def test_detected_beats_are_matched_and_the_rest_is_counted(
    beats_run: Path, tiny_database: Path, capsys: pytest.CaptureFixture[str]
):
    assert evaluate(beats_run, tiny_database, "--beats", "detected") == 0
    block = scores_of(beats_run, "tinydb-test-detected")["scores"]
    assert block["num_beats"] == 721
    assert block["confusion_labels"][-1] == "none"
    confusion = np.array(block["confusion"])
    missed, extra = confusion[:, -1].sum(), confusion[-1].sum()
    assert 0 < missed + extra < 0.1 * 721
    assert f"({missed} not detected, and {extra} detections that are no beat)" in capsys.readouterr().out
    table = pyarrow.parquet.read_table(beats_run / "scores" / "tinydb-test-detected" / "predictions.parquet")
    assert table["predicted"].to_pylist().count("none") == missed
    assert table["reference"].to_pylist().count("none") == extra


def test_a_training_corpus_that_is_gone_leaves_a_note(
    beats_run: Path, tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = json.loads((beats_run / "data.json").read_text())
    data[0]["path"] = str(tmp_path / "gone")
    (beats_run / "data.json").write_text(json.dumps(data))
    assert evaluate(beats_run, tiny_corpus) == 0
    scores = scores_of(beats_run, "corpus-test-annotated")
    assert scores["baselines"]["gradient boosting"] is None
    assert scores["baselines"]["majority class"] is not None
    unknown, missing = scores["notes"]
    assert unknown.startswith("not known whether patients were trained on: ")
    assert missing.startswith("gradient boosting not computed: ")
    assert f"note: {missing}" in capsys.readouterr().out
    assert str(tmp_path / "gone") in unknown and str(tmp_path / "gone") in missing


def test_only_the_records_asked_for_are_scored(beats_run: Path, tiny_corpus: Path, capsys: pytest.CaptureFixture[str]):
    table = pyarrow.parquet.read_table(tiny_corpus / "records.parquet").to_pylist()
    test, train = ([row["record_id"] for row in table if row["split"] == split] for split in ("test", "train"))
    options = ("--no-baselines", "--split", "all", "--records", f"{test[0]},{train[0]}")
    assert evaluate(beats_run, tiny_corpus, *options) == 0
    scores = scores_of(beats_run, "corpus-all-annotated-2records")
    assert scores["records"] == [f"tinydb/{r}" for r in sorted((test[0], train[0]))]
    patient = next(row["patient_id"] for row in table if row["record_id"] == train[0])
    assert scores["notes"][0] == f"1 of 2 patients was trained on ({patient})"
    assert f"note: {scores['notes'][0]}" in capsys.readouterr().out


def test_patients_trained_on_are_counted_and_some_named(beats_run: Path, tiny_corpus: Path):
    trained = pyarrow.parquet.read_table(tiny_corpus / "records.parquet", filters=[("split", "=", "train")])
    patients = sorted(set(trained["patient_id"].to_pylist()))
    tuned = load_finetuned(beats_run)
    assert tuned.seen_notes([*patients, *patients, "mitdb/100"]) == [
        f"{len(patients)} of {len(patients) + 1} patients were trained on ({', '.join(patients[:5])}, ...)"
    ]
    assert tuned.seen_notes(["mitdb/100"]) == []


def test_a_rival_of_another_shape_or_corpus_is_refused(tiny_finetuned: Path, scratch_run: Path):
    tuned = load_finetuned(tiny_finetuned)
    deeper, regularised = (dataclasses.replace(tuned.info.config, **each) for each in ({"depth": 2}, {"dropout": 0.5}))
    other_shape = dataclasses.replace(tuned, info=dataclasses.replace(tuned.info, config=deeper))
    with pytest.raises(HeartlmError, match=r"has depth 1, but .* has 2: compare runs of one"):
        load_random_init(scratch_run, other_shape, "best", "cpu")
    other_corpus = dataclasses.replace(tuned, about={**tuned.about, "manifest_hash": "f" * 64})
    with pytest.raises(HeartlmError, match=r"has manifest_hash .* has f{64}: compare runs of one"):
        load_random_init(scratch_run, other_corpus, "best", "cpu")
    other_dropout = dataclasses.replace(tuned, info=dataclasses.replace(tuned.info, config=regularised))
    assert load_random_init(scratch_run, other_dropout, "best", "cpu").about["from_scratch"]


def test_rhythm_windows_are_scored_by_majority(
    rhythm_runs: dict[str, Path], rhythm_corpus: Path, capsys: pytest.CaptureFixture[str]
):
    run = rhythm_runs["token"]
    assert evaluate(run, rhythm_corpus, "--window", "20", "--random-init", str(run)) == 2
    assert "--from-scratch" in error_of(capsys)
    assert evaluate(run, rhythm_corpus, "--window", "20") == 0
    scores = scores_of(run, "intervals-test-w20")
    assert (scores["positive"], scores["flutter"], scores["window"]) == ("AFIB", "negative", 20)
    names = {"majority class", "Zhou 2015", "gradient boosting"}
    assert set(scores["baselines"]) == names
    assert scores["baselines"]["Zhou 2015"]["threshold"] == 0.639
    check_scored_again(run / "scores" / "intervals-test-w20")
    block = scores["scores"]
    assert 20 * (block["num_windows"] + block["num_left_out"]) + block["num_beats_left_over"] == 721
    assert all(each["num_windows"] == block["num_windows"] for each in scores["baselines"].values())
    assert 0 < scores["durations"]["reference_s"] < scores["durations"]["total_s"]
    assert "by time of Zhou 2015" in capsys.readouterr().out


def test_time_in_the_rhythm_is_the_annotators(rhythm_runs: dict[str, Path], rhythm_corpus: Path, tiny_database: Path):
    assert evaluate(rhythm_runs["token"], rhythm_corpus, "--no-baselines", "--name", "time") == 0
    scores = scores_of(rhythm_runs["token"], "time")
    database, seconds = open_database(tiny_database), 0.0
    for record in scores["records"]:
        annotations = database.annotations(record.split("/")[1])
        assert annotations is not None
        seconds += sum(s.stop - s.start for s in annotations.rhythms if s.name == "AFIB") / annotations.rate_hz
    assert scores["durations"]["reference_s"] == pytest.approx(seconds, abs=2 * len(scores["records"]))


def test_a_head_for_windows_scores_its_own_width_only(
    rhythm_runs: dict[str, Path], rhythm_corpus: Path, capsys: pytest.CaptureFixture[str]
):
    assert evaluate(rhythm_runs["window"], rhythm_corpus, "--no-baselines") == 0
    assert scores_of(rhythm_runs["window"], "intervals-test-w32")["scores"]["num_windows"] > 0
    assert evaluate(rhythm_runs["window"], rhythm_corpus, "--window", "20") == 2
    assert "labels windows of 32 beats as a whole" in error_of(capsys)


def test_a_head_for_windows_of_mixed_widths_scores_every_width_between(
    rhythm_runs: dict[str, Path], rhythm_corpus: Path, capsys: pytest.CaptureFixture[str]
):
    run = rhythm_runs["mixed"]
    for width in ("8", "21", "32"):
        assert evaluate(run, rhythm_corpus, "--no-baselines", "--window", width) == 0
        scores = scores_of(run, f"intervals-test-w{width}")
        assert scores["window"] == int(width)
        assert scores["scores"]["threshold"] == 0.4
        others = {counted: methods["model"] for counted, methods in scores["flutter_counted"].items()}
        assert others.keys() == {"positive", "left out"}
        assert others["left out"]["tp"] >= scores["scores"]["tp"]
        assert others["left out"]["num_windows"] <= others["positive"]["num_windows"]
    for width in ("7", "33"):
        assert evaluate(run, rhythm_corpus, "--window", width) == 2
        assert "labels windows of 8 to 32 beats" in error_of(capsys)


def test_windows_wider_than_the_models_are_read_in_parts(rhythm_runs: dict[str, Path], rhythm_corpus: Path):
    assert evaluate(rhythm_runs["token"], rhythm_corpus, "--no-baselines", "--window", "60") == 0
    assert scores_of(rhythm_runs["token"], "intervals-test-w60")["window"] == 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--window", "64"), "the task beats scores single beats"),
        (("--beats", "detected"), "is a corpus of tokens"),
        (("--records", "s9999"), "'s9999' is not in the test split"),
        (("--bootstrap", "0"), "bootstrap: 0 found, at least 1 expected"),
        (("--name", "a/b"), "name: 'a/b' found"),
        (("--split", "some"), "split"),
    ],
)
def test_impossible_options_are_one_line(
    beats_run: Path,
    tiny_corpus: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    words: str,
):
    assert evaluate(beats_run, tiny_corpus, *options) == 2
    assert words in error_of(capsys)
    assert not (beats_run / "scores").exists()


def test_runs_and_corpora_that_do_not_fit_are_one_line(
    beats_run: Path,
    tiny_pretrained: Path,
    tiny_corpus: Path,
    rhythm_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    assert evaluate(tiny_pretrained, tiny_corpus) == 2
    assert "is a pretrain run, a fine-tuned one expected" in error_of(capsys)
    assert evaluate(beats_run, rhythm_corpus) == 2
    assert "made by tokenizer" in error_of(capsys)
    assert evaluate(beats_run, tmp_path / "nowhere") == 2
    assert "no such folder; give a corpus, or a folder or index of recordings" in error_of(capsys)
    assert evaluate(tmp_path, tiny_corpus) == 2
    assert "not a run folder" in error_of(capsys)
    shutil.rmtree(beats_run / "models" / "best")
    assert evaluate(beats_run, tiny_corpus) == 2
    assert "no best model yet" in error_of(capsys)
    assert not (beats_run / "scores").exists()
