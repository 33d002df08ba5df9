"""Write the script and the task file of a job array, and submit them to SLURM.

    line of this task ─► are its needs done? ─► start note, log ─► srun ─► end note ─► requeue after a first failure

`cluster.script` writes the commands that start runs; this module adds the array logic.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import TypedDict

from heartlm.cluster.campaign.arrays import TaskArray, arrays_of
from heartlm.cluster.campaign.campaign import Campaign
from heartlm.cluster.campaign.done import progress_of
from heartlm.cluster.fragment import fragment
from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.script import body, header, lead_s, one_line, text_of
from heartlm.cluster.submit import call, submit
from heartlm.cluster.topology import Topology
from heartlm.cluster.torchrun import STOPPED_STATUS
from heartlm.errors import HeartlmError
from heartlm.files import atomic_file, read_json, write_json

THIS_TASK = '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"'
"""Job ID of a task. Its plain job number can be that of the whole array, which would requeue the whole array."""


def tasks_text(array: TaskArray, campaign: Campaign) -> str:
    """Return one line per task number: name, needs, result folder and command line, separated by tabs.

    For experiments that share a node, the line has their names and the command line of their small campaign.
    """
    line = _alone if array.places == 1 else _shared
    numbers = range(1, max(array.tasks) + 1)
    every = (line(array, number, campaign) if number in array.tasks else ("-",) for number in numbers)
    return "".join("\t".join(map(one_line, fields)) + "\n" for fields in every)


def _alone(array: TaskArray, number: int, campaign: Campaign) -> tuple[str, ...]:
    (experiment,), cpus = array.tasks[number], array.topology.cpus_per_task
    run = experiment.run
    if run.is_training and run.fields.get("device") in (None, "auto"):
        run = run.having(device="cuda" if experiment.topology.gpus_per_node else "cpu")
    if run.command == "tokenize":
        run = run.having(processes=min(cpus, run.fields.get("processes") or cpus))
    needs = ":".join(("", *array.needs.get(number, ()))) or ":"
    return experiment.name, needs, str(experiment.result), shlex.join(run.argv())


def _shared(array: TaskArray, number: int, campaign: Campaign) -> tuple[str, ...]:
    names = ",".join(each.name for each in array.tasks[number])
    words = ["campaign", "run", str(campaign.path), "--local", f"--parallel={array.places}", f"--only={names}"]
    return names, shlex.join(words)


def script_of(
    array: TaskArray, campaign: Campaign, profile: SiteProfile, *, python: str, at_most: int | None = None
) -> str:
    """Return the script of `array`.

    Args:
        array: array whose tasks the script runs.
        campaign: campaign that records the attempts.
        profile: site profile.
        python: Python interpreter with heartlm.
        at_most: maximum number of tasks that run at the same time.
    """
    topology = array.topology
    title = f"# Campaign {campaign.name}, {array.experiments[0].stage}: {topology.words} each, profile {profile.name}."
    if array.places > 1:
        gpus = topology.gpus_per_node * array.places
        cpus = topology.cpus_per_task * array.places
        cpus = min(cpus, profile.cpus_per_node or cpus)
        topology = replace(topology, gpus_per_node=gpus, cpus_per_task=cpus)
        title += f" {array.places} share a node."
    lines = ["#!/bin/bash -l" if profile.modules else "#!/bin/bash", title]
    throttle = f"%{at_most}" if at_most else ""
    further = [f"--array={array.numbers}{throttle}", "--kill-on-invalid-dep=yes"]
    output = campaign.state_folder / "arrays" / f"{array.name}-%A_%a.out"
    lines += header(topology, profile, name=f"{campaign.name}-{array.name}", output=output, further=further)
    inner = (_body_alone if array.places == 1 else _body_shared)(array, campaign, topology, profile, python)
    return text_of([*lines, "", *(line.replace('"$SLURM_JOB_ID"', THIS_TASK) for line in inner)])


def _body_alone(
    array: TaskArray, campaign: Campaign, topology: Topology, profile: SiteProfile, python: str
) -> list[str]:
    is_training = array.experiments[0].run.is_training
    what = [
        *_line_of_task(array, campaign, f"name needs {'run_folder' if is_training else '_'} words"),
        *fragment("needs", experiments=shlex.quote(str(campaign.state_folder / "experiments"))),
        *fragment("attempt", stopped=STOPPED_STATUS),
        *(fragment("resume") if is_training else []),
    ]
    inner = body(what, topology, profile, python=python, ranks=is_training)
    return [*inner[:-1], inner[-1].removeprefix("exec ")]  # this shell must continue, to record the exit status


def _body_shared(
    array: TaskArray, campaign: Campaign, topology: Topology, profile: SiteProfile, python: str
) -> list[str]:
    *inner, start = body(_line_of_task(array, campaign, "_ words"), topology, profile, python=python, ranks=False)
    return [
        *inner,
        *fragment("start_shared", lead_s=lead_s(topology, profile), start=start.removeprefix("exec ")),
        *fragment("wait"),
        *fragment("requeue", stopped=STOPPED_STATUS),
        'exit "$((status == 1 ? 0 : status))"',
    ]


def _line_of_task(array: TaskArray, campaign: Campaign, fields: str) -> list[str]:
    tasks = campaign.state_folder / "arrays" / f"{array.name}.tasks"
    return fragment("task", tasks=shlex.quote(str(tasks)), fields=fields)


def arrays_left(campaign: Campaign, profile: SiteProfile) -> list[TaskArray]:
    """Return the arrays of all unfinished experiments.

    Raises:
        HeartlmError: a result folder contains a result of other settings.
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
    """Submit all unfinished experiments.

    Args:
        campaign: campaign to submit.
        profile: site profile.
        python: Python interpreter with heartlm.
        at_most: maximum number of tasks of an array that run at the same time.
        say: function called with a line of text for every array.

    Raises:
        HeartlmError: SLURM is missing or refuses (submitted arrays are then cancelled); experiments of the campaign are
            already in the queue; a result folder contains a result of other settings.
    """
    if still := queue_of(campaign):
        before = read_json(campaign.state_folder / "submitted.json", _Submitted)["jobs"]
        raise HeartlmError(
            f"{campaign.name}: {len(still)} experiments are in the queue, for example {next(iter(still))}: let them "
            f"end, or cancel them with  scancel {' '.join(before.values())}"
        )
    jobs: dict[str, str] = {}
    tasks: dict[str, str] = {}
    folder = campaign.state_folder / "arrays"
    try:
        for array in arrays_left(campaign, profile):
            script = script_of(array, campaign, profile, python=python, at_most=at_most)
            for suffix, text in (("tasks", tasks_text(array, campaign)), ("sh", script)):
                with atomic_file(folder / f"{array.name}.{suffix}") as stream:
                    stream.write(text)
            dependency = array.dependency(jobs)
            waiting = [] if dependency is None else [f"--dependency={dependency}"]
            job = submit(folder / f"{array.name}.sh", f"--chdir={campaign.folder}", *waiting)
            jobs[array.name] = job
            tasks |= {each.name: f"{job}_{number}" for number, task in array.tasks.items() for each in task}
            # write after each array: if the next one is refused or this is killed, the queued jobs are known
            write_json(campaign.state_folder / "submitted.json", {"user": os.getuid(), "jobs": jobs, "tasks": tasks})
            in_tasks = f" in {len(array.tasks)} tasks" if array.places > 1 else ""
            say(f"job {job}: {array.name}, {len(array.experiments)} experiments{in_tasks} of {array.topology.words}")
    except HeartlmError:
        if jobs:
            call("scancel", *jobs.values())
        raise


class _Submitted(TypedDict):
    user: int
    jobs: dict[str, str]
    tasks: dict[str, str]


def queue_of(campaign: Campaign) -> dict[str, str]:
    """Return the state of every queued experiment by name; empty if nothing was submitted.

    Raises:
        HeartlmError: arrays were submitted, but SLURM is not available here.
    """
    path = campaign.state_folder / "submitted.json"
    if not path.is_file():
        return {}
    submitted = read_json(path, _Submitted)
    listed = call("squeue", "--noheader", "--array", f"--user={submitted['user']}", "--format=%F_%K %T")
    states = dict(line.split(maxsplit=1) for line in listed.splitlines() if line.strip())
    return {name: states[task].strip() for name, task in submitted["tasks"].items() if task in states}
