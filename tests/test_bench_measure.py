"""How benchmarks and studies measure and what they leave: turns, medians, ratios, intervals, tables."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heartlm.ecg.recording import Annotations, Recording
from heartlm.errors import HeartlmError
from lab import output
from lab.intervals import interval
from lab.measure import BenchTable, Timed, geometric_mean, interleaved, shown
from lab.places import annotations_of, labels_of
from lab.steps import kept

SECONDS = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9)


def table(**more: object) -> BenchTable:
    made = BenchTable("Speed", ("way", "size", "MB/s"), probe_before=100.0, **more)  # type: ignore[arg-type]
    made.add("ours", 64, 1234.5)
    made.add("theirs", 64, math.nan)
    made.add("ours", 128, 2.0)
    made.add("absent", 128, None)
    made.probe_after = 104.0
    return made


def test_rivals_take_turns_after_a_first_that_does_not_count():
    order: list[str] = []
    times = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, rounds=2)
    assert order == ["a", "b"] * 3
    assert {name: len(taken) for name, taken in times.items()} == {"a": 2, "b": 2}


@given(SECONDS, st.floats(0.1, 100), st.floats(0.1, 100))
def test_ratios_are_of_rates_round_by_round(seconds: list[float], amount: float, factor: float):
    one = Timed(tuple(seconds), amount)
    slower = Timed(tuple(factor * value for value in seconds), amount)
    assert one.times_faster_than(one) == pytest.approx(1)
    assert one.times_faster_than(slower) == pytest.approx(factor)
    assert one.times_faster_than(Timed(one.seconds, factor * amount)) == pytest.approx(1 / factor)
    assert one.spread >= 0


def test_a_machine_that_slows_down_for_a_round_changes_no_ratio():
    ours, theirs = Timed((1.0, 9.0, 1.0)), Timed((2.0, 18.0, 2.0))
    assert ours.times_faster_than(theirs) == 2


def test_the_mean_of_ratios():
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("cell", "text"),
    [(None, "–"), (math.nan, "–"), ("none", "none"), (1234567, "1,234,567"), (1234.5, "1,234"), (0.012345, "0.0123")],
)
def test_cells_are_read_easily(cell: object, text: str):
    assert shown(cell) == text


def test_a_table_says_whether_the_machine_moved():
    held, moved = table(), table()
    moved.probe_after = 80.0
    assert not held.moved and "held its speed" in held.markdown()
    assert moved.moved and "THE MACHINE MOVED" in moved.markdown()
    assert "| ours | 64 | 1,234 |" in held.markdown()


def test_json_has_numbers_and_nothing_that_is_none():
    content = json.loads(json.dumps(table().as_json(), allow_nan=False))
    assert content["rows"][0] == ["ours", 64, 1234.5] and content["rows"][1][2] is None
    assert content["probe_before"] == 100 and content["moved"] is False


def test_a_result_has_its_command_and_lies_next_to_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "studies/results").mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "studies/speed.py"), "--work", "/somewhere", "--seed", "1"])
    output.write_results("speed", "How fast", [table(notes=["all of it"])], {"seeds": 3})
    content = json.loads((tmp_path / "studies/results/speed.json").read_text())
    assert content["command"] == "python -m studies.speed --work FOLDER --seed 1"
    assert content["environment"]["seeds"] == 3 and content["tables"][0]["rows"][0] == ["ours", 64, 1234.5]
    text = (tmp_path / "studies/results/speed.md").read_text()
    assert "# How fast" in text and "all of it" in text and "| ours | 64 | 1,234 |" in text


def accuracy(drawn: np.ndarray, counts: np.ndarray) -> np.ndarray:
    right, wrong = np.moveaxis(drawn @ counts, -1, 0)
    return right / (right + wrong)


def test_intervals_are_of_patients_and_differences_of_the_same_ones():
    counts = np.array([[9, 1], [1, 9], [5, 5], [8, 2]])
    value, low, high = (float(part) for part in re.findall(r"[\d.]+", interval(accuracy, counts)))
    assert value == 23 / 40 and 0.1 <= low < value < high <= 0.9
    assert interval(accuracy, counts, counts) == "+0.000 [+0.000, +0.000]"
    better = counts + np.array([10, 0])
    assert interval(accuracy, better, counts).startswith("+0.")
    assert interval(accuracy, counts[:1]) == "0.900" and interval(accuracy, np.zeros((2, 2), int)) == "–"


def test_missing_annotations_are_an_error_that_names_the_recording():
    recording = Recording.from_array(np.zeros((1, 100), np.float32), rate_hz=100.0, leads=["II"])
    known = Annotations(100.0, np.array([50]), np.array(["N"]))
    assert annotations_of(recording.with_annotations(known)) is known
    with pytest.raises(HeartlmError, match=f"{re.escape(str(recording.path))}: no annotations"):
        annotations_of(recording)


@pytest.mark.parametrize("version", ["v3-train", "v3"])
def test_labels_of_the_challenge_keep_the_order_of_its_table(tmp_path: Path, version: str):
    (tmp_path / f"REFERENCE-{version}.csv").write_text("A00002,~\nA00001,N\n")
    assert list(labels_of(tmp_path).items()) == [("A00002", "~"), ("A00001", "N")]


def test_arrays_that_are_kept_are_measured_once(tmp_path: Path):
    measured: list[dict[str, object]] = [{"score": np.arange(3)}]
    for _ in range(2):
        assert kept(tmp_path / "scores.npz", measured.pop)["score"].tolist() == [0, 1, 2]
