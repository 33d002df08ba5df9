"""Short trainings with one setting changed at a time, to measure the gain of each setting.

    unchanged ─► threads, ranks, precision, compiled blocks ─► unchanged again

Each trial is the real `heartlm pretrain` on a small corpus, in its own process. The first and the last trial are
equal; their difference is the noise of this machine, and a gain must exceed it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heartlm.cluster.doctor.section import WORTH, Advice, Section
from heartlm.errors import HeartlmError
from heartlm.runs.run_folder import RunFolder

STEPS = 14
LIMIT_S = 180
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


AS_IT_IS = Trial("nothing changed", "", "none")


def check_trials(known: Mapping[str, Any]) -> Section:
    """Train unchanged and with each setting changed."""
    if find_spec("torch") is None:
        raise ModuleNotFoundError(name="torch")
    num_gpus = int(known.get("torch_sees_gpus", 0))
    windows = WINDOWS["gpu" if num_gpus else "cpu"]
    outcomes = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="heartlm-doctor-") as name:
        scratch = Path(name)
        first = trained(AS_IT_IS, scratch, windows)
        for trial in trials(known, num_gpus, first["num_threads"]):
            outcomes.append({"what": trial.what, "how": trial.how, "kind": trial.kind})
            try:
                outcomes[-1]["step_s"] = trained(trial, scratch, windows)["step_s"]
            except HeartlmError as error:
                outcomes[-1]["error"] = str(error)
        last = trained(AS_IT_IS, scratch, windows)
    step_s = min(first["step_s"], last["step_s"])
    return summary(step_s, abs(first["step_s"] - last["step_s"]) / step_s, first["num_threads"], outcomes)


def trials(known: Mapping[str, Any], num_gpus: int, num_threads: int) -> Iterator[Trial]:
    """Yield the trials for this machine; the base is one process with `num_threads` threads."""
    cores = int(known.get("usable_cores", 1))
    places = num_gpus or max(1, min(8, cores))
    ranks = 1 << (places.bit_length() - 1)  # a power of two, which divides the batch
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
    if num_gpus or any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        yield Trial("compile the blocks of the model", "--compile", "compile", ("--compile",))


def summary(step_s: float, noise: float, num_threads: int, outcomes: list[dict[str, Any]]) -> Section:
    """Return lines and advice from the step times; `noise` is the relative difference of the two equal trials."""
    base = f"a step as it is, with {num_threads} thread(s): {1e3 * step_s:.0f} ms, give or take {100 * noise:.0f} %"
    lines = [base]
    best: dict[str, Advice] = {}
    for outcome in outcomes:
        if "error" in outcome:
            lines.append(f"{outcome['what']}: failed: {outcome['error']}")
            continue
        outcome["gain"] = gain = step_s / outcome["step_s"]
        lines.append(f"{outcome['what']}: {1e3 * outcome['step_s']:.0f} ms, {gain:.2f}x")
        because = f"a step took {1e3 * outcome['step_s']:.0f} ms instead of {1e3 * step_s:.0f} ms"
        other = best.get(outcome["kind"])
        if gain > max(WORTH, 1 + noise) and (other is None or gain > (other.gain or 0)):
            best[outcome["kind"]] = Advice(outcome["what"], outcome["how"], gain, because)
    facts = {"step_s": step_s, "noise": noise, "num_threads": num_threads, "trials": outcomes}
    return Section(lines, facts, list(best.values()))


def small_corpus(scratch: Path) -> Path:
    """Simulate a database and tokenize it with one token per sample; it takes a few seconds."""
    from heartlm.corpus.build import build_corpus
    from heartlm.ecg.simulator.config import SimulationConfig
    from heartlm.ecg.simulator.write import simulate_database
    from heartlm.tokenizers.sample import SampleTokenizer

    folder = scratch / "corpus"
    if not folder.exists():
        simulate_database(scratch / "database", SimulationConfig(patients=6, minutes=4.0, seed=1, name="doctor"))
        build_corpus([scratch / "database"], SampleTokenizer(), folder)
    return folder


def trained(trial: Trial, scratch: Path, windows: int) -> dict[str, Any]:
    """Train on a small corpus; return the median step time after the warm-up, and the threads per rank.

    Raises:
        HeartlmError: the training failed or exceeded its time limit.
    """
    out, never = scratch / "trial", 10**6
    settings = {"corpus": small_corpus(scratch), "batch-size": windows, "steps": STEPS, "log-every": STEPS}
    settings |= {"validate-every": never, "checkpoint-every": never, "out": out}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(trial.num_ranks)]
    command = [sys.executable, *(launcher if trial.num_ranks > 1 else []), "-m", "heartlm", "pretrain"]
    try:
        done = subprocess.run(
            [*command, *(f"--{name}={value}" for name, value in settings.items()), *trial.words],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode} and no output"]
            telling = (line for line in lines if line.startswith("heartlm ") or "Error: " in line)
            raise HeartlmError(next(telling, lines[-1]))  # torchrun prints many more lines
        run = RunFolder(out)
        train = next(line for line in reversed(run.metrics) if line["split"] == "train")
        return {"step_s": float(train["step_median_s"]), "num_threads": int(run.environment["num_threads"])}
    except subprocess.TimeoutExpired:
        raise HeartlmError(f"not done within {LIMIT_S} s") from None
    finally:
        shutil.rmtree(out, ignore_errors=True)
