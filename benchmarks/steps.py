"""Helpers of the studies: `heartlm` commands that run once and are timed, and ranks."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from heartlm.federated.sweep import mpiexec


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
    """Run this Python on the given number of ranks."""
    command = [*mpiexec(num_ranks), sys.executable, *map(str, words)]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
