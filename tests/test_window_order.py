"""Epochs and blocks: every window once in an epoch, whoever asks, and reads that stay together on disk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heartlm.corpus.order import BUFFER_BLOCKS, GROUP_BLOCKS, EpochOrder
from heartlm.corpus.windows import BLOCK_BYTES, EpochSampler, WindowSampler, sampler
from heartlm.errors import HeartlmError
from tests.test_windows import table

pure = settings(derandomize=True, deadline=None)
orders = st.builds(
    EpochOrder,
    num_windows=st.integers(1, 700),
    batch_size=st.integers(1, 60),
    seed=st.integers(0, 2**31 - 1),
    block=st.integers(1, 40),
)


def first_epochs(order: EpochOrder, num_epochs: int) -> NDArray[np.int64]:
    """Window numbers of the first epochs, `[num_epochs, N]`, from the batches of their steps."""
    num_places = num_epochs * order.num_windows
    steps = range(-(-num_places // order.batch_size))
    numbers = np.concatenate([order.numbers(step, 0, order.batch_size) for step in steps])
    return numbers[:num_places].reshape(num_epochs, order.num_windows)


@pure
@given(order=orders)
def test_every_epoch_has_every_window_once(order: EpochOrder) -> None:
    for numbers in first_epochs(order, 3):
        assert np.array_equal(np.sort(numbers), np.arange(order.num_windows))


@pure
@given(
    order=st.sampled_from(["random", "epochs", "blocks"]),
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
    block=st.one_of(st.none(), st.integers(1, 5)),
)
def test_an_epoch_has_every_token_once_and_no_window_crosses_a_recording(
    num_tokens: list[int], width: int, batch_size: int, block: int | None
) -> None:
    records = table(num_tokens)
    rows = records.select("train")
    drawn = EpochSampler(records.first_token[rows], records.num_tokens[rows], width, batch_size, 3, block)
    num_windows = drawn.order.num_windows
    seen = [drawn.windows(step) for step in range(-(-num_windows // batch_size))]
    index = np.concatenate([windows.index for windows in seen])[:num_windows]
    valid = np.concatenate([windows.valid for windows in seen])[:num_windows]
    assert np.array_equal(np.sort(index[valid]), np.arange(sum(num_tokens)))
    row = np.repeat(np.arange(len(num_tokens)), num_tokens)[index]
    assert (row == row[:, :1]).all()


@pure
@given(order=orders, data=st.data())
def test_what_a_part_of_the_batch_reads_is_announced(order: EpochOrder, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, order.batch_size - 1))
    num = data.draw(st.integers(1, order.batch_size - first))
    steps = range(-(-2 * order.num_windows // order.batch_size))
    last = order.buffer_at(steps.stop)
    announced = [{number for part in order.reads(buffer, first, num) for number in part} for buffer in range(last + 1)]
    for step in steps:
        at = order.buffer_at(step)
        soon = set().union(*announced[at : order.buffer_at(step + 1) + 1])
        assert set(order.numbers(step, first, num).tolist()) <= soon


def test_ranks_read_a_corpus_once_between_them() -> None:
    block, num_ranks = 10, 8
    order = EpochOrder(BUFFER_BLOCKS * block * 3, 64, 0, block)
    size = order.batch_size // num_ranks
    for buffer in range(3):
        reads = [
            [number for part in order.reads(buffer, rank * size, size) for number in part] for rank in range(num_ranks)
        ]
        assert sorted(number for part in reads for number in part) == sorted(set().union(*reads))
        assert {len(part) for part in reads} == {order.buffer // num_ranks}


def test_blocks_are_read_whole_and_one_after_the_other() -> None:
    order = EpochOrder(4000, 16, 1, 10)
    assert all(len(part) == 10 for part in order.reads(0, 0, 16)[:-1])
    numbers = first_epochs(order, 1)[0]
    touched = [len(np.unique(numbers[at : at + order.buffer] // 10)) for at in range(0, 4000, order.buffer)]
    assert max(touched) <= 2 * BUFFER_BLOCKS, "a buffer touches its blocks, each cut once at most by the rotation"
    assert len(np.unique(numbers[:16] // 10)) > GROUP_BLOCKS, "a batch is from many groups"


@pytest.mark.parametrize("block", [10, 5000])
def test_epochs_are_shuffled_and_differ(block: int) -> None:
    one, two = first_epochs(EpochOrder(5000, 50, 7, block), 2)
    other = first_epochs(EpochOrder(5000, 50, 8, block), 1)[0]
    assert not np.array_equal(one, two) and not np.array_equal(one, other)
    correlation = np.corrcoef([np.arange(5000), one, two, other])
    assert np.abs(correlation - np.eye(4)).max() < (0.2 if block == 10 else 0.06)
    assert (np.diff(one) == 1).mean() < 0.02


def test_the_block_follows_from_its_bytes() -> None:
    tokens = 4 * BLOCK_BYTES
    drawn = sampler_of([tokens], "blocks", 512, 8, 0, token_bytes=20)
    assert isinstance(drawn, EpochSampler) and drawn.order.block == BLOCK_BYTES // (512 * 20)
    parts = drawn.reads(0, 0, 8)
    assert max(part.stop - part.start for part in parts) * 20 <= BLOCK_BYTES
    assert sum(part.stop - part.start for part in parts) == drawn.order.buffer * 512
    whole = sampler_of([tokens], "epochs", 512, 8, 0)
    assert whole.reads(0, 0, 8) == []


def test_databases_are_not_mixed_by_weight_in_epochs() -> None:
    with pytest.raises(HeartlmError, match=r"^weights: .* none expected with order 'epochs': use order 'random'$"):
        sampler_of([10], "epochs", 4, 2, 0, weights={"db": 1.0})
