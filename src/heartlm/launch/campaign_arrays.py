"""A campaign as job arrays of SLURM: which experiments go together, what they wait for, and the script they share.

    experiments ─► levels ─► arrays of one stage and topology ─► 1-pretrain.sh, 1-pretrain.tasks ─► sbatch
                   (what needs nothing that is left to do, what needs those, …)

Where each task of an array needs the task of the same number of another array, SLURM's `aftercorr` lets it begin as
soon as that one is done. Otherwise experiments that need the very same tasks make an array, which begins `afterok` of
them. What waits for a task that failed is taken out of the queue. A task that fails queues again once.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from heartlm.launch.campaign import Campaign, Experiment
from heartlm.launch.profile import SiteProfile
from heartlm.launch.script import RESUME, body, header, text_of
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
        tasks: its experiments by the number of their task.
        needs: names of the experiments that each has to wait for, by the number of its task.
        kind: of the dependency, aftercorr or afterok; None where it waits for nothing.
        waits_for: whole arrays (aftercorr) or tasks of arrays (afterok).
    """

    name: str
    tasks: Mapping[int, Experiment]
    needs: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    kind: str | None = None
    waits_for: tuple[Task, ...] = ()

    @property
    def first(self) -> Experiment:
        """One of its experiments: all have the same topology and the same kind of command."""
        return next(iter(self.tasks.values()))

    def dependency(self, jobs: Mapping[str, str]) -> str | None:
        """What `sbatch --dependency` is given; `jobs` are the arrays submitted, by name."""
        if self.kind is None:
            return None
        if self.kind == "aftercorr":
            return f"aftercorr:{':'.join(jobs[array] for array, _ in self.waits_for)}"
        return f"afterok:{':'.join(f'{jobs[array]}_{number}' for array, number in self.waits_for)}"

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


def arrays_of(experiments: Sequence[Experiment]) -> list[TaskArray]:
    """Arrays of what is left to do, each after those that it waits for.

    Args:
        experiments: each after those that it needs; of what one needs, only what is among them is waited for.
    """
    place: dict[str, Task] = {}
    arrays: list[TaskArray] = []
    for level, members in enumerate(_levels(experiments), start=1):
        names: set[str] = set()
        for group in _together(members, lambda each: (each.stage, each.topology, each.run.is_training)):
            for array in _split(group, place, f"{level}-{group[0].stage}", names):
                arrays.append(array)
                place.update({each.name: (array.name, number) for number, each in array.tasks.items()})
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


def _split(group: Sequence[Experiment], place: Mapping[str, Task], name: str, taken: set[str]) -> list[TaskArray]:
    """Arrays of experiments of one level, stage and topology, by what they wait for."""
    waits = {each.name: tuple(place[need] for need in each.needs if need in place) for each in group}
    arrays = []
    for alike in _together(group, lambda each: tuple(sorted({array for array, _ in waits[each.name]}))):
        waited = waits[alike[0].name]
        numbers = [{number for _, number in waits[each.name]} for each in alike]
        if waited and all(len(each) == 1 for each in numbers) and len(set[int]().union(*numbers)) == len(alike):
            tasks = {number: each for (number,), each in zip(map(tuple, numbers), alike, strict=True)}
            arrays.append(_array(_new(name, taken), tasks, place, "aftercorr", waited))
            continue
        for same in _together(alike, lambda each: frozenset(waits[each.name])):
            tasks = dict(enumerate(same, start=1))
            kind = "afterok" if waited else None
            arrays.append(_array(_new(name, taken), tasks, place, kind, waits[same[0].name]))
    return arrays


def _array(
    name: str, tasks: Mapping[int, Experiment], place: Mapping[str, Task], kind: str | None, waits_for: tuple[Task, ...]
) -> TaskArray:
    needs = {number: tuple(need for need in each.needs if need in place) for number, each in tasks.items()}
    return TaskArray(name, tasks, needs, kind, waits_for)


def _new(name: str, taken: set[str]) -> str:
    """`name`, or `name` with a number behind it, where it is taken."""
    free = next(
        each for number in range(1, 10**6) if (each := name if number == 1 else f"{name}-{number}") not in taken
    )
    taken.add(free)
    return free


def tasks_text(array: TaskArray) -> str:
    """A line for each number up to the last: name, needs, folder of the result, command line; tabs between."""
    numbers = range(1, max(array.tasks) + 1)
    return text_of(["\t".join(_entry(array, number)) if number in array.tasks else "-" for number in numbers])


def _entry(array: TaskArray, number: int) -> tuple[str, str, str, str]:
    experiment, cpus = array.tasks[number], array.first.topology.cpus_per_task
    run = experiment.run
    if run.is_training and run.fields.get("device") in (None, "auto"):
        run = run.having(device="cuda" if experiment.topology.gpus_per_node else "cpu")
    if run.command == "tokenize":
        run = run.having(processes=min(cpus, run.fields.get("processes") or cpus))
    needs = ":".join(("", *array.needs.get(number, ()))) or ":"
    return experiment.name, needs, str(experiment.result), shlex.join(run.argv())


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
    topology, is_training = array.first.topology, array.first.run.is_training
    throttle = f"%{at_most}" if at_most else ""
    further = [f"--array={array.numbers}{throttle}", "--kill-on-invalid-dep=yes"]
    output = campaign.state_folder / "arrays" / f"{array.name}-%A_%a.out"
    title = f"# Campaign {campaign.name}, {array.first.stage}: {topology.words} each, profile {profile.name}."
    lines = ["#!/bin/bash -l" if profile.modules else "#!/bin/bash", title]
    lines += header(topology, profile, name=f"{campaign.name}-{array.name}", output=output, further=further)
    inner = body(_what(array, campaign), topology, profile, python=python, ranks=is_training)
    inner[-1] = inner[-1].removeprefix("exec ")  # this shell stays, to note what became of it
    return text_of([*lines, "", *(line.replace('"$SLURM_JOB_ID"', THIS_TASK) for line in inner)])


def _what(array: TaskArray, campaign: Campaign) -> list[str]:
    tasks = campaign.state_folder / "arrays" / f"{array.name}.tasks"
    is_training = array.first.run.is_training
    fields = f"name needs {'run_folder' if is_training else '_'} words"
    return [
        "# Which experiment: the line of this task.",
        f"tasks={shlex.quote(str(tasks))}",
        f'IFS=$\'\\t\' read -r {fields} < <(sed -n "${{SLURM_ARRAY_TASK_ID}}p" "$tasks")',
        "command=()",
        'eval "command=($words)"',
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
    "trap '",
    "    status=$?",
    '    note ended "$status"',
    f"    if ((status != 0 && status != {STOPPED_STATUS})) && [[ ! -e $attempts/again-$SLURM_ARRAY_JOB_ID ]]; then",
    '        touch "$attempts/again-$SLURM_ARRAY_JOB_ID"',
    '        scontrol requeue "$SLURM_JOB_ID"',
    "    fi",
    "' EXIT",
    'exec >"$attempt.log" 2>&1',
]
