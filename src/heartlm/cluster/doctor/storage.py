"""How fast windows are gathered from a corpus, and how fast its files come from the disk."""

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
PAGE_BYTES = 4096
READ_BYTES, QUICK_READ_BYTES = 256 << 20, 32 << 20
GATHER_S, QUICK_GATHER_S = 1.0, 0.3


def check_storage(context: Context) -> Section:
    """Gather windows, then read the corpus's largest file past the cache of the system."""
    folder = context.corpus or small_corpus(context.scratch)
    open_corpus(folder)  # see that it is one; its files are mapped later, as the system forgets no page that is mapped
    most = QUICK_READ_BYTES if context.quick else READ_BYTES
    scratch = _disk(written(context.scratch / "large", most), most)
    own = _disk(folder / "codes.bin", most) if context.corpus else None
    corpus = open_corpus(folder)
    rate = tokens_per_s(corpus, QUICK_GATHER_S if context.quick else GATHER_S)
    facts: dict[str, Any] = {
        "corpus": str(folder) if context.corpus else None,
        "gathered_tokens_per_s": rate,
        "scratch": str(context.scratch.parent),
        "scratch_disk": scratch,
    }
    lines = [
        f"windows of {WIDTH} tokens are gathered at {rate / 1e6:.0f} M tokens/s on one core",
        f"reading a file in {context.scratch.parent}: {_told(scratch)}",
    ]
    if own is not None:
        facts |= {
            "corpus_disk": own,
            "corpus_bytes": corpus.codes.nbytes,
            "corpus_fits_memory": corpus.codes.nbytes < context.fact("processors", "memory_available_bytes", math.inf),
            "window_bytes": WIDTH * corpus.codes.strides[0],
        }
        lines += [f"reading {folder}/codes.bin: {_told(own)}", _fitting(facts)]
    return Section(lines, facts)


def _disk(path: Path, most_bytes: int) -> dict[str, Any]:
    return {
        "filesystem": filesystem(path),
        "read_bytes_per_s": bytes_per_s(path, most_bytes),
        "pages_per_s": pages_per_s(path),
    }


def _told(disk: dict[str, Any]) -> str:
    rates = f"{disk['read_bytes_per_s'] / 1e6:.0f} MB/s in one piece, {disk['pages_per_s']:.0f} pages/s at random"
    return f"{rates} ({disk['filesystem']})"


def _fitting(facts: dict[str, Any]) -> str:
    size = size_in_words(facts["corpus_bytes"])
    if facts["corpus_fits_memory"]:
        return f"{size} of codes fit into memory, so each page is read from disk once"
    return f"{size} of codes do not fit into memory, so pages are read again and again"


def reading_advice(facts: dict[str, Any], step_s: float, num_windows: int) -> list[Advice]:
    """What helps where the corpus does not fit into memory, next to steps that take `step_s` when nothing is read.

    Args:
        facts: of `check_storage`.
        step_s: of a step of `num_windows` windows whose codes are in memory.
        num_windows: of a step.
    """
    if facts.get("corpus_fits_memory", True):
        return []
    pages = facts["window_bytes"] / PAGE_BYTES + 1

    def reading_s(disk: dict[str, Any]) -> float:
        return float(num_windows * pages / disk["pages_per_s"])

    now_s = step_s + reading_s(facts["corpus_disk"])
    in_blocks_s = step_s + num_windows * facts["window_bytes"] / facts["corpus_disk"]["read_bytes_per_s"]
    moved_s = step_s + reading_s(facts["scratch_disk"])
    because = f"reading windows at random adds {1e3 * (now_s - step_s):.1f} ms to a step of {1e3 * step_s:.1f} ms"
    copy = f"cp -r {facts['corpus']} {facts['scratch']}/"
    wanted = [
        Advice("read the corpus block by block", "--order blocks", now_s / in_blocks_s, because),
        Advice(f"move the corpus to {facts['scratch']}", copy, now_s / moved_s, because),
    ]
    best = max(wanted, key=lambda advice: advice.gain or 0.0)
    return [best] if (best.gain or 0.0) > WORTH else []


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


def written(path: Path, num_bytes: int) -> Path:
    """A file of `num_bytes` that no file system can make smaller, on its disk."""
    piece = np.random.default_rng(0).bytes(1 << 20)
    with path.open("wb") as stream:
        for _ in range(num_bytes >> 20):
            stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())
    return path


def bytes_per_s(path: Path, most_bytes: int) -> float:
    """Bytes a second of reading the file at `path`, or its first `most_bytes`, in one piece and past the cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _forget(descriptor)
        begin_s, num_read = time.perf_counter(), 0
        while num_read < most_bytes and (piece := os.read(descriptor, 4 << 20)):
            num_read += len(piece)
        return num_read / max(1e-9, time.perf_counter() - begin_s)
    finally:
        os.close(descriptor)


def pages_per_s(path: Path, num_pages: int = 400) -> float:
    """Pages a second of reading single ones at random, each once, past the cache."""
    of_file = max(1, path.stat().st_size // PAGE_BYTES)
    places = np.random.default_rng(0).choice(of_file, min(num_pages, of_file), replace=False) * PAGE_BYTES
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _forget(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        begin_s = time.perf_counter()
        for place in places.tolist():
            os.pread(descriptor, PAGE_BYTES, place)
        return len(places) / max(1e-9, time.perf_counter() - begin_s)
    finally:
        os.close(descriptor)


def _forget(descriptor: int) -> None:
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def filesystem(path: Path) -> str:
    """Kind of the file system that holds `path`, as ext4, nfs or lustre."""
    held, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, place, this_kind, *_ = line.split()
        if path.resolve().is_relative_to(place) and len(place) >= len(held):
            held, kind = place, this_kind
    return kind
