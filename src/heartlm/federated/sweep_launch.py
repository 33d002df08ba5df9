"""How one study of a sweep is run: on this machine, alone or as ranks of mpiexec, or as a job of SLURM.

Studies run one after the other: running at the same time they would share cores and links, which the sweep measures.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.script import body, header, text_of
from heartlm.cluster.submit import follow, submit
from heartlm.cluster.topology import Topology
from heartlm.distributed.spawn import last_line
from heartlm.errors import HeartlmError


class Launcher(Protocol):
    """Runs studies somewhere."""

    def run(self, config: Path, world_size: int, log: Path) -> str | None:
        """Run the study of the file `config` on `world_size` ranks; return the reason if it failed."""


@dataclass(frozen=True)
class MPILauncher:
    """Runs studies on this machine, several ranks under mpiexec.

    Attributes:
        timeout_s: after which a study counts as hung.
    """

    timeout_s: float

    def run(self, config: Path, world_size: int, log: Path) -> str | None:
        """Run the study of the file `config` on `world_size` ranks; return the reason if it failed."""
        command = [*(mpiexec(world_size) if world_size > 1 else []), sys.executable, "-m", "heartlm", "federate"]
        with log.open("wb") as output:
            try:
                status = subprocess.run(
                    [*command, str(config)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=self.timeout_s,
                ).returncode
            except subprocess.TimeoutExpired:
                return f"not finished after {self.timeout_s:g} s"
        return None if status == 0 else f"ended with status {status}: {last_line(log) or 'it printed nothing'}"


def mpiexec(num_ranks: int) -> list[str]:
    """The command that starts `num_ranks` ranks, with the mpiexec of this environment or of the system.

    Raises:
        HeartlmError: there is none.
    """
    own = Path(sys.executable).with_name("mpiexec")
    program = str(own) if own.exists() else shutil.which("mpiexec")
    if program is None:
        raise HeartlmError("mpiexec: not found: pip install 'heartlm[mpi]', or load the MPI of the machine")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    flags = []
    if "Open MPI" in version or "prte" in version.lower():  # refuses more ranks than cores, and root, unless told so
        flags = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    return [program, *flags, "-n", str(num_ranks)]


@dataclass(frozen=True)
class SlurmLauncher:
    """Runs studies as jobs of SLURM, with the batch script of every other training.

    Attributes:
        profile: of the site.
        nodes: of a job, if the number of ranks is a multiple of it; else 1.
        cpus_per_rank: of a job.
        timeout_s: time limit of a job.
        on_gpus: every rank gets a GPU.

    Raises:
        HeartlmError: the profile is incomplete, or of a site without SLURM.
    """

    profile: SiteProfile
    nodes: int
    cpus_per_rank: int
    timeout_s: float
    on_gpus: bool

    def __post_init__(self) -> None:
        self.profile.check()
        if self.profile.scheduler != "slurm":
            raise HeartlmError(f"slurm: {self.profile.name} found, a profile of a site with SLURM expected")

    def run(self, config: Path, world_size: int, log: Path) -> str | None:
        """Run the study of the file `config` on `world_size` ranks; return the reason if it failed."""
        if shutil.which("sbatch") is None:
            raise HeartlmError(f"slurm: {self.profile.name} found, but this machine has no sbatch: leave slurm out")
        script = log.with_suffix(".sh")
        script.write_text(self.script(config, world_size, log.parent), encoding="utf-8")
        state = follow(submit(script), lambda line: None)
        if state.state == "COMPLETED":
            return None
        return f"{state.words} with status {state.status}: {state.last_line()}"

    def script(self, config: Path, world_size: int, logs: Path) -> str:
        """The batch script of a study."""
        nodes = self.nodes if world_size % self.nodes == 0 else 1
        per_node = world_size // nodes
        gpus = per_node if self.on_gpus else 0
        shape = Topology(nodes, gpus, per_node, per_node * self.cpus_per_rank, math.ceil(self.timeout_s))
        python = "python" if self.profile.container != "none" else sys.executable
        output = logs / f"{config.stem}-%j.out"
        lines = ["#!/bin/bash -l" if self.profile.modules else "#!/bin/bash"]
        lines += [f"# heartlm federate on {shape.words}, profile {self.profile.name}."]
        lines += header(shape, self.profile, name="federate", output=output, stops=False)
        communicator = "torch" if world_size > 1 else "local"
        command = f"federate {shlex.quote(str(config.resolve()))} --communicator={communicator}"
        what = ["# What to run.", f"command=({command})"]
        return text_of([*lines, "", *body(what, shape, self.profile, python=python, ranks=world_size > 1)])
