"""What the studies share: steps that are `heartlm` commands, done once, timed; and tables."""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure import row
from runner import RESULTS

from heartlm.federated.sweep_launch import mpiexec

__all__ = ["RESULTS", "Estimate", "Steps", "cell", "header", "on_ranks", "row"]

Estimate = dict[str, Any]


class Steps:
    """Runs `heartlm` commands, each once: a step whose result is there is not done again.

    Attributes:
        work: folder of all results.
        seconds: time of each step, measured when it was done.
    """

    def __init__(self, work: Path) -> None:
        self.work = work
        self.seconds: dict[str, float] = {}
        work.mkdir(parents=True, exist_ok=True)

    def run(self, name: str, done: Path, *words: object) -> None:
        command = [str(word) for word in words]
        print("heartlm", shlex.join(command), flush=True)
        note = self.work / f"{name}.seconds"
        if not (done.exists() and note.exists()):
            begin = time.monotonic()
            subprocess.run([sys.executable, "-m", "heartlm", *command], check=True)
            note.write_text(f"{time.monotonic() - begin:.1f}")
        self.seconds[name] = float(note.read_text())


def on_ranks(num_ranks: int, *words: object) -> None:
    """Run this Python on so many ranks."""
    command = [*mpiexec(num_ranks), sys.executable, *map(str, words)]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")


def cell(estimates: Sequence[Estimate | None]) -> str:
    """Mean over seeds (smallest–largest) [interval of the first seed]; – where there is no value."""
    known = [entry for entry in estimates if entry is not None and entry["value"] is not None]
    if not known:
        return "–"
    values = [entry["value"] for entry in known]
    text = f"{statistics.mean(values):.3f}"
    if max(values) > min(values):
        text += f" ({min(values):.3f}–{max(values):.3f})"
    interval = known[0].get("ci")
    return text + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval and None not in interval else "")


def header(*names: str) -> list[str]:
    """The first two lines of a Markdown table."""
    return [row(*names), "|" + "---|" * len(names)]
