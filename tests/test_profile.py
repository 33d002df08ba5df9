"""A close look at a few steps: the parts add up, the bottleneck has a name, the traces are such as Perfetto reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heartlm.cli.main import main
from heartlm.instrumentation.meters import PARTS
from heartlm.instrumentation.profile import SEEN_STEPS, WAIT_STEPS, bottleneck

SHORT = ("--depth", "1", "--window", "32", "--threads", "1", "--device", "cpu", "--log-every", "4")


@pytest.mark.parametrize(
    ("part", "hint"),
    [
        ("data", "--prefetch"),
        ("forward_backward", "--compile"),
        ("communication", "--bucket-cap-mb"),
        ("optimizer", "--batch-size"),
        ("other", "--batch-size"),
    ],
)
def test_the_largest_part_is_the_bottleneck(part: str, hint: str):
    means = {f"{name}_s": 0.1 for name in (*PARTS, "other")} | {"step_s": 0.9, f"{part}_s": 0.5}
    told = bottleneck(means)
    assert told.startswith(f"bottleneck: {part}, 500.0 of 900.0 ms a step: ") and hint in told


def events_of(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def check_trace_events(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """See that `events` are in the Trace Event Format, as Perfetto's importer of JSON wants them; return them.

    Slices of one thread have to lie inside or next to one another: Perfetto asks for strict nesting.
    """
    slices: dict[Any, list[tuple[float, float]]] = {}
    for event in events:
        assert isinstance(event["ph"], str) and isinstance(event["name"], str)
        assert isinstance(event.get("pid", 0), int | str) and isinstance(event.get("tid", 0), int | str)
        assert event["ph"] in "XMisftCBE", event
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event.get("args", {}), dict)
            slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["dur"]))
        elif event["ph"] == "M":
            assert event["args"], "metadata without a value"
    for of_thread in slices.values():
        open_until: list[float] = []
        for begin, duration in sorted(of_thread, key=lambda each: (each[0], -each[1])):
            while open_until and open_until[-1] <= begin + 0.2:  # microseconds; clocks are written to a tenth
                open_until.pop()
            assert not open_until or begin + duration <= open_until[-1] + 0.2
            open_until.append(begin + duration)
    return events


def names(events: list[dict[str, Any]]) -> set[str]:
    return {event["name"] for event in events if event["ph"] == "X"}


def test_a_training_is_looked_at(tiny_corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    run, num_steps = tmp_path / "run", WAIT_STEPS + SEEN_STEPS + 1
    words = ("--corpus", str(tiny_corpus), "--out", str(run), "--steps", str(num_steps), *SHORT)
    assert main(["pretrain", *words, "--profile", "--spans"]) == 0
    told = capfd.readouterr().err
    assert "bottleneck: " in told
    assert "aten::mm" in (run / "profile" / "operators.txt").read_text()
    assert {path.name for path in (run / "profile").iterdir()} == {"operators.txt", "trace.json"}

    trace = check_trace_events(events_of(run / "profile" / "trace.json"))
    assert "aten::mm" in names(trace)

    lines = (run / "spans" / "rank-0.jsonl").read_text().splitlines()
    spans = check_trace_events([json.loads(line) for line in lines])
    numbers = sorted(event["args"]["step"] for event in spans if event["name"] == "step")
    assert numbers == list(range(1, num_steps + 1)), "a look takes no span away"


def test_a_run_that_ends_early_says_so(tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ("--corpus", str(tiny_corpus), "--out", str(tmp_path / "run"), "--steps", "2", *SHORT)
    assert main(["pretrain", *words, "--profile"]) == 0
    assert f"profile: the run took 2 steps, a look begins after {WAIT_STEPS}" in capsys.readouterr().err
    assert not (tmp_path / "run" / "profile").exists()


def test_a_look_that_the_end_cuts_short_is_kept(tiny_corpus: Path, tmp_path: Path):
    words = ("--corpus", str(tiny_corpus), "--out", str(tmp_path / "run"), "--steps", str(WAIT_STEPS + 2), *SHORT)
    assert main(["pretrain", *words, "--profile"]) == 0
    events = check_trace_events(events_of(tmp_path / "run" / "profile" / "trace.json"))
    assert "aten::mm" in names(events)


def test_looking_changes_no_weight(tiny_corpus: Path, tmp_path: Path):
    losses = []
    for look in ((), ("--profile",)):
        out = tmp_path / f"run{len(look)}"
        assert main(["pretrain", "--corpus", str(tiny_corpus), "--out", str(out), "--steps", "12", *SHORT, *look]) == 0
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses.append([line["loss"] for line in lines])
    assert losses[0] == losses[1]


def test_what_goes_wrong_in_a_look_ends_no_training(
    tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise RuntimeError("no room for the trace")

    monkeypatch.setattr("heartlm.instrumentation.profile.torch.profiler.profile.export_chrome_trace", refuse)
    words = ("--corpus", str(tiny_corpus), "--out", str(tmp_path / "run"), "--steps", "10", *SHORT)
    assert main(["pretrain", *words, "--profile"]) == 0
    assert "profile failed: no room for the trace" in capsys.readouterr().err
    assert (tmp_path / "run" / "models" / "last").is_dir()
