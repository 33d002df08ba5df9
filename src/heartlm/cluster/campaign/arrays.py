"""Group the experiments of a campaign into SLURM job arrays with dependencies. Pure functions.

    experiments ─► levels ─► arrays of one stage and topology ─► 1-pretrain.sh, 1-pretrain.tasks ─► sbatch
                   (no pending needs, then needs of level 1, …)       campaign.slurm

If each task of an array needs the task with the same number of another array, the dependency is `aftercorr`: a task
starts as soon as its counterpart is done. Otherwise experiments with the same needs form an array, which starts
`afterok` of these tasks. SLURM cancels the dependents of a failed task. A failed task is requeued once.

If a site allocates whole nodes only, experiments that use part of a node share it. Such a task is a small campaign
that runs on the cores and GPUs of that node (`campaign.local`); it retries failed experiments and skips those that it
cannot run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

from heartlm.cluster.campaign.campaign import Experiment
from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.topology import Topology
from heartlm.cores import format_cpus

Task = tuple[str, int]
"""Name of an array, and number of a task in it."""


@dataclass(frozen=True)
class TaskArray:
    """Experiments that run as one job array.

    Attributes:
        name: name of the array, from its level and stage.
        tasks: experiments of each task, by task number; several share a node.
        places: number of experiments that fit on a node; 1 if nodes are not shared.
        needs: names of the experiments that a task waits for, by task number.
        kind: type of the dependency: aftercorr, afterok or afterany; None without dependency.
        waits_for: arrays (aftercorr) or tasks of arrays that this array waits for.
    """

    name: str
    tasks: Mapping[int, tuple[Experiment, ...]]
    places: int = 1
    needs: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    kind: str | None = None
    waits_for: tuple[Task, ...] = ()

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        """Experiments of all tasks; they share one topology and one kind of command."""
        return tuple(each for task in self.tasks.values() for each in task)

    @property
    def topology(self) -> Topology:
        """Topology of each experiment."""
        return self.experiments[0].topology

    def dependency(self, jobs: Mapping[str, str]) -> str | None:
        """Return the value of `sbatch --dependency`; `jobs` maps the names of submitted arrays to job numbers."""
        if self.kind is None:
            return None
        if self.kind == "aftercorr":
            return f"aftercorr:{':'.join(dict.fromkeys(jobs[array] for array, _ in self.waits_for))}"
        return f"{self.kind}:{':'.join(f'{jobs[array]}_{number}' for array, number in self.waits_for)}"

    @property
    def numbers(self) -> str:
        """Return the task numbers in SLURM's format, for example 1-3,7."""
        return format_cpus(self.tasks)


def places_on_node(topology: Topology, profile: SiteProfile) -> int:
    """Return the number of experiments of `topology` that a job runs side by side.

    It is 1 unless the site allocates whole nodes and the experiments use part of a node.
    """
    if not profile.whole_nodes or topology.nodes > 1 or not topology.gpus_per_node:
        return 1
    return max(1, profile.gpus_per_node // topology.gpus_per_node)


def arrays_of(experiments: Sequence[Experiment], profile: SiteProfile) -> list[TaskArray]:
    """Return the arrays of the pending experiments, each after the arrays that it waits for.

    Args:
        experiments: pending experiments, each after those that it needs; needs outside this list are ignored.
        profile: site profile.
    """
    place: dict[str, Task] = {}
    arrays: list[TaskArray] = []
    for level, members in enumerate(_levels(experiments), start=1):
        names: set[str] = set()
        for group in _together(members, lambda each: (each.stage, each.topology, each.run.is_training)):
            places = places_on_node(group[0].topology, profile)
            for array in _split(group, place, f"{level}-{group[0].stage}", names, places):
                arrays.append(array)
                place |= {each.name: (array.name, number) for number, task in array.tasks.items() for each in task}
    return arrays


def _levels(experiments: Sequence[Experiment]) -> list[list[Experiment]]:
    depth: dict[str, int] = {}
    for each in experiments:
        depth[each.name] = 1 + max((depth[need] for need in each.needs if need in depth), default=-1)
    return _together(sorted(experiments, key=lambda each: depth[each.name]), lambda each: depth[each.name])


def _together(experiments: Iterable[Experiment], key: Callable[[Experiment], Hashable]) -> list[list[Experiment]]:
    groups: dict[Hashable, list[Experiment]] = {}
    for each in experiments:
        groups.setdefault(key(each), []).append(each)
    return list(groups.values())


def _split(
    group: Sequence[Experiment], place: Mapping[str, Task], name: str, taken: set[str], places: int
) -> list[TaskArray]:
    """Split the experiments of one level, stage and topology into arrays by what they wait for."""
    waits = {each.name: tuple(place[need] for need in each.needs if need in place) for each in group}

    def array(tasks: Mapping[int, tuple[Experiment, ...]], kind: str | None) -> TaskArray:
        members = [each for task in tasks.values() for each in task]
        waits_for = tuple(dict.fromkeys(task for each in members for task in waits[each.name]))
        needs = {
            number: tuple(dict.fromkeys(need for each in task for need in each.needs if need in place))
            for number, task in tasks.items()
        }
        free = next(each for each in chain([name], (f"{name}-{number}" for number in count(2))) if each not in taken)
        taken.add(free)
        return TaskArray(free, tasks, places, needs, kind if waits_for else None, waits_for)

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
    """Number the tasks like those that they wait for; return None if that is impossible or leaves nodes half empty."""
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
