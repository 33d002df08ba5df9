"""TensorBoard shows what the metrics say, and never ends a training."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from heartlm.cli.main import main
from heartlm.training.log import Log

SHORT = ("--depth", "1", "--window", "32", "--threads", "1", "--device", "cpu", "--log-every", "2")


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def events(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of each series, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run / "tensorboard"))
    read.Reload()
    return {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}


def test_tensorboard_shows_what_the_metrics_say(tiny_corpus: Path, tmp_path: Path):
    words = ("--corpus", str(tiny_corpus), "--out", str(tmp_path / "run"), "--steps", "6", "--validate-every", "3")
    assert main(["pretrain", *words, *SHORT, "--tensorboard"]) == 0
    shown, lines = events(tmp_path / "run"), metrics(tmp_path / "run")
    for split in ("train", "validation"):
        expected = [(line["step"], pytest.approx(line["loss"], rel=1e-5)) for line in lines if line["split"] == split]
        assert shown[f"{split}/loss"] == expected
    assert {"train/tokens_per_s", "train/data_wait_share", "train/learning_rate"} <= set(shown)


def test_a_run_that_was_stopped_and_resumed_is_one_series(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write, run = Log._show, tmp_path / "run"

    def write_and_stop(self: Log, step: int, numbers: dict[str, float]) -> None:
        write(self, step, numbers)
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Log, "_show", write_and_stop)
    words = ("--corpus", str(tiny_corpus), "--out", str(run), "--steps", "10", *SHORT, "--tensorboard")
    assert main(["pretrain", *words]) == 143
    monkeypatch.setattr(Log, "_show", write)
    assert main(["pretrain", "--resume", str(run)]) == 0
    assert [step for step, _ in events(run)["train/loss"]] == [2, 4, 6, 8, 10]
    assert len(list((run / "tensorboard").iterdir())) == 2, "each session has a file of its own"


def test_a_training_goes_on_without_tensorboard(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    words = ("--corpus", str(tiny_corpus), "--out", str(tmp_path / "run"), "--steps", "4", *SHORT)
    assert main(["pretrain", *words, "--tensorboard"]) == 0
    told = capsys.readouterr().err
    assert told.count("TensorBoard is dropped, the training continues: ") == 1
    assert "pip install 'heartlm[tensorboard]'" in told
    assert [line["step"] for line in metrics(tmp_path / "run") if line["split"] == "train"] == [2, 4]


def test_what_fails_later_is_told_of_once(tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ("--corpus", str(tiny_corpus), "--out", str(tmp_path / "run"), "--steps", "3", *SHORT)
    assert main(["pretrain", *words]) == 0
    assert not (tmp_path / "run" / "tensorboard").exists()
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "config.yaml").write_text("")
    (torn / "tensorboard").write_text("a file where a folder should be")
    words = ("--corpus", str(tiny_corpus), "--out", str(torn), "--steps", "4", *SHORT, "--tensorboard")
    assert main(["pretrain", *words]) == 0
    assert capsys.readouterr().err.count("TensorBoard is dropped") == 1
