"""Running a sweep: study after study, each kept when it is finished; finished studies are not run again.

sweep.json         settings that decide the numbers
table.csv          a line for every rank and round
studies/CELL/      the folder of each study
logs/CELL.yaml     its settings, and what it printed

The first ten columns of the table are those of the published study, and samples per second are, as there, those of the
rank's local steps over its local time and its communication. The others are what it left out: communication hidden
behind computing, bytes, the repeat, and the accuracy of the study's final model.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from heartlm.cluster.profile import SiteProfile, load_slurm_profile
from heartlm.cluster.script import batch_script, command_lines
from heartlm.cluster.submit import run_job
from heartlm.cluster.topology import Topology
from heartlm.distributed.spawn import last_line
from heartlm.errors import HeartlmError
from heartlm.federated.sweep_file import SweepCell, SweepConfig, cells_of
from heartlm.files import atomic_file, read_json, write_csv, write_json
from heartlm.runs.run_folder import ResultFolder
from heartlm.scaling.study import started_with

Row = dict[str, Any]

DECIDES = ("study", "clients_per_rank", "rounds", "slurm", "nodes", "cpus_per_rank")
"""Settings that must not change during a sweep, so that results are comparable."""


def run_sweep(sweep: SweepConfig, say: Callable[[str], object] | None = None) -> tuple[list[Row], dict[str, str]]:
    """Run every unfinished study of a sweep, and write the table.

    Returns:
        The rows of the table, and why studies failed, by their names.

    Raises:
        HeartlmError: a setting is invalid, or the folder contains another sweep.
    """
    sweep.check()
    launch = partial(run_as_job, profile=load_slurm_profile(sweep.slurm)) if sweep.slurm else run_here
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    folder, failed, rows, cells = sweep.folder(), dict[str, str](), list[Row](), cells_of(sweep)
    about = {name: getattr(sweep, name) for name in DECIDES}
    write_json(folder / "sweep.json", started_with(folder / "sweep.json", about))
    for number, cell in enumerate(cells):
        study, head = folder / "studies" / cell.name, f"{number + 1}/{len(cells)}  {cell.name}"
        if not ResultFolder(study).is_finished:
            shutil.rmtree(study, ignore_errors=True)
            config = folder / "logs" / f"{cell.name}.yaml"
            with atomic_file(config) as stream:
                yaml.safe_dump(cell.study(sweep, study.parent).to_yaml(), stream, sort_keys=False)
            reason = launch(config, cell.world_size, config.with_suffix(".log"), sweep)
            if reason is None and not ResultFolder(study).is_finished:
                reason = "ended with status 0, but wrote no scores"
            if reason is not None:
                failed[cell.name] = reason
                say(f"{head}  FAILED: {reason}")
                continue
            say(head)
        rows += rows_of(cell, study)
        write_csv(rows, folder / "table.csv")
    return rows, failed


def rows_of(cell: SweepCell, folder: Path) -> list[Row]:
    """Return the table rows of one finished study."""
    study = ResultFolder(folder)
    if num_torn := study.num_torn_lines:
        raise HeartlmError(f"{study.metrics_file}: {num_torn} lines are no JSON: remove {folder}, run the sweep again")
    clients = defaultdict[tuple[int, int], list[Row]](list)
    for line in study.metrics:
        if line["kind"] == "client" and line.get("num_steps"):
            clients[line["round"], line["rank"]].append(line)
    accuracy = read_json(folder / "scores.json", dict[str, Any]).get("accuracy", {}).get("value")  # none without labels
    rows = list[Row]()
    for line in study.metrics:
        if line["kind"] != "round":
            continue
        own = clients[line["round"], line["rank"]]
        steps, train_s = (sum(client[name] for client in own) for name in ("num_steps", "train_s"))
        busy_s = train_s + line["exposed_s"]
        row = {
            "config": cell.config,
            "world_size": cell.world_size,
            "rank": line["rank"],
            "round_idx": line["round"],
            "batch_size": cell.batch_size,
            "local_steps": cell.local_steps,
            "local_train_ms": 1000 * train_s,
            "comm_ms": 1000 * line["exposed_s"],
            "samples_per_s": steps * cell.batch_size / busy_s if busy_s else None,
            "avg_loss": sum(client["loss"] * client["num_steps"] for client in own) / steps if steps else None,
            "repeat": cell.repeat,
            "hidden_comm_ms": 1000 * line["hidden_s"],
            "comm_bytes": line["bytes"],
            "num_clients": len(own),
            "round_ms": 1000 * line["round_s"],
            "accuracy": accuracy,
        }
        rows.append({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
    return rows


# --- how one study is run --------------------------------------------------------------------------------------------


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
    gpus = per_node if sweep.base().device == "cuda" else 0
    shape = Topology(nodes, gpus, per_node, per_node * sweep.cpus_per_rank, math.ceil(sweep.timeout_s))
    communicator = "torch" if world_size > 1 else "local"
    return batch_script(
        command_lines(["federate", shlex.quote(str(config.resolve())), f"--communicator={communicator}"]),
        shape,
        profile,
        title="heartlm federate",
        name=config.stem,
        logs=logs,
        ranks=world_size > 1,
        stops=False,
    )
