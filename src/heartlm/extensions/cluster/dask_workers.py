"""Dask workers as SLURM jobs, by a site profile: `--engine dask --scheduler slurm:PROFILE`."""

from __future__ import annotations

import shlex
import shutil
from asyncio import to_thread
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from heartlm.errors import HeartlmError, needs
from heartlm.extensions.cluster.profile import SiteOptions, SiteProfile, load_site
from heartlm.extensions.cluster.submit import SlurmBusyError, call, state_of
from heartlm.system.progress import LOG_EVERY_S, plural, say

ASK_EVERY_S = 10.0
"""Time in seconds between two questions to SLURM, which are asked while there is no worker."""

MEMORY_PER_WORKER_GB = 2
"""Memory of a worker, above which Dask ends it."""


@contextmanager
def slurm_cluster(profile_name: str, num_workers: int) -> Iterator[str]:
    """Start `num_workers` Dask workers of one CPU as SLURM jobs, and yield the address of their scheduler.

    The jobs end with the block. While there is no worker, a line tells what SLURM does with them. If all of them end
    without a worker, so does the scheduler, and an error that its client raises for it becomes one about the jobs.

    Args:
        profile_name: name or YAML file of a site profile.
        num_workers: number of workers; jobs have as many CPUs as a node of the profile.

    Raises:
        HeartlmError: the profile does not exist or is incomplete, a package or SLURM is missing, SLURM refuses a job,
            or all jobs have ended.
    """
    profile = load_site(profile_name or "generic", SiteOptions())
    with needs("dask"):
        jobqueue: Any = import_module("dask_jobqueue")
        distributed: Any = import_module("distributed")
    if shutil.which("sbatch") is None:
        raise HeartlmError("scheduler: sbatch: no such command, so no SLURM here: give the address of a Dask scheduler")
    submitted = SimpleQueue[str | HeartlmError]()

    class Job(jobqueue.slurm.SLURMJob):  # type: ignore[misc]
        async def _submit_job(self, script: str) -> str:
            try:
                answer = await to_thread(call, "sbatch", script)
            except HeartlmError as error:
                # Dask would log it with its stack, and wait. The text becomes the number of a job that does not exist.
                submitted.put(error)
                return "0"
            submitted.put(self._job_id_from_submit_output(answer))
            return answer

        async def close(self) -> None:
            await super().close()
            self.status = distributed.Status.closed  # which a cluster that closes expects, and `super` forgets

    per_job, whose = min(num_workers, profile.cpus_per_node or 1), f"Dask workers by SLURM, profile {profile.name}"
    try:
        cluster = jobqueue.SLURMCluster(job_cls=Job, **settings_of(profile, per_job))
    except (OSError, ValueError) as error:
        raise HeartlmError(f"scheduler: no {whose}: {error}") from error
    jobs, ended, is_over = list[str](), list[str](), Event()

    def watch() -> None:
        silent_s = LOG_EVERY_S
        while not is_over.wait(ASK_EVERY_S):
            if cluster.scheduler_info["workers"]:
                continue
            try:
                waiting = _queued(jobs)
            except SlurmBusyError:
                continue
            if not waiting:
                ended.append(_how_ended(jobs[-1]))
                cluster.close()
                return
            if (silent_s := silent_s + ASK_EVERY_S) >= LOG_EVERY_S:
                states = ", ".join(f"{plural(count, 'job')} {state}" for state, count in waiting.most_common())
                say(f"waiting for {whose}: {states}")
                silent_s = 0.0

    watcher = Thread(target=watch, daemon=True)
    with cluster:
        cluster.scale(n=num_workers)
        for _ in cluster.worker_spec:
            if isinstance(job := submitted.get(), HeartlmError):
                raise HeartlmError(f"scheduler: no {whose}: {job}") from job
            jobs.append(job)
        watcher.start()
        try:
            yield str(cluster.scheduler_address)
        except HeartlmError:
            if not ended:
                raise
            raise HeartlmError(f"scheduler: no {whose}: all jobs have ended, the last as {ended[0]}") from None
        finally:
            is_over.set()
            watcher.join()


def _queued(jobs: list[str]) -> Counter[str]:
    """Count the jobs that have not ended by state and reason, such as PENDING (Resources)."""
    try:
        lines = call("squeue", "--noheader", "--format=%T (%r)", f"--jobs={','.join(jobs)}").splitlines()
    except SlurmBusyError:
        raise
    except HeartlmError:  # the job ended so long ago that SLURM does not know it
        return Counter()
    return Counter(line.strip().removesuffix(" (None)") for line in lines if line.strip())


def _how_ended(job: str) -> str:
    try:
        state = state_of(job)
    except HeartlmError as error:
        return f"job {job}: {error}"
    return f"{state.words}, {state.output}: {state.last_line() or 'no output'}"


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
        "job_directives_skip": ["--mem"],  # a site gives jobs memory by their CPUs, or the header of the profile asks
        "job_extra_directives": [*options, *profile.header],
        "job_script_prologue": [
            *(f"module load {shlex.quote(module)}" for module in profile.modules),
            *(f"export {name}={shlex.quote(value)}" for name, value in profile.environment.items()),
            "export OMP_NUM_THREADS=1",
        ],
        "python": python,
        "walltime": "24:00:00",
    }
