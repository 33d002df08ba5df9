"""What the scripts of `benchmarks/` compute from measurements."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_rows, training
from benchmarks.gpu_rates import MeasuredRate, seconds_of
from heartlm.storage.reading import read_json
from heartlm.storage.typed import typed

SHAPE = training.Shape(1, 8, 1, 16, 2, 6, 2, "cpu", False, False)


def test_our_loop_and_its_rivals_are_timed_over_the_same_steps(monkeypatch: pytest.MonkeyPatch):
    """Steps that take 1, 2, … 6 s: those after the second take 18 s."""
    watch, ends_s = training.Stopwatch(SHAPE), [1.0, 3.0, 6.0, 10.0, 15.0, 21.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: ends_s[watch.steps - 1])
    for _ in ends_s:
        watch.step()
    assert watch.rate() == pytest.approx(4 * 2 * 16 / 18)
    taken = [{"num_tokens": 2 * 16, "step_s": float(number)} for number in range(1, 7)]
    assert training.rate_after(taken, SHAPE) == pytest.approx(watch.rate())


# --- benchmarks/gpu.py ----------------------------------------------------------------------------------------------


def test_the_share_of_time_that_a_gpu_is_busy_counts_overlapping_work_once():
    """Work from 0 to 4 and from 6 to 10 µs, with a copy next to a kernel from 2 to 3."""
    kinds = [("kernel", 6.0, 4.0), ("kernel", 0.0, 4.0), ("gpu_memcpy", 2.0, 1.0), ("cpu_op", 0.0, 99.0)]
    events = [{"cat": kind, "ts": begin, "dur": duration} for kind, begin, duration in kinds]
    assert gpu_rows.gpu_use([*events, {"ph": "M"}]) == (2, pytest.approx(0.8))
    assert gpu_rows.gpu_use([]) == (0, None)


def test_facets_after_one_another_and_a_padding_without_probability():
    """With equal logits the loss of a facet is the logarithm of its number of codes."""
    model = gpu_rows.FacetModel((3, 100, 7), depth=1, width=32, window=4)
    for head in model.heads:
        torch.nn.init.zeros_(head)
    codes = torch.stack([torch.randint(size, (2, 4)) for size in (3, 100, 7)], dim=-1)
    expected = (math.log(3) + math.log(100) + math.log(7)) / 3
    assert model(codes, torch.tensor([0, 5])).item() == pytest.approx(expected)


def test_the_timed_steps_are_those_between_the_warm_up_and_the_profiled_ones(
    monkeypatch: pytest.MonkeyPatch,
):
    """Steps end after 1, 2, … s; two warm up, then those of 3 s are timed, and two are profiled."""
    watched = gpu_rows.Watched(gpu_rows.Times("cpu", warm_up=2, seconds=3.0, profiled=2))
    steps: list[dict[str, float]] = []
    monkeypatch.setattr(gpu_rows.time, "perf_counter", lambda: watched.begin_s + len(steps))
    with pytest.raises(gpu_rows.Enough):
        while len(steps) < 99:
            steps.append({})
            watched.stepped(steps)
    assert watched.timed == (2, 5) and watched.ends_s == pytest.approx([1, 2, 5]) and len(steps) == 7


def test_a_rehearsal_does_not_write_into_the_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.argv", ["gpu.py", "--device", "cpu", "--rehearsal"])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "--out" in capsys.readouterr().err


@pytest.mark.slow
def test_every_row_of_the_gpu_benchmark_runs_in_small(tmp_path: Path):
    """The rows, the time limits, the rates that predict a training, and a second call that measures what is missing."""
    before = sorted(gpu.RESULTS.iterdir())
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--rehearsal", "--out", str(tmp_path)]
    command += ["--limit-s", "3000"]  # also on a busy machine
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    result = read_json(tmp_path / "gpu-cpu.json")
    failed = {name: row["failed"] for name, row in result["measured"].items() if "failed" in row}
    assert all(name.endswith("trainer") and "transformers" in reason for name, reason in failed.items()), failed
    tables = {table["title"]: table for table in result["tables"]}
    assert len(tables["Training"]["rows"]) == 7 and tables["A minute"]["rows"] and len(tables) == 5
    rates = typed(list[MeasuredRate], result["rates"])
    assert {rate.training for rate in rates} == {"masked", "causal", "finetune"} and len(rates) == 7
    size = gpu.Size("beat", "masked", 8, 256, 256, 64).tiny()
    asked = MeasuredRate("masked", "beat", size.depth, size.width, size.window, size.batch, 0.0, 0.0)
    whole = result["measured"]["whole"]
    assert seconds_of(asked, whole["steps"] * size.batch * size.window, rates) == pytest.approx(whole["predicted_s"])

    late = [*command, "--more", "--limit-s", "9"]  # too late for any row
    assert subprocess.run(late, capture_output=True, text=True).returncode != 0
    assert read_json(tmp_path / "gpu-cpu.json") == result and sorted(gpu.RESULTS.iterdir()) == before


@pytest.mark.slow
def test_a_row_over_its_limit_is_ended_with_its_children(tmp_path: Path, tiny_corpus: Path):
    chosen = argparse.Namespace(rehearsal=True, device="cpu", limit_s=100.0, out=tmp_path, more=False)
    bench, out = gpu.Bench(chosen, tmp_path, time.monotonic()), tmp_path / "endless"
    words = ["pretrain", "--corpus", str(tiny_corpus), "--depth", "1", "--steps", "1000000", "--log-every", "1"]
    row = gpu.Row("late", "whole_row", {"words": words, "out": out, "device": "cpu"}, limit_s=20.0)
    assert bench.measure(row) == {"failed": "over the limit"}
    written = (out / "metrics.jsonl").read_bytes()
    time.sleep(0.5)
    assert written and (out / "metrics.jsonl").read_bytes() == written
    missing = {"corpus": tmp_path / "none", "out": tmp_path / "x", "depth": 1, "device": "cpu"}
    assert "status 2" in bench.measure(gpu.Row("bad", "foundation", missing))["failed"]
