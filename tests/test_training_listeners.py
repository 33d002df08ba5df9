"""MLflow and Weights & Biases show what the metrics say, without a network, also of a run that was resumed."""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heartlm.cli.main import main
from heartlm.training.log import Log

SHORT = ("--depth", "1", "--window", "32", "--threads", "1", "--device", "cpu", "--log-every", "2", "--steps", "6")


def train_stop_and_resume(corpus: Path, run: Path, option: str, monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Train with a stop after step 4; return the training losses of the metrics."""
    show = Log._show

    def show_and_stop(self: Log, step: int, numbers: dict[str, float]) -> None:
        show(self, step, numbers)
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Log, "_show", show_and_stop)
        assert main(["pretrain", "--corpus", str(corpus), "--out", str(run), *SHORT, option]) == 143
    assert main(["pretrain", "--resume", str(run)]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines if line["split"] == "train"}
    assert list(losses) == [2, 4, 6]
    return losses


@pytest.mark.slow
def test_mlflow_has_one_run_of_both_sessions(tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    pytest.importorskip("alembic", reason="alembic is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    losses = train_stop_and_resume(tiny_corpus, tmp_path / "run", "--mlflow", monkeypatch)
    from mlflow import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert {point.step: point.value for point in history} == pytest.approx(losses)
    assert run.data.params["window"] == "32" and run.data.params["kind"] == "pretrain"
    assert {"validation/loss", "train/tokens_per_s"} <= set(run.data.metrics)


def records_of(file: Path) -> Iterator[Any]:
    """Records of a file of wandb, in the format of the logs of LevelDB: blocks of 32 KiB with pieces of records."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, record = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            yield Record.FromString(record)
            record = b""


@pytest.mark.slow
def test_wandb_has_the_metrics_of_both_sessions(tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    losses = train_stop_and_resume(tiny_corpus, tmp_path / "run", "--wandb", monkeypatch)
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2 and len({file.name for file in files}) == 1, "two sessions of one run"
    shown, settings = dict[int, float](), dict[str, str]()
    for file in files:
        for record in records_of(file):
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            if "train/loss" in items:
                shown[int(items["_step"])] = float(items["train/loss"])
            settings |= {item.key: item.value_json for item in record.run.config.update}
    assert shown == pytest.approx(losses, rel=1e-5)
    assert settings["window"] == "32"


@pytest.mark.slow
@pytest.mark.parametrize(
    "option, package, title", [("--mlflow", "mlflow", "MLflow"), ("--wandb", "wandb", "Weights & Biases")]
)
def test_a_training_continues_without_the_package(
    option: str,
    package: str,
    title: str,
    tiny_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["pretrain", "--corpus", str(tiny_corpus), "--out", str(tmp_path / "run"), *SHORT, option]) == 0
    printed = capsys.readouterr().err
    assert printed.count(f"{title} is dropped, the training continues: ") == 1
    assert f"pip install 'heartlm[{package}]'" in printed
