"""The feed: the same global batch for every layout, device and way of preparing it; and how it ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.windows import Windows, WindowSampler, sampler
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError
from heartlm.training.bad_steps import BadSteps
from heartlm.training.batches import (
    Batch,
    BatchPosition,
    CausalBatches,
    HostBatch,
    LabelBatches,
    MakeBatch,
    MaskedBatches,
)
from heartlm.training.config import TrainingConfig
from heartlm.training.feed import TOGETHER, Feed, StepBatches
from heartlm.training.layout import BatchLayout
from heartlm.training.learner import Learner
from heartlm.training.objectives import FacetLoss
from heartlm.training.queued import QueuedSteps
from tests.synthetic_corpus import SIZES, small_model, synthetic_corpus

CORPUS = synthetic_corpus((200, 90, 7))
MASK = np.array(SIZES)
LABELS = CORPUS.beat_class.astype(np.int64)
MAKERS: dict[str, MakeBatch] = {
    "masked": MaskedBatches(CORPUS, MASK, 0.3, 3, seed=5),
    "causal": CausalBatches(CORPUS),
    "labels": LabelBatches(CORPUS, LABELS, MASK, False, 0.2, seed=5),
    "window labels": LabelBatches(CORPUS, LABELS, MASK, True, 0.0, seed=5),
}
TENSORS = ("codes", "target", "counts", "valid")


def check_sent_batches(make: MakeBatch, device: torch.device, steps: range) -> None:
    """Check that `QueuedSteps` sends to `device` what the feed has on the host."""
    drawn, layout = order_of(8), BatchLayout(8, accumulation=2)
    config, how = TrainingConfig(batch_size=8, compile=False), {"device": device, "precision": torch.float32}
    learner = Learner(small_model(), FacetLoss(("0",)), config, layout=layout, **how)
    queued = QueuedSteps(learner, make, BadSteps())
    with (
        Feed(drawn, make, steps, layout, prefetch=3, keys=lambda *_: None) as there,
        Feed(drawn, make, steps, layout) as here,
    ):
        for found, expected in zip(there, here, strict=True):
            assert (found.num_counted, found.num_tokens) == (expected.num_counted, expected.num_tokens)
            shape = queued._sent(torch.tensor([found.step]), torch.tensor([0.5, found.num_counted]), found.parts)
            assert (shape.step.item(), *shape.factors.tolist()) == (found.step, 0.5, found.num_counted)
            for part, other in zip(shape.parts, finished(expected, make), strict=True):
                batch = make.finish(part.with_codes(None))
                for name in TENSORS:
                    assert getattr(batch, name).device == device
                    torch.testing.assert_close(getattr(batch, name).cpu(), getattr(other, name), rtol=0, atol=0)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_queue_sends_what_a_feed_computes(kind: str) -> None:
    check_sent_batches(MAKERS[kind], torch.device("cpu"), range(20))


def order_of(batch_size: int, order: str = "random", seed: int = 3) -> WindowSampler:
    records = CORPUS.records
    return sampler(records, records.select("train"), width=16, batch_size=batch_size, seed=seed, order=order)


def steps_of(feed: Feed) -> list[StepBatches]:
    with feed:
        return list(feed)


def finished(fed: StepBatches, make: MakeBatch) -> list[Batch]:
    """The micro-batches as the step computes with them."""
    return [make.finish(part.with_codes(None)) for part in fed.parts]


def joined(ranks: list[StepBatches], make: MakeBatch) -> dict[str, Any]:
    """The global batch of a step from the micro-batches of its ranks, in order."""
    batches = [batch for rank in ranks for batch in finished(rank, make)]
    assert len({rank.step for rank in ranks}) == 1
    assert all(rank.num_counted == sum(batch.num_counted for batch in finished(rank, make)) for rank in ranks)
    assert all(rank.num_tokens == sum(batch.num_tokens for batch in finished(rank, make)) for rank in ranks)
    whole = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in TENSORS}
    counts = {name: sum(getattr(rank, name) for rank in ranks) for name in ("num_counted", "num_tokens")}
    return {"step": ranks[0].step, **whole, **counts}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    tensors = all(torch.equal(one[name], other[name]) for name in TENSORS)
    return tensors and all(one[name] == other[name] for name in ("step", "num_counted", "num_tokens"))


@given(
    kind=st.sampled_from(sorted(MAKERS)),
    order=st.sampled_from(["random", "epochs"]),
    before=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    after=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    resumed_at=st.integers(0, 4),
    prefetch=st.integers(0, 2),
    seed=st.integers(0, 100),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_the_blocks_of_all_ranks_are_the_batch_of_one(
    kind: str,
    order: str,
    before: tuple[int, int],
    after: tuple[int, int],
    resumed_at: int,
    prefetch: int,
    seed: int,
) -> None:
    batch_size = int(np.lcm(before[0] * before[1], after[0] * after[1]))
    drawn, make = order_of(batch_size, order, seed), MAKERS[kind]
    straight = steps_of(Feed(drawn, make, range(4), prefetch=0))
    split = []
    for (num_ranks, accumulation), steps in ((before, range(resumed_at)), (after, range(resumed_at, 4))):
        layouts = [BatchLayout(batch_size, accumulation, Ranks(rank, num_ranks)) for rank in range(num_ranks)]
        feeds = [steps_of(Feed(drawn, make, steps, layout, prefetch=prefetch)) for layout in layouts]
        split += [joined(list(ranks), make) for ranks in zip(*feeds, strict=True)]
    whole = [joined([one], make) for one in straight]
    assert [one["step"] for one in whole] == [0, 1, 2, 3]
    assert all(same(one, other) for one, other in zip(whole, split, strict=True))


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_the_feed_gives_what_the_maker_makes(kind: str) -> None:
    drawn, make = order_of(6), MAKERS[kind]
    for fed in steps_of(Feed(drawn, make, range(2, 5))):
        windows = drawn.windows(fed.step)
        expected = make(windows, fed.step)
        (batch,) = finished(fed, make)
        assert all(torch.equal(getattr(batch, name), getattr(expected, name)) for name in TENSORS)
        assert fed.num_counted == int(batch.counts.sum())
        assert fed.num_tokens == int(batch.valid.sum())
        assert batch.all_valid == bool(batch.valid.all())
        assert np.array_equal(batch.num_valid, batch.valid.sum(dim=1).numpy())
        assert batch.codes.dtype == batch.target.dtype == torch.int64


@pytest.mark.parametrize(("prefetch", "expected"), [(0, [TOGETHER, *[0] * (TOGETHER - 1), 2, 0]), (2, [1] * 18)])
def test_the_feed_tells_how_many_steps_a_wait_prepared(prefetch: int, expected: list[int]) -> None:
    fed = steps_of(Feed(order_of(6), MAKERS["causal"], range(TOGETHER + 2), prefetch=prefetch))
    assert [step.num_prepared for step in fed] == expected


def test_padding_is_fed_and_batches_without_it_are_known() -> None:
    make = MAKERS["causal"]
    seen = {finished(fed, make)[0].all_valid for fed in steps_of(Feed(order_of(2), make, STEPS))}
    assert seen == {True, False}


STEPS = range(40)


def test_a_step_taken_is_not_overwritten_by_those_prepared_after_it() -> None:
    drawn, make = order_of(8), MAKERS["masked"]
    with Feed(drawn, make, STEPS, prefetch=2) as feed:
        kept = [(fed.step, fed) for fed in feed]
    for step, fed in kept:
        assert torch.equal(finished(fed, make)[0].codes, make(drawn.windows(step), step).codes)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_feed_keeps_no_batch_that_was_taken(prefetch: int) -> None:
    """The next batch then reuses its memory, which is in the caches."""
    with Feed(order_of(8), MAKERS["causal"], range(4), prefetch=prefetch) as feed:
        for batches in feed:
            taken = weakref.ref(batches.parts[0])
            del batches
            assert taken() is None


def test_a_batch_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(HeartlmError, match=r"^batch_size: 8 found, a multiple of 6 expected: 3 ranks with 2 micro"):
        BatchLayout(8, 2, Ranks(world_size=3))


# --- ending -----------------------------------------------------------------------------------------------------------


class Breaking(CausalBatches):
    """Breaks at step 3."""

    def draft(self, windows: Windows, place: BatchPosition, stored: bool = False) -> HostBatch:
        if place.step == 3:
            raise KeyError("step 3")
        return super().draft(windows, place, stored)


def feed_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("heartlm-feed")]


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_what_breaks_in_the_thread_is_raised_by_the_feed_after_the_steps_before(prefetch: int) -> None:
    seen = []
    with (
        pytest.raises(KeyError, match="step 3"),
        Feed(order_of(4), Breaking(CORPUS), STEPS, prefetch=prefetch) as feed,
    ):
        for fed in feed:
            seen.append(fed.step)
    assert seen == [0, 1, 2]
    assert not feed_threads()


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_closing_early_ends_the_thread(taken: int) -> None:
    with Feed(order_of(4), MAKERS["masked"], STEPS, prefetch=2) as feed:
        batches = iter(feed)
        for _ in range(taken):
            next(batches)
        assert len(feed_threads()) == 1
    assert not feed_threads()


def on_disk(folder: Path, num_tokens: int = 4000) -> Corpus:
    corpus = synthetic_corpus((num_tokens,))
    corpus.codes.tofile(folder / "codes.bin")
    return replace(corpus, codes=np.memmap(folder / "codes.bin", np.uint16, "r", shape=corpus.codes.shape))


def feed_of(corpus: Corpus, prefetch: int | None, order: str = "random") -> Feed:
    rows = corpus.records.select("train")
    drawn = sampler(corpus.records, rows, width=16, batch_size=8, seed=0, order=order)
    return Feed(drawn, CausalBatches(corpus), range(200), prefetch=prefetch)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_corpus_cut_short_under_a_run_is_an_error_and_not_a_crash(tmp_path: Path, prefetch: int) -> None:
    message = rf"^{tmp_path}/codes.bin: 100 bytes found, 16000 expected while .* continue with --resume$"
    with feed_of(on_disk(tmp_path), prefetch) as feed, pytest.raises(HeartlmError, match=message):
        for fed in feed:
            if fed.step == 5:
                while not all(
                    each.done() for each in feed._ahead
                ):  # cut short between steps: within one it would be SIGBUS
                    time.sleep(0.001)
                os.truncate(tmp_path / "codes.bin", 100)
    last_ready = 5 + prefetch if prefetch else TOGETHER - 1
    assert fed.step == last_ready, "those that were ready are not lost"


def test_a_corpus_deleted_under_a_run_is_read_on(tmp_path: Path) -> None:
    corpus = on_disk(tmp_path)
    expected = np.array(corpus.codes)
    with feed_of(corpus, 0) as feed:
        for fed in feed:
            windows = feed.sampler.windows(fed.step)
            assert np.array_equal(fed.parts[0].codes.numpy(), expected[windows.index])
            if fed.step == 5:
                (tmp_path / "codes.bin").unlink()
    assert fed.step == 199


def test_a_corpus_gone_before_the_first_step_is_an_error(tmp_path: Path) -> None:
    corpus = on_disk(tmp_path)
    (tmp_path / "codes.bin").unlink()
    with pytest.raises(HeartlmError, match=r"codes.bin: No such file or directory"):
        feed_of(corpus, 0)


def test_an_epoch_is_fed_from_disk(tmp_path: Path) -> None:
    corpus = on_disk(tmp_path)
    seen = np.concatenate([fed.parts[0].codes.numpy() for fed in steps_of(feed_of(corpus, None, "epochs"))])
    num_windows = 4000 // 16
    epoch = {window.tobytes() for window in seen[:num_windows]}
    tokens = np.array(corpus.codes).reshape(num_windows, 16, 2)
    assert epoch == {window.astype(np.int64).tobytes() for window in tokens}


LEFT_OPEN = """
from tests.test_training_feed import *
feed = Feed(order_of(4), MAKERS["masked"], STEPS, prefetch=2)
feed.__enter__()
next(iter(feed))
print("done")
"""


def test_a_process_ends_though_its_feed_was_left_open() -> None:
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN], cwd=root, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_feeds_leave_no_files_open(tmp_path: Path) -> None:
    corpus = on_disk(tmp_path)
    gc.collect()
    before = open_files()
    for prefetch in (0, 1):
        for fed in closing(feed_of(corpus, prefetch)):
            assert isinstance(fed.parts[0], HostBatch)
    assert open_files() == before


def closing(feed: Feed) -> Iterator[StepBatches]:
    with feed:
        yield from feed
