"""Dask workers as SLURM jobs, by a site profile: `--engine dask --scheduler slurm:PROFILE`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError, needs
from heartlm.extensions.cluster.profile import SiteOptions, SiteProfile, load_site

MEMORY_PER_WORKER_GB = 2
"""Memory that a job asks for each worker; Dask ends a worker that needs more."""


@contextmanager
def slurm_cluster(profile_name: str, num_workers: int) -> Iterator[str]:
    """Start `num_workers` Dask workers of one CPU as SLURM jobs, and yield the address of their scheduler.

    The jobs end with the block.

    Args:
        profile_name: name or YAML file of a site profile.
        num_workers: number of workers; jobs have as many CPUs as a node of the profile.

    Raises:
        HeartlmError: the profile does not exist or is incomplete, or a package is missing.
    """
    profile = load_site(profile_name or "generic", SiteOptions())
    with needs("dask"):
        jobqueue: Any = import_module("dask_jobqueue")
    per_job = min(num_workers, profile.cpus_per_node or 1)
    try:
        cluster = jobqueue.SLURMCluster(**settings_of(profile, per_job))
    except (OSError, ValueError) as error:
        raise HeartlmError(f"scheduler: no Dask workers by SLURM, profile {profile.name}: {error}") from error
    with cluster:
        cluster.scale(n=num_workers)
        yield str(cluster.scheduler_address)


def settings_of(profile: SiteProfile, per_job: int) -> dict[str, Any]:
    """Return the arguments of `dask_jobqueue.SLURMCluster` for jobs of `per_job` workers by a site profile.

    Raises:
        HeartlmError: the profile uses a container without an image.
    """
    python = profile.python
    if profile.container != "none":
        assert profile.image is not None, "the profile was checked"
        binds = " ".join(f"--bind {shlex.quote(folder)}" for folder in [str(Path.cwd()), *profile.binds])
        python = f"apptainer exec {binds} {shlex.quote(profile.image)} {profile.python}"
    options = [f"--qos={profile.qos}"] if profile.qos else []
    return {
        "cores": per_job,
        "processes": per_job,
        "memory": f"{MEMORY_PER_WORKER_GB * per_job}GB",
        "queue": profile.partition,
        "account": profile.account,
        "job_extra_directives": [*options, *profile.header],
        "job_script_prologue": [
            *(f"module load {shlex.quote(module)}" for module in profile.modules),
            *(f"export {name}={shlex.quote(value)}" for name, value in profile.environment.items()),
            "export OMP_NUM_THREADS=1",
        ],
        "python": python,
        "walltime": "24:00:00",
    }
