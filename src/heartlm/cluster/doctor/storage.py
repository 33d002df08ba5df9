"""Reading speed of the windows of the user's corpus."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.cluster.doctor.section import WORTH, Advice, Context, Section, size_in_words
from heartlm.corpus.corpus import open_corpus

WIDTH = 128
PAGE_BYTES, NUM_PAGES = 4096, 400
READ_BYTES, QUICK_READ_BYTES = 256 << 20, 32 << 20


def check_storage(context: Context) -> Section:
    """Read the codes of the user's corpus, bypassing the page cache."""
    if context.corpus is None:
        return Section(["reading: not measured, --corpus FOLDER does it"])
    codes = open_corpus(context.corpus).codes
    codes_bytes, window_bytes = codes.nbytes, WIDTH * codes.strides[0]
    del codes  # the system does not drop mapped pages from its cache
    path = context.corpus / "codes.bin"
    rates = read_rates(path, QUICK_READ_BYTES if context.quick else READ_BYTES)
    fits = codes_bytes < context.fact("processors", "memory_available_bytes", math.inf)
    how = "fit into memory, so each page is read from disk once"
    lines = [
        f"reading {path}: {rates['read_bytes_per_s'] / 1e6:.0f} MB/s in one piece, "
        f"{rates['pages_per_s']:.0f} pages/s at random",
        f"{size_in_words(codes_bytes)} of codes "
        + (how if fits else "do not fit into memory, so pages are read again and again"),
    ]
    facts = {"corpus": str(context.corpus), "corpus_bytes": codes_bytes, "corpus_fits_memory": fits}
    return Section(lines, {**facts, **rates, "window_bytes": window_bytes})


def reading_advice(facts: dict[str, Any], step_s: float, num_windows: int) -> list[Advice]:
    """Return advice for a corpus that does not fit into memory.

    Args:
        facts: facts of `check_storage`.
        step_s: time in seconds of a step of `num_windows` windows with all codes in memory.
        num_windows: number of windows in a step.
    """
    if facts.get("corpus_fits_memory", True):
        return []
    reading_s = num_windows * (facts["window_bytes"] / PAGE_BYTES + 1) / facts["pages_per_s"]
    in_blocks_s = num_windows * facts["window_bytes"] / facts["read_bytes_per_s"]
    gain = (step_s + reading_s) / (step_s + in_blocks_s)
    because = f"reading windows at random adds {1e3 * reading_s:.1f} ms to a step of {1e3 * step_s:.1f} ms"
    return [Advice("read the corpus block by block", "--order blocks", gain, because)] if gain > WORTH else []


def read_rates(path: Path, most_bytes: int) -> dict[str, float]:
    """Return the uncached rates of the first `most_bytes`: sequential bytes per second, and random pages per second."""
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
