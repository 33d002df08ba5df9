"""Helpers of the studies: `heartlm` commands that run once and are timed, and ranks."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray


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

    def run(self, name: str, done: Path, *words: object, module: str = "heartlm") -> None:
        command = ["-m", module, *map(str, words)]
        print("python", shlex.join(command), flush=True)
        note = self.work / f"{name}.seconds"
        if not (done.exists() and note.exists()):
            begin = time.monotonic()
            subprocess.run([sys.executable, *command], check=True)
            note.write_text(f"{time.monotonic() - begin:.1f}")
        self.seconds[name] = float(note.read_text())

    def finetune(self, name: str, folder: Path, seeds: int, *words: object) -> None:
        """For every seed, fine-tune a foundation model (`tuned-SEED`) and random initialisation (`scratch-SEED`)."""
        for seed in range(seeds):
            for kind, more in {"tuned": (), "scratch": ("--from-scratch",)}.items():
                run = folder / f"{kind}-{seed}"
                self.run(f"{kind}-{name}-{seed}", run / "models/last", *words, "--seed", seed, *more, "--out", run)

    def corpus(self, tokenizer: str) -> Path:
        """The corpus of 20 simulated patients of ten minutes each."""
        data, corpus = self.work / "data", self.work / "corpus"
        self.run("simulate", data, "data", "simulate", data, "--patients", 20, "--minutes", 10, "--seed", 1)
        self.run("tokenize", corpus, "tokenize", data, "--tokenizer", tokenizer, "--out", corpus)
        return corpus

    def study(self, windows: list[int], **settings: object) -> Path:
        """A scaling study of one rank and two over that corpus; one that was interrupted continues."""
        study, path = self.work / "study", self.work / "study.yaml"
        databases = {"simulated": str(self.corpus("beat"))}
        path.write_text(yaml.safe_dump({"databases": databases, "ranks": [1, 2], "windows": windows, **settings}))
        self.run("study", study / "no result of its own", "scale", "run", path, "--out", study)
        return study


def kept(path: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, NDArray[Any]]:
    """The arrays that `measure` gives, measured once and kept in `path`."""
    if not path.exists():
        np.savez(path, **measure())
        print(path, flush=True)
    return dict(np.load(path))


def mpiexec(num_ranks: int) -> list[str]:
    """The command that starts MPI ranks, with the mpiexec of this environment or of the system.

    Raises FileNotFoundError if there is none.
    """
    own = Path(sys.executable).with_name("mpiexec")
    program = str(own) if own.exists() else shutil.which("mpiexec")
    if program is None:
        raise FileNotFoundError("mpiexec: not found: pip install 'heartlm[mpi]', or load the MPI of the machine")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    flags = []
    if "Open MPI" in version or "prte" in version.lower():  # refuses more ranks than cores, and root, by default
        flags = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    return [program, *flags, "-n", str(num_ranks)]


def on_ranks(num_ranks: int, *words: object) -> None:
    """Run this Python on the given number of ranks."""
    command = [*mpiexec(num_ranks), sys.executable, *map(str, words)]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
