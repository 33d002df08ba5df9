"""A campaign as job arrays of SLURM: which experiments go together, what they wait for, and the script they share.

    experiments ─► levels ─► arrays of one stage and topology ─► 1-pretrain.sh, 1-pretrain.tasks ─► sbatch
                   (what needs nothing that is left to do, what needs those, …)

Where each task of an array needs the task of the same number of another array, SLURM's `aftercorr` lets it begin as
soon as that one is done. Otherwise experiments that need the very same tasks make an array, which begins `afterok` of
them. What waits for a task that failed is taken out of the queue. A task that fails queues again once.

Where a site gives whole nodes only, experiments that want a part of one share it: such a task is a campaign of its own,
run on the cores and GPUs of that node (`campaign_local`), which tries again and passes over what it cannot run itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from heartlm.launch.campaign import Campaign, Experiment
from heartlm.launch.profile import SiteProfile
from heartlm.launch.script import REQUEUE, RESUME, WAIT, body, header, lead_s, text_of
from heartlm.launch.topology import Topology
from heartlm.launch.torchrun import STOPPED_STATUS

THIS_TASK = '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"'
"""To SLURM the job number of a task can be that of its whole array, which would queue again as a whole."""

Task = tuple[str, int]
"""Name of an array, number of a task in it."""


@dataclass(frozen=True)
class TaskArray:
    """Experiments that one job array runs.

    Attributes:
        name: of the array: its level and stage.
        tasks: the experiments of each task by its number; several share a node.
        places: how many find room on a node; 1 where they do not share.
        needs: names of the experiments that a task has to wait for, by its number.
        kind: of the dependency: aftercorr, afterok, afterany; None where it waits for nothing.
        waits_for: whole arrays (aftercorr) or tasks of arrays.
    """

    name: str
    tasks: Mapping[int, tuple[Experiment, ...]]
    places: int = 1
    needs: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    kind: str | None = None
    waits_for: tuple[Task, ...] = ()

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        """Those of all tasks: all have the same topology and the same kind of command."""
        return tuple(each for task in self.tasks.values() for each in task)

    @property
    def topology(self) -> Topology:
        """Of each of its experiments."""
        return self.experiments[0].topology

    def dependency(self, jobs: Mapping[str, str]) -> str | None:
        """What `sbatch --dependency` is given; `jobs` are the arrays submitted, by name."""
        if self.kind is None:
            return None
        if self.kind == "aftercorr":
            return f"aftercorr:{':'.join(dict.fromkeys(jobs[array] for array, _ in self.waits_for))}"
        return f"{self.kind}:{':'.join(f'{jobs[array]}_{number}' for array, number in self.waits_for)}"

    @property
    def numbers(self) -> str:
        """The numbers of its tasks as SLURM writes them, for example 1-3,7."""
        return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in _runs(sorted(self.tasks)))


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def places_on_node(topology: Topology, profile: SiteProfile) -> int:
    """How many experiments of `topology` share a node: one, unless the site gives whole nodes and they want a part."""
    if not profile.whole_nodes or topology.nodes > 1 or not topology.gpus_per_node:
        return 1
    return max(1, profile.gpus_per_node // topology.gpus_per_node)


def arrays_of(experiments: Sequence[Experiment], profile: SiteProfile) -> list[TaskArray]:
    """Arrays of what is left to do, each after those that it waits for.

    Args:
        experiments: each after those that it needs; of what one needs, only what is among them is waited for.
        profile: of the site.
    """
    place: dict[str, Task] = {}
    arrays: list[TaskArray] = []
    for level, members in enumerate(_levels(experiments), start=1):
        names: set[str] = set()
        for group in _together(members, lambda each: (each.stage, each.topology, each.run.is_training)):
            for array in _split(
                group, place, f"{level}-{group[0].stage}", names, places_on_node(group[0].topology, profile)
            ):
                arrays.append(array)
                place.update(
                    {each.name: (array.name, number) for number in array.tasks for each in array.tasks[number]}
                )
    return arrays


def _levels(experiments: Sequence[Experiment]) -> list[list[Experiment]]:
    depth: dict[str, int] = {}
    for each in experiments:
        depth[each.name] = 1 + max((depth[need] for need in each.needs if need in depth), default=-1)
    return [
        [each for each in experiments if depth[each.name] == level]
        for level in range(max(depth.values(), default=-1) + 1)
    ]


def _together(experiments: Iterable[Experiment], key: Callable[[Experiment], Hashable]) -> list[list[Experiment]]:
    groups: dict[Hashable, list[Experiment]] = {}
    for each in experiments:
        groups.setdefault(key(each), []).append(each)
    return list(groups.values())


def _split(
    group: Sequence[Experiment], place: Mapping[str, Task], name: str, taken: set[str], places: int
) -> list[TaskArray]:
    """Arrays of experiments of one level, stage and topology, by what they wait for."""
    waits = {each.name: tuple(place[need] for need in each.needs if need in place) for each in group}

    def array(tasks: Mapping[int, tuple[Experiment, ...]], kind: str | None) -> TaskArray:
        members = [each for task in tasks.values() for each in task]
        waits_for = tuple(dict.fromkeys(task for each in members for task in waits[each.name]))
        needs = {
            number: tuple(dict.fromkeys(need for each in task for need in each.needs if need in place))
            for number, task in tasks.items()
        }
        return TaskArray(_new(name, taken), tasks, places, needs, kind if waits_for else None, waits_for)

    arrays = []
    for alike in _together(group, lambda each: tuple(sorted({array for array, _ in waits[each.name]}))):
        if (tasks := _task_for_task(alike, waits, places)) is not None:
            arrays.append(array(tasks, "aftercorr"))
        elif places > 1:
            arrays.append(array(_in_turn(alike, places), "afterany"))
        else:
            same = _together(alike, lambda each: frozenset(waits[each.name]))
            arrays += [array(_in_turn(each, 1), "afterok") for each in same]
    return arrays


def _task_for_task(
    alike: Sequence[Experiment], waits: Mapping[str, tuple[Task, ...]], places: int
) -> dict[int, tuple[Experiment, ...]] | None:
    """Tasks numbered as what they wait for is, in every array of it; None if that cannot be, or fills nodes badly."""
    by_number: dict[int, list[Experiment]] = {}
    for each in alike:
        numbers = {number for _, number in waits[each.name]}
        if len(numbers) != 1:
            return None
        by_number.setdefault(numbers.pop(), []).append(each)
    sizes = [len(task) for task in by_number.values()]
    if max(sizes) > places or len(sizes) > -(-len(alike) // places):
        return None
    return {number: tuple(task) for number, task in by_number.items()}


def _in_turn(experiments: Sequence[Experiment], places: int) -> dict[int, tuple[Experiment, ...]]:
    starts = range(0, len(experiments), places)
    return {number: tuple(experiments[start : start + places]) for number, start in enumerate(starts, start=1)}


def _new(name: str, taken: set[str]) -> str:
    """`name`, or `name` with a number behind it, where it is taken."""
    free = next(
        each for number in range(1, 10**6) if (each := name if number == 1 else f"{name}-{number}") not in taken
    )
    taken.add(free)
    return free


def tasks_text(array: TaskArray, campaign: Campaign) -> str:
    """A line for each number up to the last: name, needs, folder of the result, command line; tabs between.

    Of experiments that share a node, their names and the command line of their own small campaign.
    """
    line = _alone if array.places == 1 else _shared
    numbers = range(1, max(array.tasks) + 1)
    return text_of(["\t".join(line(array, number, campaign)) if number in array.tasks else "-" for number in numbers])


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
    """The script of `array`.

    Args:
        array: whose tasks it runs.
        campaign: where attempts are noted.
        profile: of the site.
        python: the interpreter that has heartlm.
        at_most: so many tasks run at a time.
    """
    topology = array.topology
    title = f"# Campaign {campaign.name}, {array.experiments[0].stage}: {topology.words} each, profile {profile.name}."
    if array.places > 1:
        gpus, cpus = topology.gpus_per_node * array.places, topology.cpus_per_task * array.places
        topology = replace(topology, gpus_per_node=gpus, cpus_per_task=min(cpus, profile.cpus_per_node or cpus))
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
        f"experiments={shlex.quote(str(campaign.state_folder / 'experiments'))}",
        "for need in ${needs//:/ }; do",
        '    if ! grep -qs \'"status": 0\' "$experiments/$need"/attempt-*.ended; then',
        '        echo "$name is not run: it needs $need, which is not done"',
        "        exit 1",
        "    fi",
        "done",
        "",
        *NOTED,
        *(RESUME if is_training else []),
    ]
    inner = body(what, topology, profile, python=python, ranks=is_training)
    return [*inner[:-1], inner[-1].removeprefix("exec ")]  # this shell stays, to note what became of it


def _body_shared(
    array: TaskArray, campaign: Campaign, topology: Topology, profile: SiteProfile, python: str
) -> list[str]:
    *inner, start = body(_line_of_task(array, campaign, "_ words"), topology, profile, python=python, ranks=False)
    return [
        *inner,
        "step=",
        "asked=",
        "cancelled=",
        f"# Asked to stop, {lead_s(topology, profile)} s before the time limit, runs save checkpoints; then this task",
        "# queues again and they go on. What failed was tried again and is noted: what needs it finds out.",
        "trap 'asked=yes; kill -USR1 \"$step\" || true' USR1",
        "trap 'asked=yes cancelled=yes' TERM",
        f"{start.removeprefix('exec ')} &",
        "step=$!",
        *WAIT,
        *REQUEUE,
        'exit "$((status == 1 ? 0 : status))"',
    ]


def _line_of_task(array: TaskArray, campaign: Campaign, fields: str) -> list[str]:
    tasks = campaign.state_folder / "arrays" / f"{array.name}.tasks"
    return [
        "# Which experiment: the line of this task.",
        f"tasks={shlex.quote(str(tasks))}",
        f'IFS=$\'\\t\' read -r {fields} < <(sed -n "${{SLURM_ARRAY_TASK_ID}}p" "$tasks")',
        "command=()",
        'eval "command=($words)"',
    ]


NOTED = [
    "# Each attempt leaves a log and notes of how it began and ended. After a first failure it queues again.",
    "attempts=$experiments/$name",
    'mkdir -p "$attempts"',
    "number=1",
    "while [[ -e $attempts/attempt-$number.begun ]]; do",
    "    number=$((number + 1))",
    "done",
    "attempt=$attempts/attempt-$number",
    "note() {",
    """    printf '{"at": %d, "host": "%s", "job": "%s", "status": %s}\\n' \\""",
    '        "$(date +%s)" "$(hostname)" "$SLURM_JOB_ID" "$2" >"$attempt.part"',
    '    mv "$attempt.part" "$attempt.$1"',
    "}",
    "note begun null",
    "status=0",
    "cancelled=",
    "trap 'cancelled=yes' TERM",
    "again=$attempts/again-$SLURM_ARRAY_JOB_ID",
    "trap '",
    "    status=$?",
    '    note ended "$status"',
    f"    if ((status != 0 && status != {STOPPED_STATUS})) && [[ -z $cancelled && ! -e $again ]]; then",
    '        touch "$again"',
    '        scontrol requeue "$SLURM_JOB_ID"',
    "    fi",
    "' EXIT",
    'exec >"$attempt.log" 2>&1',
]
