"""Speedup of two single-thread CPU ranks over one, and its upper bound: two concurrent independent processes.

    python benchmarks/ranks.py --work FOLDER

Every round trains on one core, then with two ranks under torchrun (gloo, each pinned to a separate core), then with two
concurrent processes without communication. The work of a rank is the same in all three. Because two cores share memory
and power, the ideal speedup is that of the two independent processes. Tokens per second are those reported by the runs,
without warm-up steps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.measure import Spread, Table, cores
from bench.output import write_results
from steps import Steps

ALONE, RANKS = (sys.executable, "-m", "heartlm"), ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 2048], help="of a rank and step")
    for name, value in (("window", 128), ("depth", 4), ("steps", 60), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


class Runs:
    """Starts trainings and reads what they report."""

    def __init__(self, chosen: argparse.Namespace, corpus: Path, tokens: int) -> None:
        self.chosen, self.corpus, self.windows = chosen, corpus, tokens // chosen.window
        self.cores = cores()[:2]

    def start(self, name: str, core: int | None) -> subprocess.Popen[bytes]:
        """Start a run on `core`, or one of two ranks on both cores."""
        out = self.chosen.work / name
        shutil.rmtree(out, ignore_errors=True)
        ranks = 2 if core is None else 1
        command = (sys.executable, *RANKS, "2", "-m", "heartlm") if core is None else ALONE
        settings = {
            "corpus": self.corpus,
            "out": out,
            "window": self.chosen.window,
            "depth": self.chosen.depth,
            "batch-size": self.windows * ranks,
            "steps": self.chosen.steps,
            "log-every": self.chosen.steps,
            "validate-every": 10**6,
            "checkpoint-every": 10**6,
        }
        words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
        allowed = set(self.cores) if core is None else {self.cores[core]}
        return subprocess.Popen(
            [*command, "pretrain", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        )

    def rates(self, *started: tuple[str, int | None]) -> list[float]:
        """Tokens a second of runs that continue at the same time."""
        processes = [self.start(name, core) for name, core in started]
        for (name, _), process in zip(started, processes, strict=True):
            if process.wait() != 0:
                raise SystemExit(f"the run {name} failed: start it by hand to see why")
        return [self.reported(name) for name, _ in started]

    def reported(self, name: str) -> float:
        lines = [json.loads(line) for line in (self.chosen.work / name / "metrics.jsonl").read_text().splitlines()]
        return float([line for line in lines if line["split"] == "train"][-1]["tokens_per_s"])


def main() -> None:
    chosen = options()
    steps, data, corpus = Steps(chosen.work), chosen.work / "data", chosen.work / "corpus"
    steps.run("simulate", data, "data", "simulate", data, "--patients", 20, "--minutes", 10, "--seed", 1)
    steps.run("tokenize", corpus, "tokenize", data, "--tokenizer", "sample", "--out", corpus)
    columns = ("tokens a rank and step", "one rank", "two ranks", "two alone", "speedup", "ceiling", "of the ceiling")
    table = Table("two pinned CPU ranks, tokens/s (weak scaling)", (*columns, "least of the rounds", "most"))
    for tokens in chosen.tokens:
        runs = Runs(chosen, corpus, tokens)
        one, two, both = list[float](), list[float](), list[float]()
        for _ in range(chosen.rounds):
            one += runs.rates(("one", 0))
            two += runs.rates(("two", None))
            both.append(sum(runs.rates(("left", 0), ("right", 1))))
        gained, most, share = (
            [above / below for above, below in zip(*pair, strict=True)]
            for pair in ((two, one), (both, one), (two, both))
        )
        spreads = [Spread.of(values) for values in (one, two, both, gained, most, share)]
        table.add(tokens, *spreads, min(share), max(share))
    table.close()
    write_results("ranks", "Two CPU ranks against one", [table], {"depth": chosen.depth, "window": chosen.window})


if __name__ == "__main__":
    main()
