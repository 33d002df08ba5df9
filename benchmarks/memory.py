"""The memory that `heartlm plan memory` predicts against what CPU ranks allocate in real steps.

    python benchmarks/memory.py

Every rank builds the model, wraps it as training does and takes three steps in a gloo group. Measured is the peak of
its resident memory above what the process held before, after a small training of the same kind had made libraries take
what they keep; the C library gives freed memory back at once. Of the ranks the one with most counts. The plan follows
tensors through the dispatcher and runs no kernel. torch's profiler is no measure here: it does not see what threads of
gloo free, so its sum grows from step to step where resident memory does not.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from bench.measure import Table
from bench.output import write_results

from heartlm.distributed.parallel import HostAllReduce
from heartlm.distributed.ranks import Ranks
from heartlm.models.pretrained import FOLDER
from heartlm.tokenizers.base import load_tokenizer
from heartlm.training.config import PretrainConfig
from heartlm.training.dry_run import Sharing, learner_of, model_to_pretrain, step_memory, take_step

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

    def config(self) -> PretrainConfig:
        return PretrainConfig(depth=self.depth, window=self.window, batch_size=self.windows * self.ranks)


def measured(case: Case) -> int:
    """Peak of this rank in bytes above what the process held before; in the process group, where there are several."""
    train(Case(1, 16, case.windows, case.ranks, case.sharing))  # what libraries keep once they have been used
    gc.collect()
    before = _kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    train(case)
    return 1024 * (_kilobytes("VmHWM") - before)


def train(case: Case) -> None:
    """Three steps."""
    config, tokenizer = case.config(), load_tokenizer(FOLDER / "foundation" / "tokenizer")
    ranks = Ranks.from_environment()
    learner = learner_of(model_to_pretrain(config, tokenizer), config, tokenizer, ranks, case.sharing)
    learner.replicate(lambda: None, HostAllReduce(ranks))  # type: ignore[arg-type,return-value]
    for step in range(3):
        take_step(learner, config, step)


def _kilobytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name))


def rank(case: Case) -> None:
    """Measure as one rank; the first prints the peak of the rank with most."""
    torch.set_num_threads(1)
    found: list[Any] = [None] * case.ranks
    if case.ranks > 1:
        dist.init_process_group("gloo")
        dist.all_gather_object(found, measured(case))
        dist.destroy_process_group()
    else:
        found = [measured(case)]
    if Ranks.from_environment().is_first:
        print(max(found))


def run(case: Case) -> int:
    """Start the ranks of `case`; the largest peak in bytes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    command = [sys.executable, *(launcher if case.ranks > 1 else []), __file__, "--case", json.dumps(asdict(case))]
    environment = os.environ | AT_ONCE
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300, env=environment)
    return int(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 8, 16])
    chosen = parser.parse_args()
    if chosen.case is not None:
        rank(Case(**json.loads(chosen.case)))
        return
    tokenizer = load_tokenizer(FOLDER / "foundation" / "tokenizer")
    kinds = "parameters", "gradients", "optimizer", "activations", "rest"
    table = Table(
        "peak memory of a rank, MB: predicted and measured",
        ("depth", "window", "windows a rank", "ranks", "way", "predicted", "measured", "error", *kinds),
    )
    ways: tuple[Sharing, ...] = ("ddp", "zero1", "fsdp")
    grid = [Case(4, 512, 4, 1, "ddp"), Case(4, 128, 4, 4, "ddp"), Case(4, 128, 4, 4, "fsdp")]
    for depth in chosen.depths:
        grid += [Case(depth, 128, 4, 1, "ddp"), *(Case(depth, 128, 4, 2, way) for way in ways)]
    for case in grid:
        plan = step_memory(case.config(), tokenizer, case.ranks, case.sharing)
        peak = run(case)
        error = f"{100 * (plan.peak / peak - 1):+.1f} %"
        place = case.depth, case.window, case.windows
        way = case.sharing if case.ranks > 1 else "alone"
        megabytes = [getattr(plan, kind) / 1e6 for kind in kinds]
        table.add(*place, case.ranks, way, plan.peak / 1e6, peak / 1e6, error, *megabytes)
    table.close()
    write_results("memory", "Memory of a rank in a training step", [table], {"steps": 3, "threads": 1})


if __name__ == "__main__":
    main()
