"""heartlm's own feed as an endless supply of batches, and how the rate of such supplies is taken."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import Batches
from heartlm.corpus.corpus import Corpus
from heartlm.corpus.rows import RecordTable
from heartlm.corpus.schema import LeadRow
from heartlm.corpus.windows import WindowSampler, sampler
from heartlm.kernels.gather import gather_windows
from heartlm.system.memory import keep_memory
from heartlm.training.batches import CausalBatches, MakeBatch, MaskedBatches
from heartlm.training.feed import Feed
from lab.measure import Timed, interleaved

OURS = "heartlm feed, next token"
ROW_TOKENS, NUM_CODES = 100_000, 128
MASK_SHARE, MASK_SPAN = 0.3, 4

ALL_CORES = os.sched_getaffinity(0)


def made_up(path: Path, num_tokens: int, num_facets: int) -> Corpus:
    """A corpus of random codes in rows of 100,000 tokens, written to `path` once and memory-mapped."""
    shape = num_tokens, num_facets
    if not path.exists() or path.stat().st_size != 2 * num_tokens * num_facets:
        part = np.random.default_rng(0).integers(0, NUM_CODES, (1 << 20, num_facets)).astype(np.uint16)
        with path.open("wb") as file:
            for first in range(0, num_tokens, len(part)):
                np.roll(part, first, axis=0)[: num_tokens - first].tofile(file)
    codes: NDArray[np.uint16] = np.memmap(path, np.uint16, "r", shape=shape)
    rows = [
        LeadRow("made up", f"r{i}", f"p{i}", "train", "", 0, 1.0, 0, first, min(ROW_TOKENS, num_tokens - first), "")
        for i, first in enumerate(range(0, num_tokens, ROW_TOKENS))
    ]
    sample, labels, scale = np.empty(0, np.int64), np.empty((0, 2), np.int8), np.empty(0, np.float32)
    return Corpus(path.parent, {}, codes, sample, labels, scale, RecordTable(rows))


def into_memory(corpus: Corpus) -> Corpus:
    """Touch every page, so that no rival pays for the first time."""
    corpus.codes.reshape(-1)[:: os.sysconf("SC_PAGESIZE") // 2].max()
    return corpus


def order_of(corpus: Corpus, width: int, batch_size: int, order: str = "random") -> WindowSampler:
    """The order in which training draws from the corpus."""
    rows = corpus.records.select("train")
    return sampler(corpus.records, rows, width=width, batch_size=batch_size, seed=0, order=order)


def gathered(corpus: Corpus, width: int, batch_size: int) -> Batches:
    """The gather alone, of places drawn beforehand, into one buffer."""
    drawn = order_of(corpus, width, batch_size)
    places = [drawn.windows(step) for step in range(1000)]
    out = np.empty((batch_size, width, corpus.codes.shape[1]), np.uint16)
    for windows in itertools.cycle(places):
        yield gather_windows(corpus.codes, windows.first, windows.length, width, out)


def fed(corpus: Corpus, width: int, batch_size: int, make: MakeBatch) -> Batches:
    """The feed of training, on a CPU and without a thread."""
    keep_memory()
    order = order_of(corpus, width, batch_size)
    with Feed(order, make, range(1 << 40), prefetch=0) as feed:
        for batches in feed:  # a training step finishes them
            yield [make.finish(part.with_codes(None)) for part in batches.parts]


def own(corpus: Corpus, width: int, batch_size: int) -> dict[str, Batches]:
    """heartlm's ways by name."""
    masks = np.full(corpus.codes.shape[1], NUM_CODES)
    masked = MaskedBatches(corpus, masks, MASK_SHARE, MASK_SPAN, 0)
    return {
        "heartlm gather alone, uint16": gathered(corpus, width, batch_size),
        OURS: fed(corpus, width, batch_size, CausalBatches(corpus)),
        "heartlm feed, masked": fed(corpus, width, batch_size, masked),
    }


@contextmanager
def all_cores() -> Iterator[None]:
    """This thread, and the processes it starts meanwhile, may use all cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, ALL_CORES)
    yield
    os.sched_setaffinity(0, before)


def timed_supplies(rivals: Mapping[str, Batches], rounds: int, turn_s: float, batch_tokens: int) -> dict[str, Timed]:
    """What every rival takes for turns of about `turn_s`, in tokens; the worker processes of some use all cores."""
    num: dict[str, int] = {}
    for name, batches in rivals.items():
        with all_cores():  # the workers start here, and stay on all cores
            next(batches)
        take(batches, 5)  # what its workers had ready does not show its rate
        num[name] = made_within(batches, turn_s)
    turns: dict[str, Callable[[], object]] = {}
    for name, batches in rivals.items():
        turns[name] = lambda batches=batches, name=name: take(batches, num[name])  # type: ignore[misc]
        if "2 workers" in name:  # until the workers have filled their queues again and sleep
            turns[f"{name}, settled"] = lambda: time.sleep(turn_s / 2)
    times = interleaved(turns, rounds, warm_up=False)
    return {name: Timed(tuple(times[name]), num[name] * batch_tokens) for name in rivals}


def made_within(batches: Batches, duration_s: float) -> int:
    """How many batches a rival makes in about that time."""
    end_s, num = time.perf_counter() + duration_s, 0
    while time.perf_counter() < end_s or not num:
        take(batches, 1)
        num += 1
    return num


def take(batches: Batches, num: int) -> None:
    """Take `num` batches."""
    for _ in range(num):
        next(batches)
