"""Data loading rates of heartlm's gather and feed, compared with common loaders, and the data wait of a training step.

    python benchmarks/feeding.py --work FOLDER

The data are a memory map of random tokens in the page cache. Every loader gives batches of 65,536 tokens in random
windows, as int64 tensors on the host. Loaders use one core; those with two worker processes may use all. heartlm's feed
(next-token batches: inputs and targets; masked batches: inputs, targets and mask) and nanoGPT's get_batch draw from the
whole corpus; loaders that store windows as items draw from its first 4 M tokens. DataLoader fetches whole batches in
one call. The table lists loaders that are not installed (benchmarks/requirements.txt).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import shutil
import statistics
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.feeds import OURS, into_memory, made_up, order_of, own, timed_supplies
from bench.measure import Spread, Table, Timed, pin, rates, seconds
from bench.output import write_results
from bench.peers import Batches, backings, nanogpt, sliding, torch_loaders
from feeding_peers import PACKAGES, installed
from numpy.typing import NDArray
from steps import Steps

from heartlm.corpus.corpus import Corpus
from heartlm.training.batches import CausalBatches
from heartlm.training.config import PretrainConfig
from heartlm.training.feed import Feed
from heartlm.training.pretrain import pretrain

WIDTHS = (128, 256, 512, 1024)
BATCH_TOKENS = 1 << 16
ITEM_TOKENS = 1 << 22


def rivals_of(corpus: Corpus, width: int, folder: Path) -> dict[str, Batches]:
    path, batch_size = folder / "codes.bin", BATCH_TOKENS // width
    items: NDArray[np.uint16] = np.array(corpus.codes[:ITEM_TOKENS, 0]).reshape(-1, width)
    rivals = own(corpus, width, batch_size) | {"nanoGPT get_batch": nanogpt(path, width, batch_size)}
    rivals["NumPy sliding windows"] = sliding(path, width, batch_size)
    rivals |= torch_loaders(backings(path, items[..., None], folder / "items"), batch_size)
    for module, (_, _, make) in installed().items():
        shutil.rmtree(folder / module, ignore_errors=True)
        rivals |= make(items, folder / module, batch_size)
    return rivals


def timed(rivals: dict[str, Batches], rounds: int, turn_s: float) -> dict[str, Timed]:
    """What every rival took: each takes as many batches a turn as it makes in about `turn_s`."""
    return timed_supplies(rivals, rounds, turn_s, BATCH_TOKENS)


def millions(found: Timed) -> Spread:
    """M tokens a second over the rounds."""
    return rates(found.seconds, found.amount / 1e6)


def against_peers(folder: Path, num_tokens: int, rounds: int, turn_s: float) -> list[Table]:
    """All widths, one facet: rates, and how many times faster than each rival our feed is."""
    corpus = into_memory(made_up(folder / "codes.bin", num_tokens, 1))
    table = Table("One facet: M tokens/s for windows of a width", ("rival", *map(str, WIDTHS)))
    ratios = Table(f"{OURS}: times the rate of", ("rival", *map(str, WIDTHS)))
    found = {}
    for width in WIDTHS:
        print(f"width {width}", flush=True)
        found[width] = timed(rivals_of(corpus, width, folder), rounds, turn_s)
    for name in found[WIDTHS[0]]:
        table.add(name, *(millions(found[width][name]) for width in WIDTHS))
        ratios.add(name, *(found[width][OURS].times_faster_than(found[width][name]) for width in WIDTHS))
    for module in PACKAGES.keys() - installed().keys():
        table.add(PACKAGES[module][0], *("not installed" for _ in WIDTHS))
    return [table, ratios]


def ten_facets(folder: Path, num_tokens: int, rounds: int, turn_s: float) -> Table:
    corpus = into_memory(made_up(folder / "codes10.bin", num_tokens // 10, 10))
    table = Table("Ten facets: M tokens/s for windows of a width", ("rival", *map(str, WIDTHS)))
    found = [timed(own(corpus, width, BATCH_TOKENS // width), rounds, turn_s) for width in WIDTHS]
    for name in found[0]:
        table.add(name, *(millions(one[name]) for one in found))
    return table


def drop_from_memory(path: Path) -> None:
    """Ask the system to forget what it keeps of the file, which it does once nothing maps it."""
    gc.collect()
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cold(folder: Path, num_tokens: int) -> Table:
    """From disk: the file is forgotten before each turn. Bytes are counted: a fast disk hides what pieces cost."""
    path = folder / "codes.bin"
    made_up(path, num_tokens, 1)
    table = Table("From disk, width 512", ("way", "M tokens/s", "bytes read for each that was fed"))

    def plain() -> None:
        with path.open("rb", buffering=0) as file:
            while file.read(8 << 20):
                pass

    def feed(steps: int) -> None:
        corpus = made_up(path, num_tokens, 1)
        drawn = order_of(corpus, 512, BATCH_TOKENS // 512)
        with Feed(drawn, CausalBatches(corpus), range(steps), prefetch=2) as batches:
            for _ in batches:
                pass

    whole = num_tokens // BATCH_TOKENS
    ways: dict[str, tuple[Callable[[], None], int]] = {
        "the file read from its beginning to its end": (plain, whole),
        "order random, a sixteenth of an epoch": (lambda: feed(whole // 16), whole // 16),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    read: dict[str, list[int]] = {name: [] for name in ways}
    for _, (name, (work, _)) in itertools.product(range(3), ways.items()):
        drop_from_memory(path)
        before = bytes_from_disk()
        times[name].append(seconds(work))
        read[name].append(bytes_from_disk() - before)
    for name, (_, steps) in ways.items():
        fed_tokens = steps * BATCH_TOKENS
        share = statistics.median(read[name]) / (2 * fed_tokens)
        table.add(name, rates(times[name], fed_tokens / 1e6), f"{share:.2f}")
    return table


def bytes_from_disk() -> int:
    """Bytes that this process had the disk read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


def waiting(folder: Path, steps: int) -> Table:
    """Pretrain the smallest models that make sense, on one core, and read what the run's meters say."""
    do, data, corpus = Steps(folder), folder / "data", folder / "corpus"
    do.run("simulate", data, "data", "simulate", data, "--patients", 20, "--minutes", 10, "--seed", 1)
    do.run("tokenize", corpus, "tokenize", data, "--tokenizer", "beat", "--out", corpus)
    table = Table(
        "What a step of pretraining waits for its data: one core, one thread, 2048 tokens a step",
        ("model", "objective", "step", "data-wait share"),
    )
    for depth, objective in itertools.product((2, 4), ("masked", "causal")):
        run = folder / f"run-{depth}-{objective}"
        shutil.rmtree(run, ignore_errors=True)
        how: dict[str, Any] = {"depth": depth, "objective": objective, "steps": steps, "threads": 1, "log_every": steps}
        pretrain(PretrainConfig(corpus=corpus, out=run, device="cpu", checkpoint_every=steps, **how))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        last = [line for line in lines if line["split"] == "train"][-1]
        step_ms = 2048 / last["tokens_per_s"] * 1000
        table.add(f"depth {depth}", objective, f"{step_ms:.0f} ms", f"{100 * last['data_wait_share']:.2f} %")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the corpus and the rivals' files")
    parser.add_argument("--tokens", type=int, default=1 << 29, help="of the made-up corpus; 2 bytes each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn-s", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    pin(0)
    makers: list[Callable[[], list[Table]]] = [
        lambda: against_peers(given.work, given.tokens, given.rounds, given.turn_s),
        lambda: [ten_facets(given.work, given.tokens, given.rounds, given.turn_s)],
        lambda: [cold(given.work, given.tokens)],
        lambda: [waiting(given.work, given.steps)],
    ]
    tables = [table for make in makers for table in closed(make())]
    write_results("feeding", "Feeding", tables, {name: metadata.version(name) for _, name, _ in installed().values()})


def closed(tables: list[Table]) -> list[Table]:
    for table in tables:
        table.close()
    return tables


if __name__ == "__main__":
    main()
