"""Loading rate of token windows for a training step, with heartlm's feed and with other loaders.

a corpus ─► random windows, int64 batches on the host ─► M tokens per second of every loader, at several widths

    python benchmarks/machine.py loader
    python benchmarks/machine.py loader --corpus corpora/many --widths '[128, 512]'
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.feeds import OURS, into_memory, made_up, own, timed_supplies
from bench.measure import BenchTable, Chart, on_one_core
from bench.options import BenchOptions, at_least, each_at_least
from bench.peers import Batches, backings, nanogpt, sliding, torch_loaders
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.errors import HeartlmError

ITEM_TOKENS = 1 << 22
CHECKED_WINDOWS, CHECKED_BYTES = 4, 256 << 20
"""Windows of each way that are looked for in the corpus, unless it is larger than that: it is searched for them."""


@dataclass(frozen=True)
class Options(BenchOptions):
    """Options of the loader bench.

    Attributes:
        rounds: number of turns of every loader; the median is reported.
        corpus: folder of a corpus; by default random tokens of one facet are written.
        tokens: number of random tokens.
        widths: tokens per window.
        batch_tokens: tokens per batch.
        workers: numbers of processes of PyTorch's DataLoader to measure.
        turn_s: approximate duration of a turn in seconds.
    """

    rounds: int = 3
    corpus: Path | None = None
    tokens: int = 1 << 24
    widths: tuple[int, ...] = (128, 256, 512, 1024)
    batch_tokens: int = 1 << 16
    workers: tuple[int, ...] = (0, 2)
    turn_s: float = 0.2

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            HeartlmError: a value is invalid; the message names the field, what was found and what is expected.
        """
        super().__post_init__()
        each_at_least("widths", self.widths, 2)
        each_at_least("workers", self.workers, 0)
        at_least("batch_tokens", self.batch_tokens, max(self.widths), ", a window,")
        at_least("tokens", self.tokens, 2 * max(self.widths), ", two windows,")
        at_least("turn_s", self.turn_s, 0.001)


def run(options: Options) -> list[BenchTable]:
    """Let every way hand over batches in turns, one width after the other, this process on one core.

    Raises:
        HeartlmError: there is no corpus, or it is too short.
    """
    columns = ("way", "width", "M tokens/s", "spread %", "heartlm is times faster")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        given = open_corpus(options.corpus) if options.corpus else made_up(folder / "codes.bin", options.tokens, 1)
        _check_corpus(given, options)
        corpus = into_memory(given)
        table = BenchTable(f"Batches of {options.batch_tokens:,} tokens (median of {options.rounds})", columns)
        table.chart = Chart("lines", ("width",), ("M tokens/s",), "M tokens a second", by="way", log=True)
        with on_one_core(), _one_thread(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")
            for width in options.widths:
                rivals = _rivals(corpus, width, options, folder / str(width))
                if corpus.codes.nbytes <= CHECKED_BYTES:
                    check_windows(corpus, rivals)
                batch_tokens = options.batch_tokens // width * width
                found = timed_supplies(rivals, options.rounds, options.turn_s, batch_tokens)
                for name, timed in found.items():
                    faster = found[OURS].times_faster_than(timed)
                    table.add(name, width, timed.rate / 1e6, 100 * timed.spread, faster)
                del rivals  # the worker processes of some
    table.notes += _notes(corpus, options)
    return [table.close()]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch computes in one thread: more would take turns on the one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _check_corpus(corpus: Corpus, options: Options) -> None:
    if len(corpus.codes) < 2 * max(options.widths):
        raise HeartlmError(
            f"{options.corpus}: {len(corpus.codes)} tokens found, two windows of {max(options.widths)} expected: "
            "give smaller --widths"
        )


def _rivals(corpus: Corpus, width: int, options: Options, folder: Path) -> dict[str, Batches]:
    batch_size, num_facets = options.batch_tokens // width, corpus.codes.shape[1]
    path = corpus.folder / "codes.bin"
    num_items = min(ITEM_TOKENS // num_facets, len(corpus.codes)) // width
    items = np.array(corpus.codes[: num_items * width]).reshape(num_items, width, num_facets)
    rivals = own(corpus, width, batch_size)
    rivals["nanoGPT get_batch"] = nanogpt(path, width, batch_size, num_facets)
    rivals["NumPy sliding windows"] = sliding(path, width, batch_size, num_facets)
    return rivals | torch_loaders(backings(path, items, folder), batch_size, options.workers)


def check_windows(corpus: Corpus, rivals: dict[str, Batches]) -> None:
    """Check before the timing that the first batch of every loader consists of windows of the corpus.

    Raises:
        HeartlmError: a batch has other content.
    """
    with (corpus.folder / "codes.bin").open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as held:
        for name, batches in rivals.items():
            for window in _windows(next(batches)):
                if held.find(window) < 0:
                    raise HeartlmError(f"{name}: a window that is not in the corpus: a defect of heartlm, report it")


def _windows(batch: Any) -> list[bytes]:
    """Some windows of a batch, however its maker hands it over, as the corpus holds them."""
    num_valid = None
    if hasattr(batch, "micro_batches"):
        made = batch.micro_batches[0]
        codes, num_valid = made.target.numpy(), made.num_valid - 1  # the last may have nothing to predict
    else:
        codes = np.asarray(batch[0] if isinstance(batch, tuple) else batch)
    stops = num_valid if num_valid is not None else [codes.shape[1]] * len(codes)
    pairs = list(zip(codes, stops, strict=True))[:CHECKED_WINDOWS]
    return [window[:stop].astype(np.uint16).tobytes() for window, stop in pairs]


def _notes(corpus: Corpus, options: Options) -> list[str]:
    num_tokens, num_facets = corpus.codes.shape
    source = options.corpus.name if options.corpus else "random tokens"
    return [
        f"{num_tokens:,} tokens of {num_facets} facet(s) ({source}), in the page cache; this process on one core, "
        "worker processes on all.",
        "Every way handed over int64 batches (the gather alone: uint16)"
        + (" of windows that lie in the corpus." if corpus.codes.nbytes <= CHECKED_BYTES else "."),
    ]
