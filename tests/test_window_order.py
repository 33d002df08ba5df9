"""Epochs: every window once in an epoch, whoever asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heartlm.corpus.windows import EpochSampler, WindowSampler, sampler
from heartlm.errors import HeartlmError
from tests.test_windows import table

pure = settings(derandomize=True, deadline=None)


def first_epochs(drawn: WindowSampler, num_epochs: int) -> NDArray[np.int64]:
    """First tokens of the windows of the first epochs, `[num_epochs, N]`, from the batches of their steps."""
    assert isinstance(drawn, EpochSampler)
    num_places = num_epochs * drawn.num_windows
    first = np.concatenate([drawn.windows(step).first for step in range(-(-num_places // drawn.batch_size))])
    return first[:num_places].reshape(num_epochs, drawn.num_windows)


@pure
@given(num_windows=st.integers(1, 700), batch_size=st.integers(1, 60), seed=st.integers(0, 2**31 - 1))
def test_every_epoch_has_every_window_once(num_windows: int, batch_size: int, seed: int) -> None:
    for first in first_epochs(sampler_of([num_windows], "epochs", 1, batch_size, seed), 3):
        assert np.array_equal(np.sort(first), np.arange(num_windows))


@pure
@given(
    order=st.sampled_from(["random", "epochs"]),
    num_tokens=st.lists(st.integers(1, 90), min_size=1, max_size=9),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_a_run_resumed_on_other_ranks_sees_what_one_rank_would_have_seen(
    order: str, num_tokens: list[int], seed: int, data: st.DataObject
) -> None:
    layouts = st.tuples(st.integers(1, 4), st.integers(1, 3))
    before, after = data.draw(layouts), data.draw(layouts)
    per_block = data.draw(st.integers(1, 3))
    batch_size = int(np.lcm(before[0] * before[1], after[0] * after[1])) * per_block
    drawn = sampler_of(num_tokens, order, 5, batch_size, seed)
    last = data.draw(st.integers(1, 6))
    resumed_at = data.draw(st.integers(0, last))
    for step in range(last):
        num_ranks, accumulation = before if step < resumed_at else after
        size = batch_size // (num_ranks * accumulation)
        blocks = [
            drawn.windows(step, (rank * accumulation + micro) * size, size)
            for rank in range(num_ranks)
            for micro in range(accumulation)
        ]
        whole = drawn.windows(step)
        assert np.array_equal(np.concatenate([block.first for block in blocks]), whole.first)
        assert np.array_equal(np.concatenate([block.length for block in blocks]), whole.length)
        assert len(whole) == batch_size


def sampler_of(num_tokens: list[int], order: str, width: int, batch_size: int, seed: int, **more: Any) -> WindowSampler:
    records = table(num_tokens)
    return sampler(records, records.select("train"), width=width, batch_size=batch_size, seed=seed, order=order, **more)


@pure
@given(
    num_tokens=st.lists(st.integers(0, 90), min_size=1, max_size=9).filter(any),
    width=st.integers(1, 30),
    batch_size=st.integers(1, 20),
)
def test_an_epoch_has_every_token_once_and_no_window_crosses_a_recording(
    num_tokens: list[int], width: int, batch_size: int
) -> None:
    records = table(num_tokens)
    rows = records.select("train")
    drawn = EpochSampler(records.first_token[rows], records.num_tokens[rows], width, batch_size, 3)
    num_windows = drawn.num_windows
    seen = [drawn.windows(step) for step in range(-(-num_windows // batch_size))]
    index = np.concatenate([windows.index for windows in seen])[:num_windows]
    valid = np.concatenate([windows.valid for windows in seen])[:num_windows]
    assert np.array_equal(np.sort(index[valid]), np.arange(sum(num_tokens)))
    row = np.repeat(np.arange(len(num_tokens)), num_tokens)[index]
    assert (row == row[:, :1]).all()


def test_epochs_are_shuffled_and_differ() -> None:
    one, two = first_epochs(sampler_of([5000], "epochs", 1, 50, 7), 2)
    other = first_epochs(sampler_of([5000], "epochs", 1, 50, 8), 1)[0]
    assert not np.array_equal(one, two) and not np.array_equal(one, other)
    correlation = np.corrcoef([np.arange(5000), one, two, other])
    assert np.abs(correlation - np.eye(4)).max() < 0.06
    assert (np.diff(one) == 1).mean() < 0.02


def test_databases_are_not_mixed_by_weight_in_epochs() -> None:
    with pytest.raises(HeartlmError, match=r"^weights: .* none expected with order 'epochs': use order 'random'$"):
        sampler_of([10], "epochs", 4, 2, 0, weights={"db": 1.0})
