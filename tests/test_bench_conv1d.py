"""`benchmarks/conv1d.py`: the shapes it takes, and a table made in earnest of two shapes."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.conv1d import shapes_table, tiny_ecg_table
from benchmarks.convolutions import CHOICES, STUDY_GRID, case_of, check, ecg_grid, flops, layers_between, rivals_of
from heartlm.extensions.conv1d.kernel import ConvShape
from lab.measure import Spread
from tests.conftest import ROOT


@given(st.integers(1, 80), st.sampled_from([2e7, 1e9]))
def test_the_layers_are_always_the_same_and_bounded(num: int, most_flops: float) -> None:
    grid = ecg_grid(num, most_flops)
    assert grid == ecg_grid(num, most_flops)
    assert len(set(grid)) == num
    assert all(flops(shape) <= most_flops and shape.batch >= 1 for shape in grid)
    assert all(shape.in_channels in CHOICES[0] and shape.kernel_size in CHOICES[3] for shape in grid)


def test_many_layers_hold_all_corners() -> None:
    found = {(shape.in_channels, shape.out_channels, shape.length, shape.kernel_size) for shape in ecg_grid(64, 2e8)}
    corners = set(itertools.product((1, 64), (8, 128), (128, 3600), (3, 31)))
    assert corners - found == {(64, 128, 3600, 31)}, "one recording alone is more work than allowed"


def test_new_layers_are_none_that_the_rule_was_fitted_to() -> None:
    fitted = {json.dumps(entry["shape"], sort_keys=True) for entries in rule_times().values() for entry in entries}
    new = layers_between(64, 2e8, 2026)
    assert new == layers_between(64, 2e8, 2026) and len(set(new)) == 64
    assert not fitted & {json.dumps(asdict(shape), sort_keys=True) for shape in new}
    assert all(flops(shape) <= 2e8 and shape.kernel_size % 2 and shape.batch >= 1 for shape in new)
    assert {shape.stride for shape in new} == {1, 2}


def rule_times() -> dict[str, list[dict[str, Any]]]:
    """The times that the rule was fitted to."""
    found: dict[str, list[dict[str, Any]]] = json.loads((ROOT / "recipes/results/conv1d_rule.json").read_text())
    return found


def test_the_studys_grid_is_the_studys() -> None:
    assert {shape.batch for shape in STUDY_GRID} == {64, 128, 256, 512}
    assert {(shape.length, shape.kernel_size, shape.out_length) for shape in STUDY_GRID} == {
        (500, 3, 498),
        (500, 5, 496),
        (500, 7, 494),
        (500, 32, 469),
    }


def test_a_rival_that_computes_something_else_is_found_out() -> None:
    case = case_of(ConvShape(2, 3, 40, 4, 5, padding=2))
    rivals = rivals_of(case, compiled=False, training=False)
    assert set(rivals) == {"heartlm", "eager", "channels_last", "packed", "packed, channels last"}
    check(case, rivals.values())
    layer, x, dy = rivals["eager"]
    with pytest.raises(AssertionError):
        check(case, [(lambda x: layer(x) * 1.001, x, dy)])


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_table_has_a_row_for_every_shape(mode: str) -> None:
    shapes = [ConvShape(2, 1, 60, 8, 3, padding=1), ConvShape(1, 16, 60, 8, 9, padding=4)]
    table = shapes_table("Two", shapes, 1, False, mode, 1e9)
    assert table.column("shape") == ["2 × 1→8, L 60, K 3", "1 × 16→8, L 60, K 9"]
    numbers = [cell.median if isinstance(cell, Spread) else cell for cells in table.rows for cell in cells[1:]]
    assert all(isinstance(number, float) and number > 0 for number in numbers)
    rivals = [name for name in table.columns if name.endswith("µs") and name != "heartlm µs"]
    over, best, ours, eager = (table.column(name)[0] for name in ("over eager", "over best", "heartlm µs", "eager µs"))
    assert isinstance(ours, Spread) and isinstance(eager, Spread)
    assert over == pytest.approx(eager.median / ours.median)
    assert best == pytest.approx(min(table.column(name)[0].median for name in rivals) / ours.median)


def test_tiny_ecg_is_timed_in_both_modes() -> None:
    assert [str(name).split(",")[0] for name in tiny_ecg_table(1).column("what")] == ["inference"] * 4 + [
        "training"
    ] * 4
