"""Windows: a pure function of seed and step, inside one recording each, and the same for every number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.corpus.rows import RecordTable
from heartlm.corpus.schema import LeadRow
from heartlm.corpus.windows import Windows, WindowSampler, covering_windows, sampler
from heartlm.errors import HeartlmError

pure = settings(derandomize=True, deadline=None)
lengths = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)
widths = st.integers(1, 30)


def table(num_tokens: list[int], databases: list[str] | None = None) -> RecordTable:
    first = np.cumsum([0, *num_tokens])
    names = databases or ["db"] * len(num_tokens)
    return RecordTable(
        [
            LeadRow(name, f"r{i}", f"p{i}", "train", "II", 0, 250.0, 0, int(first[i]), length, "")
            for i, (name, length) in enumerate(zip(names, num_tokens, strict=True))
        ]
    )


def sampler_of(num_tokens: list[int], width: int = 8, batch_size: int = 16, seed: int = 0) -> WindowSampler:
    records = table(num_tokens)
    return sampler(records, records.select("train"), width=width, batch_size=batch_size, seed=seed)


def same(one: Windows, other: Windows) -> bool:
    return np.array_equal(one.first, other.first) and np.array_equal(one.length, other.length)


@pure
@given(num_tokens=lengths, width=widths, seed=st.integers(0, 2**31 - 1), steps=st.lists(st.integers(0, 2**40)))
def test_a_step_has_its_windows_whatever_was_asked_before(
    num_tokens: list[int], width: int, seed: int, steps: list[int]
) -> None:
    asked = sampler_of(num_tokens, width, seed=seed)
    for step in steps:
        fresh = sampler_of(num_tokens, width, seed=seed).windows(step)
        assert same(asked.windows(step), fresh)


def test_a_resumed_run_sees_the_windows_it_would_have_seen() -> None:
    through = [sampler_of([100, 50]).windows(step).first.tolist() for step in range(20)]
    resumed = [sampler_of([100, 50]).windows(step).first.tolist() for step in range(13, 20)]
    assert through[13:] == resumed
    assert len({tuple(first) for first in through}) == 20
    assert sampler_of([100, 50], seed=1).windows(0).first.tolist() != through[0]


def test_the_random_order_stays_that_of_published_figures() -> None:
    expected = [49, 115, 78, 84, 1, 8, 136, 67, 66, 112, 39, 8, 133, 102, 20, 51]
    assert sampler_of([100, 50], seed=7).windows(3).first.tolist() == expected


@pure
@given(num_tokens=lengths, width=widths, step=st.integers(0, 1000))
def test_no_window_leaves_its_recording(num_tokens: list[int], width: int, step: int) -> None:
    windows = sampler_of(num_tokens, width).windows(step)
    row_of_token = np.repeat(np.arange(len(num_tokens)), num_tokens)
    row = row_of_token[windows.index]
    assert (row == row[:, :1]).all()
    assert np.array_equal(windows.length, np.minimum(np.array(num_tokens)[row[:, 0]], width))
    assert np.array_equal(windows.valid.sum(axis=1), windows.length) and windows.valid[:, 0].all()
    step_on = np.diff(windows.index, axis=1)
    assert np.array_equal(step_on, windows.valid[:, 1:].astype(int)), "consecutive, padding repeating the last"


@pure
@given(
    order=st.sampled_from(["random", "epochs"]),
    num_ranks=st.integers(1, 8),
    per_rank=st.integers(1, 12),
    step=st.integers(0, 1000),
)
def test_a_rank_draws_its_block_of_the_global_batch(order: str, num_ranks: int, per_rank: int, step: int) -> None:
    """A fresh sampler for each rank, as in a process of its own, asked for its part alone."""
    records = table([60, 9, 31])
    build = {"width": 8, "batch_size": num_ranks * per_rank, "seed": 0, "order": order}
    whole = sampler(records, records.select("train"), **build).windows(step)
    assert len(whole) == num_ranks * per_rank
    for rank in range(num_ranks):
        part = sampler(records, records.select("train"), **build).windows(step, rank * per_rank, per_rank)
        assert same(part, whole[rank * per_rank : (rank + 1) * per_rank])


def test_every_token_is_drawn_rows_by_their_tokens() -> None:
    drawn = sampler_of([300, 100, 4], width=5, batch_size=40_000).windows(0)
    share = np.bincount(np.searchsorted([300, 400], drawn.first, side="right"), minlength=3) / 40_000
    np.testing.assert_allclose(share, np.array([300, 100, 4]) / 404, atol=0.01)
    assert set(drawn.first[drawn.first < 300].tolist()) == set(range(296)), "every start that fits"


def test_databases_are_drawn_by_their_weights() -> None:
    records = table([1000, 10, 90], ["big", "small", "small"])
    build = {"width": 4, "batch_size": 40_000, "seed": 0}
    drawn = sampler(records, records.select("train"), weights={"big": 1, "small": 3}, **build).windows(0)
    assert (drawn.first < 1000).mean() == pytest.approx(0.25, abs=0.01)
    assert ((drawn.first >= 1000) & (drawn.first < 1010)).mean() == pytest.approx(0.075, abs=0.01)
    only = sampler(records, records.select("train"), weights={"big": 0, "small": 1}, **build).windows(0)
    assert only.first.min() >= 1000


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"elsewhere": 1.0}, "no database 'elsewhere' to draw from; there are db"),
        ({"db": 0.0}, "at least one above"),
        ({"db": -1.0}, "none below 0"),
        ({"db": float("nan")}, "at least one above"),
        ({"db": float("inf")}, "at least one above"),
    ],
)
def test_weights_that_cannot_be_drawn_by_are_refused(weights: dict[str, float], message: str) -> None:
    records = table([10])
    with pytest.raises(HeartlmError, match=f"^weights: .*{message}"):
        sampler(records, records.select("train"), width=4, batch_size=2, seed=0, weights=weights)


def test_an_empty_split_is_refused() -> None:
    records = table([0, 0])
    with pytest.raises(HeartlmError, match="holds no tokens"):
        sampler(records, records.select("train"), width=4, batch_size=2, seed=0)


@pure
@given(first=st.integers(0, 99), num_tokens=st.integers(1, 200), width=st.integers(1, 50), data=st.data())
def test_covering_windows_cover_every_token(first: int, num_tokens: int, width: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, width))
    windows = covering_windows(first, num_tokens, width, stride)
    seen = np.unique(windows.index[windows.valid])
    assert np.array_equal(seen, np.arange(first, first + num_tokens))
    assert windows.index.min() >= first and windows.index.max() < first + num_tokens
    assert len(windows) == 1 + -(-max(num_tokens - width, 0) // stride)
