"""Submit a campaign to SLURM: a job for each experiment, which waits for the jobs of those that it needs.

    job ─► are its needs done? ─► start note, log ─► as in heartlm launch ─► end note ─► requeue after a first failure

SLURM cancels the jobs that need a failed one. If a site allocates whole nodes only, experiments that use part of a node
share a job. Such a job runs a small campaign on the cores and GPUs of its node (`campaign.local`), which retries failed
experiments and skips those that it cannot run.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from heartlm.distributed.ranks import STOPPED_STATUS
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.campaign.campaign import Campaign, Experiment
from heartlm.extensions.cluster.campaign.state import progress_of
from heartlm.extensions.cluster.profile import SiteProfile
from heartlm.extensions.cluster.run_file import RunFile
from heartlm.extensions.cluster.script import fragment, render
from heartlm.extensions.cluster.submit import call, submit
from heartlm.extensions.cluster.topology import Topology
from heartlm.storage.atomic import write_json, write_text
from heartlm.storage.reading import read_json

Job = tuple[Experiment, ...]
"""Experiments of one job: one, or several that run side by side on a node."""


def places_on_node(topology: Topology, profile: SiteProfile) -> int:
    """Return the number of experiments of `topology` that share a node; 1 unless the site allocates whole nodes."""
    if not profile.whole_nodes or topology.nodes > 1 or not topology.gpus_per_node:
        return 1
    return max(1, profile.gpus_per_node // topology.gpus_per_node)


def jobs_of(experiments: Sequence[Experiment], profile: SiteProfile) -> list[Job]:
    """Return the jobs of `experiments`, each after the jobs that it waits for.

    Args:
        experiments: pending experiments, each after those that it needs; other needs are done, and left out.
        profile: site profile.
    """
    depth: dict[str, int] = {}
    groups: dict[tuple[int, Topology], list[Experiment]] = {}
    for each in experiments:
        needs = tuple(need for need in each.needs if need in depth)
        depth[each.name] = 1 + max((depth[need] for need in needs), default=0)
        groups.setdefault((depth[each.name], each.topology), []).append(replace(each, needs=needs))
    jobs = list[Job]()
    for (_, topology), members in sorted(groups.items(), key=lambda group: group[0][0]):
        at_once = places_on_node(topology, profile)
        jobs += [tuple(members[first : first + at_once]) for first in range(0, len(members), at_once)]
    return jobs


def dependency(job: Job, jobs: Mapping[str, str]) -> list[str]:
    """Return the options of `sbatch` by which a job waits for those that it needs.

    Args:
        job: experiments of the job.
        jobs: number of the job of each experiment that it needs.
    """
    sizes, needed_jobs = Counter(jobs.values()), dict.fromkeys(jobs[need] for each in job for need in each.needs)
    # A job of several experiments may fail in one and be needed for another: their needs are checked when they start.
    waits = [f"{'afterok' if len(job) == 1 == sizes[number] else 'afterany'}:{number}" for number in needed_jobs]
    return [f"--dependency={','.join(waits)}", "--kill-on-invalid-dep=yes"] if waits else []


def script_of(job: Job, campaign: Campaign, profile: SiteProfile) -> str:
    """Return the script of `job`, which records the attempt in the folder of `campaign`."""
    first, logs, name = job[0], campaign.state_folder / "jobs", job_name(job, campaign)
    topology = first.topology
    if len(job) == 1:
        attempt = [
            f"name={first.name}",
            f"experiments={shlex.quote(str(campaign.state_folder / 'experiments'))}",
            *(fragment("needs", needs=" ".join(first.needs)) if first.needs else []),
            *fragment("attempt", stopped=STOPPED_STATUS),
        ]
        run = first.run.with_device(topology.device)
        return render(run, topology, profile, name=name, logs=logs, before=attempt)
    at_once = places_on_node(topology, profile)
    cpus = min(topology.cpus_per_task * at_once, profile.cpus_per_node or topology.cpus_per_task * at_once)
    only = " ".join(each.name for each in job)  # shellcheck suspects commas in an array
    run = RunFile("campaign", {"words": ["run", str(campaign.path)], "local": True, "parallel": at_once, "only": only})
    whole = replace(topology, gpus_per_node=topology.gpus_per_node * at_once, cpus_per_task=cpus)
    return render(run, whole, profile, name=name, logs=logs)


def job_name(job: Job, campaign: Campaign) -> str:
    """Return the name of a job and of its script."""
    more = f"@{len(job)}" if len(job) > 1 else ""  # no experiment has @ in its name
    return f"{campaign.name}-{job[0].name}{more}"


def write_scripts(campaign: Campaign, profile: SiteProfile, folder: Path) -> list[Path]:
    """Write the scripts of the jobs that `submit_campaign` would submit, in their order.

    Raises:
        HeartlmError: a script cannot be written, or a result folder contains a result of other settings.
    """
    pending = [each for each in campaign.experiments if progress_of(each, campaign.folder) != "done"]
    return [
        write_text(folder / f"{job_name(job, campaign)}.sh", script_of(job, campaign, profile))
        for job in jobs_of(pending, profile)
    ]


def submit_campaign(campaign: Campaign, profile: SiteProfile, say: Callable[[str], None]) -> None:
    """Submit all unfinished experiments.

    Args:
        campaign: campaign to submit.
        profile: site profile.
        say: function called with a line of text for every job.

    Raises:
        HeartlmError: SLURM is missing or refuses (submitted jobs are then cancelled); experiments of the campaign are
            already in the queue; a result folder contains a result of other settings.
    """
    if still := queue_of(campaign):
        numbers = dict.fromkeys(read_json(campaign.state_folder / "submitted.json", _Submitted)["jobs"].values())
        raise HeartlmError(
            f"{campaign.name}: {len(still)} experiments are in the queue, for example {next(iter(still))}: let them "
            f"end, or cancel them with  scancel {' '.join(numbers)}"
        )
    pending = [each for each in campaign.experiments if progress_of(each, campaign.folder) != "done"]
    jobs: dict[str, str] = {}
    try:
        for job in jobs_of(pending, profile):
            path = campaign.state_folder / "jobs" / f"{job_name(job, campaign)}.sh"
            script = write_text(path, script_of(job, campaign, profile))
            number = submit(script, f"--chdir={campaign.folder}", *dependency(job, jobs))
            jobs |= {each.name: number for each in job}
            # write after each job: if the next one is refused or this is killed, the queued jobs are known
            write_json(campaign.state_folder / "submitted.json", {"user": os.getuid(), "jobs": jobs})
            say(f"job {number}: {', '.join(each.name for each in job)} on {job[0].topology.words}")
    except HeartlmError:
        if jobs:
            with suppress(HeartlmError):  # they stay in submitted.json; the error to report is the first one
                call("scancel", *jobs.values())
        raise


class _Submitted(TypedDict):
    user: int
    jobs: dict[str, str]


def queue_of(campaign: Campaign) -> dict[str, str]:
    """Return the state of every queued experiment by name; empty if nothing was submitted.

    Raises:
        HeartlmError: jobs were submitted, but SLURM is not available here.
    """
    path = campaign.state_folder / "submitted.json"
    if not path.is_file():
        return {}
    submitted = read_json(path, _Submitted)
    listed = call("squeue", "--noheader", f"--user={submitted['user']}", "--format=%A %T")
    # By job number (%A); jobs that have ended are not listed.
    states = dict(line.split(maxsplit=1) for line in listed.splitlines() if line.strip())
    return {name: states[job].strip() for name, job in submitted["jobs"].items() if job in states}
