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
from pathlib import Path

from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.script import body, header, text_of
from heartlm.cluster.submit import run_job
from heartlm.cluster.topology import Topology
from heartlm.distributed.spawn import last_line
from heartlm.errors import HeartlmError
from heartlm.federated.sweep_file import SweepConfig


def run_here(config: Path, world_size: int, log: Path, sweep: SweepConfig) -> str | None:
    """Run the study of the file `config` on `world_size` ranks of this machine; return the reason if it failed."""
    command = [*(mpiexec(world_size) if world_size > 1 else []), sys.executable, "-m", "heartlm", "federate"]
    with log.open("wb") as output:
        try:
            status = subprocess.run(
                [*command, str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=sweep.timeout_s,
            ).returncode
        except subprocess.TimeoutExpired:
            return f"not finished after {sweep.timeout_s:g} s"
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
    if "Open MPI" in version or "prte" in version.lower():  # refuses more ranks than cores, and root, by default
        flags = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    return [program, *flags, "-n", str(num_ranks)]


def run_as_job(config: Path, world_size: int, log: Path, sweep: SweepConfig, profile: SiteProfile) -> str | None:
    """Run the study of the file `config` on `world_size` ranks of a cluster; return the reason if it failed."""
    if shutil.which("sbatch") is None:
        raise HeartlmError(f"slurm: {profile.name} found, but this machine has no sbatch: leave slurm out")
    return run_job(log.with_suffix(".sh"), job_script(config, world_size, log.parent, sweep, profile))[0]


def job_script(config: Path, world_size: int, logs: Path, sweep: SweepConfig, profile: SiteProfile) -> str:
    """The batch script of a study; its ranks are on `sweep.nodes` nodes, or on one if they do not divide among them."""
    nodes = sweep.nodes if world_size % sweep.nodes == 0 else 1
    per_node = world_size // nodes
    gpus = 0 if sweep.computes_on_cpu() else per_node
    shape = Topology(nodes, gpus, per_node, per_node * sweep.cpus_per_rank, math.ceil(sweep.timeout_s))
    python = "python" if profile.container != "none" else sys.executable
    lines = ["#!/bin/bash -l" if profile.modules else "#!/bin/bash"]
    lines += [f"# heartlm federate on {shape.words}, profile {profile.name}."]
    lines += header(shape, profile, name="federate", output=logs / f"{config.stem}-%j.out", stops=False)
    communicator = "torch" if world_size > 1 else "local"
    command = f"federate {shlex.quote(str(config.resolve()))} --communicator={communicator}"
    what = ["# What to run.", f"command=({command})"]
    return text_of([*lines, "", *body(what, shape, profile, python=python, ranks=world_size > 1)])
