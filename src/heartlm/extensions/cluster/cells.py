"""Cells of a grid of measurements: each is run alone, on this machine or as a SLURM job, and once.

    settings as at the start ─► cells without a result ─► LocalCells: fork server ─► ranks ─┐
                                                      └─► SlurmCells: one job ──────────────┴─► failure, or a result

Scaling studies and sweeps use this. They measure, so no two cells run at the same time: on one machine they would share
cores, on a cluster links and disks. Runs that may share a machine are a campaign (`cluster.campaign`).

Importing torch takes seconds, a short training takes less. On this machine a server therefore imports it once, and
every rank is forked from it. Nothing else is shared: no cell inherits warm caches, memory, threads or process groups
from the previous cell. Each rank has its own cores, and all ranks end when the grid ends, for whatever reason.
"""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.gpus import MASK, visible_gpus
from heartlm.extensions.cluster.profile import SiteOptions, load_site
from heartlm.extensions.cluster.run_file import RunFile
from heartlm.extensions.cluster.script import render
from heartlm.extensions.cluster.spawn import free_ports, last_line
from heartlm.extensions.cluster.submit import run_job
from heartlm.extensions.cluster.topology import Topology
from heartlm.storage.atomic import locked
from heartlm.storage.reading import read_json
from heartlm.system.cores import bind, cpus_of, share_of_cores, usable_cores
from heartlm.system.parent import end_with_parent

PRELOADED = ["torch", "torch._dynamo", "heartlm.tasks.finetune"]
GRACE_S = 15.0
"""Time in seconds that the other ranks have to exit after one rank has failed."""


@dataclass(frozen=True)
class Resources:
    """Available resources.

    Attributes:
        num_cores: number of cores of a node that this process may use.
        num_devices: number of GPUs of a node; None on CPUs.
        num_nodes: number of nodes.
    """

    num_cores: int
    num_devices: int | None = None
    num_nodes: int = 1


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
        environment = {name: str(value) for name, value in {**together, "RANK": rank, "LOCAL_RANK": rank}.items()}
        ranks.append(Rank(command, fields, tuple(cpus), environment, log.with_name(f"{log.stem}-{rank}{log.suffix}")))
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
    while (alive := [process for process in processes if process.exitcode is None]) and time.monotonic() < give_up_s:
        wait([process.sentinel for process in alive], max(0.0, give_up_s - time.monotonic()))
        if any(process.exitcode for process in processes):
            give_up_s = min(give_up_s, time.monotonic() + GRACE_S)
    is_hung = bool(alive) and not any(process.exitcode for process in processes)
    for process in processes:
        process.kill()
        process.join()
    bad = [(rank, process.exitcode) for rank, process in zip(ranks, processes, strict=True) if process.exitcode]
    if not bad:
        return None
    rank, status = next((each for each in bad if each[1] > 0), bad[0])  # others may have been killed after it
    how = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
    how = f"did not end within {timeout_s:g} s" if is_hung else how
    return f"the training {how}: {last_line(rank.log) or 'it printed nothing'}"


class LocalCells:
    """Runner of cells on this machine.

    Args:
        device: cpu or cuda.
        timeout_s: time in seconds after which a cell counts as hung.

    Attributes:
        cores: cores that this process may use.
        resources: available resources.
    """

    def __init__(self, device: str, timeout_s: float) -> None:
        self.cores, self.timeout_s, self.devices = usable_cores(), timeout_s, visible_gpus()
        self.resources = Resources(len(self.cores), None if device == "cpu" else len(self.devices))

    def run(
        self, command: str, copies: Sequence[Mapping[str, Any]], ranks: int, nodes: int, cpus_per_rank: int, logs: Path
    ) -> tuple[str | None, float]:
        """Run a command.

        Args:
            command: pretrain or finetune; for another command, the function of its name as `module:name`.
            copies: settings of each run; several run at the same time, each on its own cores.
            ranks: number of ranks of a run on all nodes.
            nodes: number of nodes.
            cpus_per_rank: number of cores of a rank.
            logs: folder for the output of the ranks.

        Returns:
            The reason of a failure or None, and the duration in seconds.
        """
        # As many cores as the ranks of all copies use; the copies divide them.
        started, cores = list[Rank](), self.cores[: ranks * cpus_per_rank * len(copies)]
        for copy, fields in enumerate(copies):
            cpus = cpus_of(share_of_cores(cores, copy, len(copies)))
            ranks_of_copy = ranks_of(command, fields, ranks, cpus, logs / f"copy-{copy}.log")
            if self.resources.num_devices and len(copies) > 1:
                shown = {MASK: self.devices[copy % len(self.devices)]}
                ranks_of_copy = [replace(each, environment={**each.environment, **shown}) for each in ranks_of_copy]
            started += ranks_of_copy
        begin_s = time.monotonic()
        reason = run_ranks(started, self.timeout_s)
        return reason, time.monotonic() - begin_s


class SlurmCells:
    """Runner of cells through SLURM; see `LocalCells`.

    Args:
        profile: site profile: a name or a file.
        device: cpu or cuda.
        timeout_s: time limit of a job in seconds.

    Raises:
        HeartlmError: the profile is invalid or incomplete, or SLURM is not available here.
    """

    cores = ()

    def __init__(self, profile: str, device: str, timeout_s: float) -> None:
        self.profile, self.timeout_s = load_site(profile, SiteOptions()), timeout_s
        most = 1 << 20  # never reached; SLURM itself refuses requests that it cannot satisfy
        self.resources = Resources(most, None if device == "cpu" else most, most)
        if shutil.which("sbatch") is None:
            raise HeartlmError("slurm: no sbatch found, so no SLURM here: leave it out to measure on this machine")

    def run(
        self, command: str, copies: Sequence[Mapping[str, Any]], ranks: int, nodes: int, cpus_per_rank: int, logs: Path
    ) -> tuple[str | None, float]:
        """Run a command as a job, without copies: a cluster does not start two jobs at the same moment."""
        (fields,) = copies
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
        logs.mkdir(parents=True, exist_ok=True)
        per_node = ranks // nodes
        gpus = per_node if self.resources.num_devices else 0
        shape = Topology(nodes, gpus, per_node, per_node * cpus_per_rank, math.ceil(self.timeout_s))
        run = RunFile(command.rpartition(":")[2], plain)
        return run_job(logs / "job.sh", render(run, shape, self.profile, name="study", logs=logs))


Cells = LocalCells | SlurmCells


def cells_on(slurm: str | None, device: str, timeout_s: float) -> Cells:
    """Return the runner for the site profile `slurm`, or for this machine if it is None."""
    return LocalCells(device, timeout_s) if slurm is None else SlurmCells(slurm, device, timeout_s)


@contextmanager
def continued(path: Path, about: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Hold the folder of a grid for this process, and yield the settings in the file at `path`, or `about` if none.

    Raises:
        HeartlmError: a value of `about` differs from the stored one, or another process runs the grid.
    """
    folder = path.parent
    with locked(folder / ".lock", f"{folder}: another study is being measured there: wait for its end"):
        before = read_json(path, dict[str, Any]) if path.exists() else dict(about)
        for name, value in about.items():
            if before.get(name) != value:
                raise HeartlmError(
                    f"{name}: {value} found, but {folder} was started with {before.get(name)}: choose another --out"
                )
        yield before


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
        getattr(importlib.import_module(module or "heartlm"), name)(**rank.fields)
    except HeartlmError as error:
        print(error, flush=True)
        sys.exit(2)
