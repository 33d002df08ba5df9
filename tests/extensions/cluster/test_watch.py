"""The dashboard: what it reads of a run that is being written, and what it shows of one."""

from __future__ import annotations

import io
import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from heartlm.cli.main import main
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.watch import frame, lines_of, sparkline, step_s
from heartlm.runs.run_folder import RunFolder
from tests.conftest import Refused


def line(step: int, split: str = "train", **numbers: float) -> str:
    return json.dumps({"step": step, "split": split, "loss": 2.0, **numbers})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of 100 steps that has started."""
    (tmp_path / "run.json").write_text(json.dumps({"name": "beats", "kind": "pretrain", "finished": None}))
    (tmp_path / "config.yaml").write_text("steps: 100\n")
    return tmp_path


def told(folder: Path) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(frame(RunFolder(folder)))
    return console.export_text()


def test_a_line_counts_when_it_is_whole(folder: Path):
    metrics = folder / "metrics.jsonl"
    assert lines_of(RunFolder(folder), "train") == []
    assert "0/100" in told(folder) and "no line yet" in told(folder)
    second = line(20)
    metrics.write_text(f"{line(10)}\n{second[:9]}")
    assert "10/100" in told(folder)
    with metrics.open("a") as stream:
        stream.write(f"{second[9:]}\n" + line(20, "validation") + "\n")
    run = RunFolder(folder)
    assert [entry["step"] for entry in lines_of(run, "train")] == [10, 20]
    assert len(lines_of(run, "validation")) == 1


def test_what_a_kill_tore_is_passed_over(folder: Path):
    (folder / "metrics.jsonl").write_text(f'{line(10)}\n{{"step": 2\n[]\n{line(30)}\n')
    assert [entry["step"] for entry in lines_of(RunFolder(folder), "train")] == [10, 30]


def test_metrics_that_a_resumed_run_cut_are_read_anew(folder: Path):
    (folder / "metrics.jsonl").write_text("".join(line(step) + "\n" for step in (10, 20, 30)))
    assert "30/100" in told(folder)
    RunFolder(folder).truncate_metrics(10)
    assert [entry["step"] for entry in lines_of(RunFolder(folder), "train")] == [10]


def test_time_left_is_that_of_the_session_that_runs():
    assert math.isnan(step_s([]))
    train: list[dict[str, Any]] = [{"step": 10, "step_s": 3.0, "elapsed_s": 30.0}]
    assert step_s(train) == 3.0
    train += [{"step": 20, "elapsed_s": 5.0}, {"step": 30, "elapsed_s": 25.0}]
    assert step_s(train) == 2.0


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32)), st.integers(1, 60))
def test_a_sparkline_is_as_long_as_it_can_be(values: list[float], width: int):
    finite = [value for value in values if math.isfinite(value)]
    assert len(sparkline(values, width)) == min(width, len(finite))


def test_a_sparkline_goes_from_the_lowest_to_the_highest():
    assert sparkline([float(value) for value in range(8)], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, 2.0, 4.0, 6.0], 2) == "▁█"


def test_a_frame_of_a_running_run(folder: Path):
    numbers = {"tokens_per_s": 15700.0, "step_median_s": 0.129, "step_p95_s": 0.134, "data_wait_share": 0.25}
    lines = [line(10, elapsed_s=10.0), line(20, elapsed_s=20.0, **numbers), line(20, "validation")]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    text = told(folder)
    for word in (
        "beats: pretrain",
        "20/100  20%   left 0:01:20",
        "15.7 k tokens/s   step 129 ms   95 % of steps below 134 ms   data wait 25.0 %",
        "2.0000   best 2.0000 after step 20",
        "running, last line ",
    ):
        assert word in text, text


def test_a_loss_that_is_not_a_number_is_not_the_best(folder: Path):
    lines = [line(step, "validation", loss=loss) for step, loss in ((10, math.nan), (20, 1.5), (30, 1.75))]
    (folder / "metrics.jsonl").write_text("\n".join([line(30), *lines]) + "\n")
    assert "1.7500   best 1.5000 after step 20" in told(folder)


def test_brackets_in_names_are_shown(folder: Path):
    (folder / "run.json").write_text(json.dumps({"name": "w[a]", "kind": "pretrain", "finished": None}))
    run = folder.rename(folder.with_name("run[b]"))
    text = told(run)
    assert "w[a]: pretrain" in text and "run[b]" in text.replace("\n", "")


def test_the_age_of_the_last_line_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "metrics.jsonl").write_text(line(10, elapsed_s=10.0) + "\n")
    monkeypatch.setattr("time.time", lambda: (folder / "metrics.jsonl").stat().st_mtime + 3700)
    assert "last line 1:01:40 ago; if it stopped:  heartlm … --resume" in told(folder)


def test_a_finished_run_is_shown_once_and_that_is_all(tiny_pretrained: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["watch", str(tiny_pretrained)]) == 0
    shown = capsys.readouterr().out
    assert "3/3" in shown and "finished on" in shown and "validation" in shown


def test_it_ends_when_the_run_is_finished(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("heartlm.extensions.cluster.commands.watch.REFRESH_S", 0.05)

    def finish() -> None:
        (folder / "metrics.jsonl").write_text(line(100) + "\n")
        (folder / "run.json").write_text(json.dumps({"name": "beats", "kind": "pretrain", "finished": "today"}))

    timer = threading.Timer(0.3, finish)
    timer.start()
    assert main(["watch", str(folder)]) == 0
    timer.join()
    assert "100/100  100%" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "steps: [", "just words"])
def test_settings_that_cannot_be_read_are_named(folder: Path, content: str):
    (folder / "config.yaml").write_text(content)
    with pytest.raises(HeartlmError, match=r"config\.yaml: "):
        frame(RunFolder(folder))


def test_what_is_no_run_is_told(tmp_path: Path, refused: Refused):
    assert "no run.json, so not a run folder" in refused("watch", tmp_path, "--once")
