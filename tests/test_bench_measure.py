"""How benches measure and what they leave: turns, medians, ratios, tables, figures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from bench.figure import save_figure
from bench.measure import BenchTable, Chart, Rival, Timed, geometric_mean, interleaved, race, shown
from bench.options import BenchOptions
from bench.output import environment, show, write_bench
from hypothesis import given
from hypothesis import strategies as st
from machine import BENCHES, main

from heartlm.errors import HeartlmError

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


def test_a_race_keeps_amounts():
    found = race([Rival("a", lambda: None, 5.0)], rounds=3)
    assert found["a"].amount == 5.0 and found["a"].rate == pytest.approx(5.0 / found["a"].median_s)


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


@pytest.mark.parametrize(
    "chart",
    [
        Chart("lines", ("size",), ("MB/s",), "MB/s", by="way", log=True),
        Chart("bars", ("way", "size"), ("MB/s",), "MB/s"),
        Chart("stack", ("way",), ("size", "MB/s"), "both", only=("size", 64)),
    ],
    ids=lambda chart: chart.kind,
)
def test_every_kind_of_chart_is_drawn(chart: Chart, tmp_path: Path):
    save_figure([table(chart=chart, more_charts=(chart,))], tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]


def test_what_a_bench_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made = table(notes=["all of it"])
    show([made])
    printed = capsys.readouterr().out
    assert "Speed" in printed and "all of it" in printed and "1,234" in printed
    paths = write_bench("speed", BenchOptions(out=tmp_path), [made], 1.5)
    assert [path.name for path in paths] == ["speed.json"]
    content = json.loads(paths[0].read_text())
    assert content["bench"] == "speed" and content["options"]["rounds"] == 5 and content["elapsed_s"] == 1.5
    assert content["environment"]["cores"] == environment()["cores"] >= 1


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_explains_itself(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    told = capsys.readouterr().out
    assert "--rounds" in told and f"python benchmarks/machine.py {name}" in told


def test_rounds_are_counted():
    with pytest.raises(HeartlmError, match="rounds: 0 found, at least 1 expected"):
        BenchOptions(rounds=0)
