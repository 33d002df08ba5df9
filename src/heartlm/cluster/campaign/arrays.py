"""A campaign as job arrays of SLURM: which experiments go together, and what they wait for. Pure functions.

    experiments ─► levels ─► arrays of one stage and topology ─► 1-pretrain.sh, 1-pretrain.tasks ─► sbatch
                   (what needs nothing that is left to do, what needs those, …)   campaign.slurm

Where each task of an array needs the task of the same number of another array, SLURM's `aftercorr` lets it begin as
soon as that one is done. Otherwise experiments that need the very same tasks make an array, which begins `afterok` of
them. What waits for a task that failed is taken out of the queue. A task that fails queues again once.

Where a site gives whole nodes only, experiments that want a part of one share it: such a task is a campaign of its own,
run on the cores and GPUs of that node (`campaign.local`), which tries again and passes over what it cannot run itself.
So do experiments that share a GPU through MPS (`cluster.sharing`).
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
        return format_cpus(self.tasks)


def places_on_node(topology: Topology, profile: SiteProfile) -> int:
    """How many experiments of `topology` a job runs side by side.

    One, unless the site gives whole nodes and they want a part, or they share a GPU that the site does not divide.
    """
    if topology.nodes > 1 or not topology.gpus_per_node:
        return 1
    parts = profile.gpus_per_node // topology.gpus_per_node if profile.whole_nodes else 1
    return max(1, parts) * (1 if profile.gpu_slices else topology.runs_per_gpu)


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
    """Arrays of experiments of one level, stage and topology, by what they wait for."""
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
