"""Trainings of a study on this machine: each rank is a process forked from one that has imported torch.

    study ─► fork server (torch imported once) ─► rank 0 ┐
                                               └► rank 1 ┴─► one training ─► measured/rank-*.json

Importing torch takes seconds, a short training takes less. A server therefore imports it once, and every rank is
forked from it. Nothing else is shared: no cell inherits warm caches, memory, threads or process groups from the
previous cell. Each rank has its own cores, and all ranks end when the study ends, for whatever reason.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from heartlm.distributed.spawn import free_ports, last_line
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.gpus import MASK, visible_gpus
from heartlm.extensions.scaling.cell import StudyCell
from heartlm.extensions.scaling.grid import Resources
from heartlm.extensions.scaling.probe import probe
from heartlm.system.cores import bind, cpus_of, share_of_cores, usable_cores
from heartlm.system.parent import end_with_parent

PRELOADED = ["torch", "torch._dynamo", "heartlm.api", "heartlm.training.finetune"]
GRACE_S = 15.0
"""Time in seconds that the other ranks have to exit after one rank has failed."""


@dataclass(frozen=True)
class Rank:
    """One process of a training.

    Attributes:
        command: pretrain or finetune; for another kind of training, its function as `module:name`.
        fields: settings of the training.
        cpus: CPUs that it may use; ranks of one training divide them, core by core.
        environment: environment variables to set.
        log: file for its output.
    """

    command: str
    fields: Mapping[str, Any]
    cpus: tuple[int, ...]
    environment: Mapping[str, str]
    log: Path


def ranks_of(command: str, fields: Mapping[str, Any], num_ranks: int, cpus: Sequence[int], log: Path) -> list[Rank]:
    """Return the ranks of one training on `cpus` of this machine, with the environment that torchrun would set."""
    together = {"WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1"}
    together["MASTER_PORT"] = free_ports(1)[0]
    ranks = []
    for rank in range(num_ranks):
        own = {name: str(value) for name, value in {**together, "RANK": rank, "LOCAL_RANK": rank}.items()}
        ranks.append(Rank(command, fields, tuple(cpus), own, log.with_name(f"{log.stem}-{rank}{log.suffix}")))
    return ranks


def run_ranks(ranks: Sequence[Rank], timeout_s: float) -> str | None:
    """Fork all ranks at once and wait without polling, which would take CPU time; a hung rank is killed.

    Returns:
        The reason why the training failed, or None if all ranks ended with status 0.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes = [context.Process(target=run_rank, args=(rank,), daemon=True) for rank in ranks]
    for process in processes:
        process.start()
    give_up_s = time.monotonic() + timeout_s
    while (left := [process for process in processes if process.exitcode is None]) and time.monotonic() < give_up_s:
        wait([process.sentinel for process in left], max(0.0, give_up_s - time.monotonic()))
        if any(process.exitcode for process in processes):
            give_up_s = min(give_up_s, time.monotonic() + GRACE_S)
    for process in processes:
        process.kill()
        process.join()
    bad = [(rank, process.exitcode) for rank, process in zip(ranks, processes, strict=True) if process.exitcode]
    if not bad:
        return None
    rank, status = next((each for each in bad if each[1] > 0), bad[0])  # others may have been killed after it
    how = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
    return f"the training {how}: {last_line(rank.log) or 'it printed nothing'}"


class LocalTrainer:
    """Trainer of cells on this machine, one after the other.

    Args:
        device: cpu or cuda.
        timeout_s: time in seconds after which a training counts as hung.

    Attributes:
        place: available resources.
    """

    def __init__(self, device: str, timeout_s: float) -> None:
        self.cores, self.device, self.timeout_s = usable_cores(), device, timeout_s
        self.devices = visible_gpus()
        self.place = Resources(len(self.cores), None if device == "cpu" else len(self.devices))

    def train(self, cell: StudyCell, fields: Sequence[Mapping[str, Any]], logs: Path) -> tuple[str | None, float]:
        """Train concurrently with each of `fields`; return the reason of a failure or None, and the duration."""
        started: list[Rank] = []
        for copy, settings in enumerate(fields):
            cores = share_of_cores(self.cores[: cell.num_cores], copy, cell.copies)
            ranks = ranks_of(cell.stage, settings, cell.ranks, cpus_of(cores), logs / f"copy-{copy}.log")
            if self.place.num_devices and cell.copies > 1:
                shown = {MASK: self.devices[copy % len(self.devices)]}
                ranks = [replace(rank, environment={**rank.environment, **shown}) for rank in ranks]
            started += ranks
        begin_s = time.monotonic()
        reason = run_ranks(started, self.timeout_s)
        return reason, time.monotonic() - begin_s

    def probe(self, cell: StudyCell) -> float:
        """Return the speed of the cores that a cell uses."""
        return probe([core.cpus[0] for core in self.cores[: cell.num_cores]])


def run_rank(rank: Rank) -> None:
    """Train as one rank; on failure write a line to the log and exit with status 2."""
    end_with_parent()
    bind(rank.cpus)
    os.environ.update(rank.environment)
    rank.log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(rank.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        module, _, name = rank.command.rpartition(":")
        getattr(importlib.import_module(module or "heartlm.api"), name)(**rank.fields)
    except HeartlmError as error:
        print(error, flush=True)
        sys.exit(2)
