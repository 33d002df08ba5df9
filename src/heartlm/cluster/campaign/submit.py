"""A campaign's job arrays handed to SLURM, and what of them is still in its queue."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

from heartlm.cluster.campaign.arrays import TaskArray, arrays_of
from heartlm.cluster.campaign.campaign import Campaign
from heartlm.cluster.campaign.done import progress_of
from heartlm.cluster.campaign.script import script_of, tasks_text
from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.submit import call, submit
from heartlm.errors import HeartlmError
from heartlm.files import atomic_file, read_json, write_json


def arrays_left(campaign: Campaign, profile: SiteProfile) -> list[TaskArray]:
    """Arrays of all that is not done.

    Raises:
        HeartlmError: a result of other settings is in the way.
    """
    left = [each for each in campaign.experiments if progress_of(each, campaign.folder) != "done"]
    return arrays_of(left, profile)


def submit_campaign(
    campaign: Campaign,
    profile: SiteProfile,
    *,
    python: str,
    at_most: int | None,
    say: Callable[[str], None],
) -> None:
    """Queue all that is not done.

    Args:
        campaign: whose experiments.
        profile: of the site.
        python: the interpreter that has heartlm.
        at_most: so many tasks of an array run at a time.
        say: told of every array.

    Raises:
        HeartlmError: there is no SLURM, or it refuses (what was submitted is cancelled then); some of the campaign is
            in the queue already; a result of other settings is in the way.
    """
    if still := queue_of(campaign):
        raise HeartlmError(
            f"{campaign.name}: {len(still)} experiments are in the queue, for example {next(iter(still))}: let them "
            f"end, or cancel them with  scancel {' '.join(_jobs(campaign).values())}"
        )
    jobs: dict[str, str] = {}
    arrays = arrays_left(campaign, profile)
    try:
        for array in arrays:
            jobs[array.name] = _submit(array, campaign, profile, python, at_most, jobs)
            tasks = f" in {len(array.tasks)} tasks" if array.places > 1 else ""
            what = f"{len(array.experiments)} experiments{tasks} of {array.topology.words}"
            say(f"job {jobs[array.name]}: {array.name}, {what}")
            _note(campaign, arrays, jobs)
    except HeartlmError:
        if jobs:
            call("scancel", *jobs.values())
        raise


def _submit(
    array: TaskArray,
    campaign: Campaign,
    profile: SiteProfile,
    python: str,
    at_most: int | None,
    jobs: Mapping[str, str],
) -> str:
    folder = campaign.state_folder / "arrays"
    _write(folder / f"{array.name}.tasks", tasks_text(array, campaign))
    _write(folder / f"{array.name}.sh", script_of(array, campaign, profile, python=python, at_most=at_most))
    options = [f"--chdir={campaign.folder}"]
    if (dependency := array.dependency(jobs)) is not None:
        options.append(f"--dependency={dependency}")
    return submit(folder / f"{array.name}.sh", *options)


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as stream:
        stream.write(text)


def _note(campaign: Campaign, arrays: list[TaskArray], jobs: Mapping[str, str]) -> None:
    tasks = {
        each.name: f"{jobs[array.name]}_{number}"
        for array in arrays
        if array.name in jobs
        for number, task in array.tasks.items()
        for each in task
    }
    write_json(campaign.state_folder / "submitted.json", {"user": os.getuid(), "jobs": dict(jobs), "tasks": tasks})


class _Submitted(TypedDict):
    user: int
    jobs: dict[str, str]
    tasks: dict[str, str]


def _jobs(campaign: Campaign) -> dict[str, str]:
    return read_json(campaign.state_folder / "submitted.json", _Submitted)["jobs"]


def queue_of(campaign: Campaign) -> dict[str, str]:
    """The state in SLURM's queue of every experiment that is in it, by name; empty where nothing was submitted.

    Raises:
        HeartlmError: something was submitted, but there is no SLURM here.
    """
    path = campaign.state_folder / "submitted.json"
    if not path.is_file():
        return {}
    submitted = read_json(path, _Submitted)
    listed = call("squeue", "--noheader", "--array", f"--user={submitted['user']}", "--format=%F_%K %T")
    states = dict(line.split(maxsplit=1) for line in listed.splitlines() if line.strip())
    return {name: states[task].strip() for name, task in submitted["tasks"].items() if task in states}
