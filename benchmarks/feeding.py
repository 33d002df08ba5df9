"""Data loading rates of heartlm's gather and feed, compared with common loaders, and the data wait of a training step.

    python -m benchmarks.feeding --work FOLDER

The data are a memory map of random tokens in the page cache. Every loader gives batches of 65,536 tokens in random
windows, as int64 tensors on the host. Loaders use one core; those with two worker processes may use all. heartlm's feed
(next-token batches: inputs and targets; masked batches: inputs, targets and mask) and nanoGPT's get_batch draw from the
whole corpus; loaders that store windows as items draw from its first 4 M tokens. DataLoader fetches whole batches in
one call. The table lists loaders that are not installed (benchmarks/requirements.txt).
"""

from __future__ import annotations

import itertools
import json
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.feeding_peers import PACKAGES, installed
from benchmarks.feeds import OURS, into_memory, made_up, own, timed_supplies
from benchmarks.peers import Batches, backings, nanogpt, sliding, torch_loaders
from heartlm.corpus.corpus import Corpus
from heartlm.instrumentation.meters import Meters
from heartlm.training.config import PretrainConfig
from heartlm.training.pretrain import pretrain
from lab.measure import Table, pin, rates
from lab.output import write_results
from lab.places import options
from lab.steps import Steps

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


def against_peers(folder: Path, num_tokens: int, rounds: int, turn_s: float) -> list[Table]:
    """All widths, one facet: rates, and how many times faster than each rival our feed is."""
    corpus = into_memory(made_up(folder / "codes.bin", num_tokens, 1))
    table = Table("One facet: M tokens/s for windows of a width", ("rival", *map(str, WIDTHS)))
    ratios = Table(f"{OURS}: times the rate of", ("rival", *map(str, WIDTHS)))
    found = {}
    for width in WIDTHS:
        print(f"width {width}", flush=True)
        found[width] = timed_supplies(rivals_of(corpus, width, folder), rounds, turn_s, BATCH_TOKENS)
    for name in found[WIDTHS[0]]:
        table.add(name, *(rates(found[width][name].seconds, found[width][name].amount / 1e6) for width in WIDTHS))
        ratios.add(name, *(found[width][OURS].times_faster_than(found[width][name]) for width in WIDTHS))
    for module in PACKAGES.keys() - installed().keys():
        table.add(PACKAGES[module][0], *("not installed" for _ in WIDTHS))
    return [table, ratios]


def waiting(folder: Path, steps: int) -> Table:
    """Pretrain the smallest models that make sense, on one core, and read what the run's meters say."""
    corpus = Steps(folder).corpus("beat")
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
    parser = options(__doc__, "work", tokens=1 << 29, rounds=5, turn_s=0.2, steps=60)
    given = parser.parse_args()
    if given.steps <= Meters.WARM_UP_STEPS:
        parser.error(f"--steps: {given.steps} found, more than the {Meters.WARM_UP_STEPS} of the warm-up expected")
    given.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    pin(0)
    tables = [table.close() for table in against_peers(given.work, given.tokens, given.rounds, given.turn_s)]
    tables.append(waiting(given.work, given.steps))
    write_results("feeding", "Feeding", tables, {name: metadata.version(name) for _, name, _ in installed().values()})


if __name__ == "__main__":
    main()
