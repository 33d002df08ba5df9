"""How fast windows are gathered from a corpus, and how fast the files of the user's own come from the disk."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.cluster.doctor.section import WORTH, Advice, Context, Section, size_in_words
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.windows import sampler
from heartlm.kernels.gather import gather_codes

WIDTH, NUM_WINDOWS = 128, 256
PAGE_BYTES, NUM_PAGES = 4096, 400
READ_BYTES, QUICK_READ_BYTES = 256 << 20, 32 << 20
GATHER_S, QUICK_GATHER_S = 1.0, 0.3


def check_storage(context: Context) -> Section:
    """Gather windows, then read the codes of the user's corpus past the cache of the system."""
    folder = context.corpus or small_corpus(context.scratch)
    open_corpus(folder)  # see that it is one; its files are mapped later, as the system forgets no page that is mapped
    facts: dict[str, Any] = {}
    if context.corpus is not None:
        facts = read_rates(folder / "codes.bin", QUICK_READ_BYTES if context.quick else READ_BYTES)
    corpus = open_corpus(folder)
    rate = tokens_per_s(corpus, QUICK_GATHER_S if context.quick else GATHER_S)
    facts["gathered_tokens_per_s"] = rate
    lines = [f"windows of {WIDTH} tokens are gathered at {rate / 1e6:.0f} M tokens/s on one core"]
    if context.corpus is not None:
        fits = corpus.codes.nbytes < context.fact("processors", "memory_available_bytes", math.inf)
        facts |= {
            "corpus": str(folder),
            "corpus_bytes": corpus.codes.nbytes,
            "corpus_fits_memory": fits,
            "window_bytes": WIDTH * corpus.codes.strides[0],
        }
        lines += [
            f"reading {folder}/codes.bin: {facts['read_bytes_per_s'] / 1e6:.0f} MB/s in one piece, "
            f"{facts['pages_per_s']:.0f} pages/s at random",
            f"{size_in_words(corpus.codes.nbytes)} of codes "
            + (
                "fit into memory, so each page is read from disk once"
                if fits
                else "do not fit into memory, so pages are read again and again"
            ),
        ]
    return Section(lines, facts)


def reading_advice(facts: dict[str, Any], step_s: float, num_windows: int) -> list[Advice]:
    """What helps where the corpus does not fit into memory, next to steps that take `step_s` when nothing is read.

    Args:
        facts: of `check_storage`.
        step_s: of a step of `num_windows` windows whose codes are in memory.
        num_windows: of a step.
    """
    if facts.get("corpus_fits_memory", True):
        return []
    reading_s = num_windows * (facts["window_bytes"] / PAGE_BYTES + 1) / facts["pages_per_s"]
    in_blocks_s = num_windows * facts["window_bytes"] / facts["read_bytes_per_s"]
    gain = (step_s + reading_s) / (step_s + in_blocks_s)
    because = f"reading windows at random adds {1e3 * reading_s:.1f} ms to a step of {1e3 * step_s:.1f} ms"
    return [Advice("read the corpus block by block", "--order blocks", gain, because)] if gain > WORTH else []


def small_corpus(scratch: Path) -> Path:
    """Simulate a database and tokenize it, every sample a token; it takes a few seconds."""
    from heartlm.corpus.build import build_corpus
    from heartlm.ecg.simulator import SimulationConfig, simulate_database
    from heartlm.tokenizers.sample import SampleTokenizer

    folder = scratch / "corpus"
    if not folder.exists():
        simulate_database(scratch / "database", SimulationConfig(patients=6, minutes=4.0, seed=1, name="doctor"))
        build_corpus([scratch / "database"], SampleTokenizer(), folder)
    return folder


def tokens_per_s(corpus: Corpus, for_s: float) -> float:
    """Tokens a second that this thread draws and gathers, from the cache of the system."""
    rows = np.flatnonzero(corpus.records.num_tokens > 0)
    draw = sampler(corpus.records, rows, width=WIDTH, batch_size=NUM_WINDOWS, seed=0)
    out, num_steps = np.empty((NUM_WINDOWS, WIDTH, corpus.codes.shape[1]), np.int64), 0
    codes = np.asarray(corpus.codes)
    begin_s = time.perf_counter()
    while (taken_s := time.perf_counter() - begin_s) < for_s or num_steps < 2:
        windows = draw.windows(num_steps)
        gather_codes(codes, windows.first, windows.length, WIDTH, out)
        num_steps += 1
    return num_steps * NUM_WINDOWS * WIDTH / taken_s


def read_rates(path: Path, most_bytes: int) -> dict[str, float]:
    """Bytes a second of the file's first `most_bytes` in one piece, and single pages a second at random, uncached."""
    of_file = max(1, path.stat().st_size // PAGE_BYTES)
    places = np.random.default_rng(0).choice(of_file, min(NUM_PAGES, of_file), replace=False) * PAGE_BYTES
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        begin_s, num_read = time.perf_counter(), 0
        while num_read < most_bytes and (piece := os.read(descriptor, 4 << 20)):
            num_read += len(piece)
        read_s = max(1e-9, time.perf_counter() - begin_s)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        begin_s = time.perf_counter()
        for place in places.tolist():
            os.pread(descriptor, PAGE_BYTES, place)
        pages_s = max(1e-9, time.perf_counter() - begin_s)
    finally:
        os.close(descriptor)
    return {"read_bytes_per_s": num_read / read_s, "pages_per_s": len(places) / pages_s}
