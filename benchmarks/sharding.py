"""DDP, ZeRO-1 and FSDP2: predicted and measured memory per rank, and time per step.

    python -m benchmarks.sharding memory     # results/sharding_memory.md
    python -m benchmarks.sharding times      # results/sharding.md
    python -m benchmarks.sharding plan       # results/campaign_plan.md: larger models, PREDICTED, not run on a GPU

Memory is predicted by `heartlm plan memory`. To measure it, every rank builds the model, wraps it as in training and
takes three steps in a gloo group. The measured value is the peak of resident memory above the level before. An earlier
step of the same training makes libraries allocate what they keep: oneDNN keeps about 20 MB after a bf16 multiplication.
The C library returns freed memory at once. The rank with the largest peak is reported. The plan follows tensors through
the dispatcher and runs no kernel. torch's profiler is not suitable: it does not see memory freed by gloo's threads, so
its sum grows from step to step while resident memory does not.

Times are from further runs with the default C library, methods in turns: the median over the steps of a rank, and the
slowest rank. DDP and ZeRO-1 reduce gradients through shared memory, as in training; FSDP2 uses gloo. A rank has one
thread. If there are more ranks than cores, they share the cores, which costs every method the same.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from heartlm.distributed.ranks import Ranks
from heartlm.models.pretrained import FOLDER
from heartlm.tokenizers.base import load_tokenizer
from heartlm.training.config import PretrainConfig
from heartlm.training.dry_run import Sharing, learner_of, step_memory, take_step
from heartlm.training.pretrain import model_to_pretrain
from lab.measure import Table, kilobytes, per
from lab.output import write_results
from lab.places import options

WAYS: tuple[Sharing, ...] = ("ddp", "zero1", "fsdp")
PRECISIONS: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
SETTINGS = "precision", "activation_checkpointing", "dropout"
"""What changes the memory of activations; measured in combinations."""

PLANNED: list[tuple[Sharing, int]] = [("ddp", 4), ("zero1", 4), ("zero1", 16), ("fsdp", 4), ("fsdp", 16), ("fsdp", 64)]
"""Ways and numbers of ranks of larger models."""

TIMED_STEPS = 7
"""Of which the first two do not count."""

AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
"""Lets the C library give memory back to the system as soon as it is freed, so that the peak is what was needed."""


@dataclass(frozen=True)
class Case:
    """A training: `windows` are those of each rank."""

    depth: int
    window: int
    windows: int
    ranks: int
    sharing: Sharing
    precision: Literal["fp32", "bf16"] = "fp32"
    activation_checkpointing: bool = False
    dropout: float = 0.0

    def config(self) -> PretrainConfig:
        settings = {name: getattr(self, name) for name in ("depth", "window", *SETTINGS)}
        return PretrainConfig(batch_size=self.windows * self.ranks, **settings).resolved()

    @property
    def settings(self) -> str:
        """In words."""
        words = [self.precision] + ["checkpointing"] * self.activation_checkpointing
        return ", ".join(words + [f"dropout {self.dropout}"] * (self.dropout > 0))


def measured(case: Case) -> int:
    """Peak of this rank in bytes above what the process held before; in the process group, where there are several."""
    train(case, steps=1)  # what libraries keep once they have seen these shapes
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    train(case)
    return 1024 * (kilobytes("VmHWM") - before)


def train(case: Case, steps: int = 3) -> list[float]:
    """Take steps, and return the seconds of each."""
    config, tokenizer = case.config(), load_tokenizer(FOLDER / "foundation" / "tokenizer")
    ranks = Ranks.from_environment()
    learner = learner_of(model_to_pretrain(config, tokenizer), config, tokenizer, ranks, case.sharing)
    learner.replicate()
    taken_s = []
    for step in range(steps):
        begin_s = time.perf_counter()
        take_step(learner, config, step)
        taken_s.append(time.perf_counter() - begin_s)
    return taken_s


def rank(case: Case, timed: bool) -> None:
    """Measure as one rank; the first prints the peak in bytes, or the seconds of a step, of the rank with most."""
    torch.set_num_threads(1)
    found: list[Any] = [None] * case.ranks
    if case.ranks > 1:
        dist.init_process_group("gloo")
    own = statistics.median(train(case, TIMED_STEPS)[2:]) if timed else measured(case)
    if case.ranks > 1:
        dist.all_gather_object(found, own)
        dist.destroy_process_group()
    else:
        found = [own]
    if Ranks.from_environment().is_first:
        print(max(found), flush=True)
    os._exit(0)  # with FSDP2 torch can abort while the process ends


def run(case: Case, timed: bool = False) -> float:
    """Start the ranks of `case`; the largest peak in bytes, or the seconds of a step."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"] * (case.ranks > 1)
    command = [sys.executable, *launcher, "-m", "benchmarks.sharding", "--case", json.dumps(asdict(case))]
    command += ["--timed"] if timed else []
    environment = os.environ | ({} if timed else AT_ONCE)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=900, env=environment)
    return float(done.stdout.strip().splitlines()[-1])


def times(depths: Sequence[int], rounds: int) -> Table:
    """Seconds of a step of each way, in turns, and times as long as DDP's."""
    table = Table(
        "seconds of a step", ("depth", "ranks", *(f"{way}, s" for way in WAYS), *(f"{way} / ddp" for way in WAYS[1:]))
    )
    for depth, ranks in itertools.product(depths, (2, 4)):
        taken: dict[Sharing, list[float]] = {way: [] for way in WAYS}
        for _, way in itertools.product(range(rounds), WAYS):
            taken[way].append(run(Case(depth, 128, 4, ranks, way), timed=True))
        ratios = [statistics.median(np.divide(taken[way], taken["ddp"]).tolist()) for way in WAYS[1:]]
        table.add(depth, ranks, *(per(taken[way]) for way in WAYS), *ratios)
    return table.close()


def grid(depths: Sequence[int]) -> list[Case]:
    """What memory is measured of: ways and numbers of ranks at each depth, and settings that change activations."""
    cases = [Case(4, 512, 4, 1, "ddp")]
    for depth in depths:
        cases += [Case(depth, 128, 4, 1, "ddp"), *(Case(depth, 128, 4, ranks, way) for ranks in (4,) for way in WAYS)]
    for precision, checkpointing, dropout in list(itertools.product(PRECISIONS, (False, True), (0.0, 0.1)))[1:]:
        cases.append(Case(4, 512, 4, 1, "ddp", precision, checkpointing, dropout))
    for way in ("ddp", "fsdp"):
        cases += [Case(8, 128, 4, 2, way, "bf16"), Case(8, 128, 4, 2, way, "bf16", True, 0.1)]
    return cases


def memory(depths: Sequence[int]) -> Table:
    """Peak memory of a rank, predicted and measured."""
    tokenizer = load_tokenizer(FOLDER / "foundation" / "tokenizer")
    kinds = "parameters", "gradients", "optimizer", "activations", "rest"
    table = Table(
        "peak memory of a rank, MB: predicted and measured",
        ("depth", "window", "ranks", "way", "settings", "predicted", "measured", "error", *kinds),
    )
    for case in grid(depths):
        plan = step_memory(case.config(), tokenizer, case.ranks, case.sharing)
        peak = run(case)
        error = f"{100 * (plan.peak / peak - 1):+.1f} %"
        way = case.sharing if case.ranks > 1 else "alone"
        megabytes = [getattr(plan, kind) / 1e6 for kind in kinds]
        sizes = case.depth, case.window, case.ranks
        table.add(*sizes, way, case.settings, plan.peak / 1e6, peak / 1e6, error, *megabytes)
    return table.close()


def larger_models() -> Table:
    """Memory of a rank by depth, ranks and way: what `heartlm plan memory` counts on CPU kernels."""
    tokenizer = load_tokenizer(FOLDER / "foundation" / "tokenizer")
    columns = ("depth", "parameters, M", *(f"{way}, {ranks} ranks" for way, ranks in PLANNED))
    table = Table("Prediction: GB of a rank, 8 windows of 512 tokens each", columns)
    for depth in (8, 16, 24, 32):
        plans = [
            step_memory(PretrainConfig(depth=depth, window=512, batch_size=8 * ranks), tokenizer, ranks, way)
            for way, ranks in PLANNED
        ]
        table.add(depth, plans[0].num_parameters / 1e6, *(plan.peak / 1e9 for plan in plans))
    return table


def main() -> None:
    parser = options(__doc__, rounds=3)
    parser.add_argument("part", choices=("memory", "times", "plan"), nargs="?", default="memory")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--timed", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.case is not None:
        rank(Case(**json.loads(chosen.case)), chosen.timed)
    elif chosen.part == "memory":
        write_results("sharding_memory", "Memory of a rank of a shared training", [memory(chosen.depths)])
    elif chosen.part == "plan":
        write_results("campaign_plan", "Memory of larger models, predicted", [larger_models()])
    else:
        write_results("sharding", "Sharing a training among ranks", [times(chosen.depths, chosen.rounds)])


if __name__ == "__main__":
    main()
