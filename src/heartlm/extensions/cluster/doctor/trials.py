"""Short trainings with one setting changed at a time, to measure the gain of each setting.

    unchanged ─► threads, ranks, precision, compiled blocks ─► unchanged again

Each trial is the real `heartlm pretrain` on a small corpus, in its own process. The first and the last trial are
equal; their difference is the noise of this machine, and a gain must exceed it. All trials share one deadline. The
time of the last one is reserved; a trial that does not fit before it is left out.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.doctor.section import WORTH, Advice, Section
from heartlm.extensions.cluster.torchrun import children
from heartlm.runs.run_folder import RunFolder
from heartlm.system.parent import end_with_parent
from heartlm.system.progress import say

STEPS = 14
LIMIT_S = 57.0
"""Time for all checks with the trials, so that `heartlm doctor --trials` ends within a minute."""

LEAST_S = 5.0
"""Shortest time for which a trial is started: importing torch alone takes seconds."""

WINDOWS = {"cpu": 16, "gpu": 256}
"""Windows of 128 tokens in a global batch; small on purpose, as for small models."""


@dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
        what: description of the change.
        how: options or variable for the user.
        kind: group of mutually exclusive trials; only the best of a group is advised.
        words: options of `heartlm pretrain`.
        num_ranks: number of ranks; above 1 under torchrun.
    """

    what: str
    how: str
    kind: str
    words: tuple[str, ...] = ()
    num_ranks: int = 1


UNCHANGED = Trial("nothing changed", "", "none")


def check_trials(known: Mapping[str, Any], now_s: Callable[[], float] = time.monotonic) -> Section:
    """Train unchanged and with each setting changed; end within `LIMIT_S` of the first check, by the clock `now_s`.

    Raises:
        HeartlmError: the first training, without changes, failed or did not end in time.
    """
    end_s = known.get("begin_s", now_s()) + LIMIT_S
    if find_spec("torch") is None:
        raise ModuleNotFoundError(name="torch")
    num_gpus = int(known.get("torch_sees_gpus", 0))
    windows = WINDOWS["gpu" if num_gpus else "cpu"]
    with tempfile.TemporaryDirectory(prefix="heartlm-doctor-") as name:
        scratch = Path(name)
        say("doctor: simulate a small corpus")
        small_corpus(scratch)

        def attempt(trial: Trial, reserved_s: float = 0.0) -> dict[str, Any]:
            """Return what `trained` returns, or the reason why there is no result."""
            left_s = end_s - now_s() - reserved_s
            if left_s < LEAST_S:
                return {"left_out": f"no time is left of the {LIMIT_S:.0f} s"}
            say(f"doctor: trial, at most {left_s:.0f} s: {trial.what}")
            try:
                return trained(trial, scratch, windows, left_s)
            except subprocess.TimeoutExpired:
                return {"left_out": f"not done within the {left_s:.0f} s that were left"}
            except HeartlmError as error:
                return {"error": str(error)}

        begin_s = now_s()
        first = attempt(UNCHANGED)
        if "step_s" not in first:
            reason = first.get("error") or first["left_out"]
            raise HeartlmError(f"the training without changes gave no step time: {reason}")
        reserved_s = 1.2 * (now_s() - begin_s)  # a margin for noise
        if num_gpus:  # the first compiled; the last finds the kernels in a cache
            reserved_s /= 2
        outcomes = [
            {"what": trial.what, "how": trial.how, "kind": trial.kind, **attempt(trial, reserved_s)}
            for trial in trials(known, num_gpus, first["num_threads"])
        ]
        last = attempt(UNCHANGED)
    if "step_s" not in last:
        outcomes.append({"what": "nothing changed, again", "how": "", "kind": "none", **last})
        return summary(first["step_s"], None, first["num_threads"], outcomes)
    step_s = min(first["step_s"], last["step_s"])
    return summary(step_s, abs(first["step_s"] - last["step_s"]) / step_s, first["num_threads"], outcomes)


def trials(known: Mapping[str, Any], num_gpus: int, num_threads: int) -> Iterator[Trial]:
    """Yield the trials for this machine; the base is one process with `num_threads` threads."""
    if num_gpus:  # first: it is the shortest, and on one GPU the only one
        yield Trial("do not compile the blocks of the model", "--no-compile", "compile", ("--no-compile",))
    cores = int(known.get("usable_cores", 1))
    most_ranks = num_gpus or max(1, min(8, cores))
    ranks = 1 << (most_ranks.bit_length() - 1)  # a power of two, which divides the batch
    if ranks > 1:
        where = "a GPU" if num_gpus else "cores"
        command = f"torchrun --standalone --nproc-per-node {ranks} -m heartlm pretrain …"
        yield Trial(f"train with {ranks} ranks, each on {where} of its own", command, "cores", num_ranks=ranks)
    if not num_gpus:
        for threads in sorted({1, cores} - {num_threads}):
            words = ("--threads", str(threads))
            yield Trial(f"use {threads} thread(s)", f"export OMP_NUM_THREADS={threads}", "cores", words)
        if {"amx_bf16", "avx512_bf16", "bf16"} & set(known.get("vector_units", [])):
            yield Trial("compute matrix products in bf16", "--precision bf16", "precision", ("--precision", "bf16"))
        if any(shutil.which(name) for name in ("c++", "g++", "clang++")):
            yield Trial("compile the blocks of the model", "--compile", "compile", ("--compile",))


def summary(step_s: float, noise: float | None, num_threads: int, outcomes: list[dict[str, Any]]) -> Section:
    """Return lines and advice from the step times.

    `noise` is the relative difference of the two equal trials. Without it (None) no gain is known to exceed it, and
    there is no advice.
    """
    spread = "its noise was not measured" if noise is None else f"give or take {100 * noise:.0f} %"
    lines = [f"a step as it is, with {num_threads} thread(s): {1e3 * step_s:.0f} ms, {spread}"]
    best: dict[str, Advice] = {}
    for outcome in outcomes:
        if "step_s" not in outcome:
            reason = f"failed: {outcome['error']}" if "error" in outcome else f"left out: {outcome['left_out']}"
            lines.append(f"{outcome['what']}: {reason}")
            continue
        outcome["gain"] = gain = step_s / outcome["step_s"]
        lines.append(f"{outcome['what']}: {1e3 * outcome['step_s']:.0f} ms, {gain:.2f}x")
        because = f"a step took {1e3 * outcome['step_s']:.0f} ms instead of {1e3 * step_s:.0f} ms"
        other = best.get(outcome["kind"])
        if noise is not None and gain > max(WORTH, 1 + noise) and (other is None or gain > (other.gain or 0)):
            best[outcome["kind"]] = Advice(outcome["what"], outcome["how"], gain, because)
    facts = {"step_s": step_s, "noise": noise, "num_threads": num_threads, "trials": outcomes}
    return Section(lines, facts, list(best.values()))


def small_corpus(scratch: Path) -> Path:
    """Simulate a database and tokenize it with one token per sample; it takes a few seconds."""
    from heartlm.corpus.build import build_corpus
    from heartlm.simulate.config import SimulationConfig
    from heartlm.simulate.write import simulate_database
    from heartlm.tokenizers.sample import SampleTokenizer

    folder = scratch / "corpus"
    if not folder.exists():
        simulate_database(scratch / "database", SimulationConfig(patients=6, minutes=4.0, seed=1, name="doctor"))
        build_corpus([scratch / "database"], SampleTokenizer(), folder)
    return folder


def trained(trial: Trial, scratch: Path, windows: int, timeout_s: float) -> dict[str, Any]:
    """Train on a small corpus; return the median step time after the warm-up, and the threads per rank.

    Raises:
        HeartlmError: the training failed.
        subprocess.TimeoutExpired: it did not end within `timeout_s`; its processes are killed.
    """
    out, never = scratch / "trial", 10**6
    settings = {"corpus": small_corpus(scratch), "batch-size": windows, "steps": STEPS, "log-every": STEPS}
    settings |= {"validate-every": never, "checkpoint-every": never, "out": out}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(trial.num_ranks)]
    command = [sys.executable, *(launcher if trial.num_ranks > 1 else []), "-m", "heartlm", "pretrain"]
    command += [*(f"--{name}={value}" for name, value in settings.items()), *trial.words]
    try:
        status, errors = run_within(command, timeout_s)
        if status != 0:
            lines = errors.strip().splitlines() or [f"it ended with status {status} and no output"]
            telling = (line for line in lines if line.startswith("heartlm ") or "Error: " in line)
            raise HeartlmError(next(telling, lines[-1]))  # torchrun prints many more lines
        run = RunFolder(out)
        train = next(line for line in reversed(run.metrics) if line["split"] == "train")
        return {"step_s": float(train["step_median_s"]), "num_threads": int(run.environment["num_threads"])}
    finally:
        shutil.rmtree(out, ignore_errors=True)


def run_within(command: list[str], timeout_s: float) -> tuple[int, str]:
    """Run `command`; return its exit status and standard error. Its processes end with this process at the latest.

    Raises:
        subprocess.TimeoutExpired: it did not end within `timeout_s`; it was killed with all its descendants.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=functools.partial(end_with_parent, os.getpid()),
    ) as process:
        try:
            errors = process.communicate(timeout=timeout_s)[1]
        finally:
            if process.poll() is None:
                kill_tree(process.pid)
    return process.returncode, errors


def kill_tree(process: int) -> None:
    """Kill a process and its descendants. The ranks of torchrun are in sessions of their own: no group has them all."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGSTOP)  # so that it starts no more children
        for child in children(process):
            kill_tree(child)
        os.kill(process, signal.SIGKILL)
