"""The allocation this process is in, if SLURM or torchrun made one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from heartlm.cluster.doctor.section import Advice, Context, Section

SLURM_NAMES = (
    "SLURM_JOB_ID",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "SLURM_MEM_PER_NODE",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
)
RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def check_allocation(context: Context) -> Section:
    """Say which variables of SLURM and torchrun are set."""
    return allocation(os.environ, int(context.fact("processors", "usable_cores", 1)))


def allocation(environment: Mapping[str, str], usable_cores: int) -> Section:
    """What `environment` says, beside the cores that this process may really use."""
    slurm = {name: environment[name] for name in SLURM_NAMES if name in environment}
    ranks = {name: environment[name] for name in RANK_NAMES if name in environment}
    facts: dict[str, Any] = {"slurm": slurm, "ranks": ranks}
    lines = [", ".join(f"{name}={value}" for name, value in group.items()) for group in (slurm, ranks) if group]
    if not slurm:
        return Section([*lines, "not in a SLURM allocation"], facts)
    advice = []
    given = slurm.get("SLURM_CPUS_ON_NODE", "")
    if given.isdigit() and "SLURM_CPUS_PER_TASK" not in slurm and int(given) > usable_cores:
        lines.append(f"a task runs on {usable_cores} core(s), the job has {given} on this node")
        advice.append(
            Advice(
                "give each task its cores",
                f"#SBATCH --cpus-per-task={given}   and   srun --cpus-per-task={given} …",
                None,
                "SLURM_CPUS_PER_TASK is not set, so a task got fewer cores than the job holds",
            )
        )
    return Section(lines, facts, advice)
