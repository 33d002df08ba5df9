"""The all-reduce fit: what it makes of points, and of ranks that really add up."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heartlm.errors import HeartlmError
from heartlm.extensions.scaling.allreduce import SIZES_BYTES, AllReduceFit, fit_points, measure_all_reduce


@given(st.floats(0, 1e-2), st.floats(1e6, 1e12))
def test_points_on_a_line_give_the_line_back(latency_s: float, bytes_per_s: float):
    points = [(size, latency_s + size / bytes_per_s) for size in SIZES_BYTES]
    fitted = AllReduceFit(*fit_points(points), 2, "gloo", tuple(points))
    assert all(fitted.time_s(size) == pytest.approx(taken_s, rel=1e-6) for size, taken_s in points)


@given(st.integers(0, len(SIZES_BYTES) - 1), st.floats(2, 50))
def test_one_odd_point_moves_nothing(place: int, factor: float):
    points = [(size, 1e-4 + size / 1e9) for size in SIZES_BYTES]
    points[place] = (points[place][0], points[place][1] * factor)
    latency_s, bytes_per_s = fit_points(points)
    assert (latency_s, bytes_per_s) == (pytest.approx(1e-4), pytest.approx(1e9))


@given(st.lists(st.floats(1e-6, 1.0), min_size=len(SIZES_BYTES), max_size=len(SIZES_BYTES)))
def test_a_fit_is_never_below_zero(taken_s: list[float]):
    latency_s, bytes_per_s = fit_points(list(zip(SIZES_BYTES, taken_s, strict=True)))
    assert latency_s >= 0 and bytes_per_s > 0


def test_it_is_kept_as_json(tmp_path: Path):
    fit = AllReduceFit(1e-4, 2e9, 4, "nccl", ((1024, 1e-4), (4096, 2e-4)))
    fit.save(tmp_path / "fit.json")
    assert AllReduceFit.load(tmp_path / "fit.json") == fit
    (tmp_path / "fit.json").write_text(json.dumps(asdict(fit) | {"points": None}))
    with pytest.raises(HeartlmError, match=r"fit.json: points: None found, a list of"):
        AllReduceFit.load(tmp_path / "fit.json")


def test_two_ranks_of_this_machine():
    fit = measure_all_reduce(2, device="cpu", sizes_bytes=(1024, 65536, 1 << 20), rounds=3)
    assert (fit.world_size, fit.backend) == (2, "shared memory")
    assert [size for size, _ in fit.points] == [1024, 65536, 1 << 20]
    assert all(taken_s > 0 for _, taken_s in fit.points)


def test_one_rank_has_nobody_to_add_up_with():
    with pytest.raises(HeartlmError, match="num_ranks: 1 found"):
        measure_all_reduce(1, device="cpu")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two ranks want a GPU each")
def test_sums_over_gpus_are_measured_with_nccl() -> None:
    fit = measure_all_reduce(2, sizes_bytes=(1 << 12, 1 << 20), rounds=3)
    assert (fit.backend, fit.world_size) == ("nccl", 2)
