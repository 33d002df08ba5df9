"""Listeners hear what the metrics say, real TensorBoard and Weights & Biases; none of them ever ends a training."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from heartlm.cli.main import main
from heartlm.runs.run_folder import RunFolder
from heartlm.training.config import PretrainConfig
from heartlm.training.listeners import Listeners, TensorBoard
from tests.conftest import ROOT

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


def test_a_resumed_series_goes_on_where_the_checkpoint_was(tmp_path: Path):
    first = TensorBoard(tmp_path / "tensorboard", 10)
    for step in (10, 20, 30):
        first.hear(step, "train", {"loss": float(step)})
    first.close()
    again = TensorBoard(tmp_path / "tensorboard", 20)
    again.hear(20, "train", {"loss": 21.0})
    again.close()
    assert events(tmp_path)["train/loss"] == [(10, 10.0), (20, 21.0)]


def test_a_run_that_was_stopped_and_resumed_is_one_series(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hear, run = TensorBoard.hear, tmp_path / "run"

    def hear_and_stop(self: TensorBoard, step: int, split: str, numbers: Mapping[str, float]) -> None:
        hear(self, step, split, numbers)
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TensorBoard, "hear", hear_and_stop)
    words = ("--corpus", str(tiny_corpus), "--out", str(run), "--steps", "10", *SHORT, "--tensorboard")
    assert main(["pretrain", *words]) == 143
    monkeypatch.setattr(TensorBoard, "hear", hear)
    assert main(["pretrain", "--resume", str(run)]) == 0
    assert [step for step, _ in events(run)["train/loss"]] == [2, 4, 6, 8, 10]
    assert len(list((run / "tensorboard").iterdir())) == 2, "each session has a file of its own"


BLOCK_BYTES = 32768


def offline_sessions(run: Path) -> dict[str, list[dict[str, float]]]:
    """The rows that W&B kept in each session, by the name of its folder."""
    from wandb.proto.wandb_internal_pb2 import Record

    sessions = {}
    for path in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        histories = [Record.FromString(record).history for record in leveldb_log(path.read_bytes()[7:])]
        rows = [{item.nested_key[0]: json.loads(item.value_json) for item in each.item} for each in histories]
        sessions[path.parent.name] = [row for row in rows if row]
    return sessions


def leveldb_log(content: bytes) -> Iterator[bytes]:
    """Records of a file in the log format of LevelDB, whose first block lacks the 7 bytes of W&B's own header."""
    place, parts = 0, b""
    while place + 7 <= len(content):
        left = BLOCK_BYTES - (place + 7) % BLOCK_BYTES
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process of its own, since W&B leaves one running for the process that called it."""
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=180,
    )


PRETRAIN = "import sys; from heartlm.cli.main import main; sys.exit(main(['pretrain', *sys.argv[1:]]))"
ANOTHER_SESSION = """
import sys
from pathlib import Path
from heartlm.training.listeners import WeightsAndBiases
from heartlm.runs.run_folder import RunFolder
listener = WeightsAndBiases(RunFolder(Path(sys.argv[1])), "offline")
listener.hear(5, "train", {"loss": 1.0})
listener.close()
"""


@pytest.mark.slow
def test_weights_and_biases_keeps_it_offline(tiny_corpus: Path, tmp_path: Path):
    run = tmp_path / "run"
    words = ("--corpus", str(tiny_corpus), "--out", str(run), "--steps", "4", *SHORT)
    done = python(PRETRAIN, *words, "--wandb", "offline")
    assert done.returncode == 0, done.stderr
    assert "wandb" not in done.stdout + done.stderr, "it is silent"
    (rows,) = offline_sessions(run).values()
    kept = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    lines = [line for line in metrics(run) if line["split"] == "train"]
    assert kept == [(line["step"], pytest.approx(line["loss"], rel=1e-5)) for line in lines]
    assert not list(ROOT.glob("wandb")), "all about a run is in its folder"
    done = python(ANOTHER_SESSION, str(run))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    first, second = offline_sessions(run)
    assert first.rpartition("-")[2] == second.rpartition("-")[2], "a resumed run is the same one there"
    assert offline_sessions(run)[second][0]["step"] == 5


def test_one_that_fails_is_told_of_once_and_heard_no_more(tmp_path: Path):
    said: list[str] = []
    (tmp_path / "tensorboard").write_text("a file where a folder should be")
    listeners = Listeners(PretrainConfig(tensorboard=True), RunFolder(tmp_path), said.append)
    assert listeners.are_awaited
    for step in (1, 2, 3):
        listeners.hear(step, "train", {"loss": 1.0})
    listeners.close()
    assert not listeners.are_awaited
    (line,) = said
    assert line.startswith("TensorBoard is dropped, the training continues: ")


def test_a_training_goes_on_without_those_that_fail(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    words = ("--corpus", str(tiny_corpus), "--out", str(tmp_path / "run"), "--steps", "4", *SHORT)
    assert main(["pretrain", *words, "--tensorboard", "--wandb", "offline"]) == 0
    told = capsys.readouterr().err
    for name, extra in (("TensorBoard", "tensorboard"), ("Weights & Biases", "wandb")):
        assert told.count(f"{name} is dropped") == 1
        assert f"pip install 'heartlm[{extra}]'" in told
    assert [line["step"] for line in metrics(tmp_path / "run") if line["split"] == "train"] == [2, 4]


def test_none_is_begun_where_none_is_asked_for(tmp_path: Path):
    listeners = Listeners(PretrainConfig(), RunFolder(tmp_path), print)
    assert not listeners.are_awaited
    listeners.hear(1, "train", {"loss": 1.0})
    listeners.close()
    assert list(tmp_path.iterdir()) == []
