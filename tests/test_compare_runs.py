"""Comparison of runs: what differs in settings and scores, with intervals of the difference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heartlm.cli.main import main
from heartlm.evaluation.bootstrap import Resampling
from heartlm.evaluation.results import Predictions, write_scores
from heartlm.runs.run_folder import RunFolder
from heartlm.tasks.compare_runs import compare_runs
from tests.conftest import Refused
from tests.synthetic_run import write_runs


@pytest.fixture
def evaluated(tiny_finetuned: Path, tiny_corpus: Path, tmp_path: Path) -> Path:
    run = Path(shutil.copytree(tiny_finetuned, tmp_path / "one"))
    words = ["--on", str(tiny_corpus), "--threads", "1", "--bootstrap", "20", "--no-baselines", "--name", "test"]
    assert main(["evaluate", str(run), *words]) == 0
    return run


def other(run: Path, *, wrong: int = 0, without: str | None = None) -> Path:
    """A copy of `run` whose first beats are called V instead, and that did not score one recording."""
    copy = Path(shutil.copytree(run, run.parent / "other"))
    scores = copy / "scores" / "test"
    table = Predictions.read(scores)
    table.columns["predicted"][:wrong] = "V"
    table = table.chosen(table.columns["record"] != without)
    write_scores(scores, json.loads((scores / "scores.json").read_text()), table)
    return copy


def rows_of(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (scores,) = result["scores"]
    return {row["score"]: row for row in scores["rows"]}


def test_the_interval_is_that_of_the_difference_in_the_same_resamples(evaluated: Path):
    rival = other(evaluated, wrong=60)
    result = compare_runs([RunFolder(evaluated), RunFolder(rival)], Resampling(200, 7))
    row = rows_of(result)["accuracy"]
    tables = [Predictions.read(run / "scores" / "test") for run in (evaluated, rival)]
    patients = np.unique(tables[0].patients)
    differences = []
    for weights in Resampling(200, 7).weights(len(patients)):
        accuracies = []
        for table in tables:
            correct = total = 0
            for weight, name in zip(weights, patients, strict=True):
                own = table.patients == name
                correct += weight * int((table.columns["reference"] == table.columns["predicted"])[own].sum())
                total += weight * int(own.sum())
            accuracies.append(correct / total)
        differences.append(accuracies[1] - accuracies[0])
    assert row["differences"][0] is None
    assert row["differences"][1]["ci"] == pytest.approx(np.quantile(differences, [0.025, 0.975]))
    values = [each["value"] for each in row["values"]]
    assert row["differences"][1]["value"] == pytest.approx(values[1] - values[0]) != 0


def test_a_copy_differs_in_nothing(evaluated: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["compare-runs", str(evaluated), str(other(evaluated)), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["settings"] == [] and result["notes"] == []
    rows = rows_of(result)
    assert {"accuracy", "macro_f1", "N f1", "V se", "S ppv"} <= set(rows)
    assert all(row["values"][0] == row["values"][1] for row in rows.values())
    assert {json.dumps(row["differences"][1]["ci"]) for row in rows.values()} <= {"[0.0, 0.0]", "[null, null]"}
    assert next(row["loss"] for row in result["losses"]) == "training, last"


def test_only_recordings_that_both_scored_are_compared(evaluated: Path):
    table = Predictions.read(evaluated / "scores" / "test")
    left_out = str(table.columns["record"][0])
    result = compare_runs([RunFolder(evaluated), RunFolder(other(evaluated, without=left_out))], Resampling(20))
    (scores,) = result["scores"]
    assert scores["num_recordings"] == len({*table.records}) - 1
    assert scores["num_recordings_not_shared"] == 1
    assert {row["differences"][1]["value"] for row in scores["rows"]} <= {0.0, None}


def test_settings_losses_and_a_page(
    evaluated: Path, tiny_pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    one, two = write_runs(tmp_path / "made up")
    assert main(["compare-runs", str(evaluated), str(two), "--out", str(tmp_path / "page.html")]) == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("  ")}
    assert lines["seed"] == ["0", "1"], "of config.yaml"
    assert lines["steps"] == ["30", "–"]
    assert "step of the lowest" in text
    assert "no scores of the same name in all runs (one has test; beats has none)" in text
    page = (tmp_path / "page.html").read_text()
    assert "2 runs compared" in page and "<td>seed</td><td>0</td><td>1</td>" in page
    assert page.count("<svg") == 2, "loss of training and of validation"
    assert main(["compare-runs", str(one), str(tiny_pretrained)]) == 0
    assert (
        "no scores of the same name in all runs (foundation has none; foundation has none)" in capsys.readouterr().out
    )


def test_what_cannot_be_compared(evaluated: Path, tmp_path: Path, refused: Refused):
    for words, message in {
        (str(evaluated),): "two different runs or more expected",
        (str(evaluated), f"{evaluated}/."): "two different runs or more expected",
        (str(evaluated), str(tmp_path / "none")): "no such run",
        (str(evaluated), "beats", "--out", "page.txt"): "a name that ends in .html expected",
        (str(evaluated), "beats", "--bootstrap", "0"): "bootstrap: 0 found",
    }.items():
        assert message in refused("compare-runs", *words)
