"""The soonest end of a few experiments, by complete search.

Some order of beginning, with each experiment as early as it can be on some node, gives a best schedule: nothing can
begin earlier in it without another beginning later (active schedules; Sprecher, Kolisch & Drexl 1995). So all orders,
widths and nodes are gone through, except where the end so far is no better than the best found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from heartlm.scaling.plan.schedule import Cluster, Job, Placed, Schedule


@dataclass(frozen=True, order=True)
class _Held:
    """Room on a node that an experiment takes."""

    start: float
    end: float
    gpus: int


Nodes = tuple[tuple[_Held, ...], ...]
"""What is held on each node."""


@dataclass(frozen=True)
class _Choice:
    """An experiment with its width, start and nodes."""

    job: Job
    gpus: int
    start: float
    nodes: tuple[int, ...]

    @property
    def end(self) -> float:
        """When it is done."""
        return self.start + self.job.times[self.gpus]


def soonest(jobs: Sequence[Job], cluster: Cluster) -> Schedule:
    """A schedule that ends as soon as any can; its time grows with the factorial of the number of jobs."""
    best: tuple[float, tuple[_Choice, ...]] = (float("inf"), ())

    def go_on(waiting: tuple[Job, ...], chosen: tuple[_Choice, ...], held: Nodes, end: float) -> None:
        nonlocal best
        if max(end, _least_end(waiting, chosen, cluster)) >= best[0]:
            return
        if not waiting:
            best = (end, chosen)
            return
        ends = {each.job.name: each.end for each in chosen}
        for job in waiting:
            if not all(need in ends for need in job.needs):
                continue
            ready = max((ends[need] for need in job.needs), default=0.0)
            rest = tuple(each for each in waiting if each is not job)
            for choice in _choices(job, ready, held, cluster):
                go_on(rest, (*chosen, choice), _with(held, choice, cluster), max(end, choice.end))

    go_on(tuple(jobs), (), ((),) * cluster.nodes, 0.0)
    return Schedule(_named(best[1], cluster))


def _least_end(waiting: Sequence[Job], chosen: Sequence[_Choice], cluster: Cluster) -> float:
    """A bound on the end: GPUs without gaps, each experiment on its fewest GPU-hours."""
    held = sum(each.gpus * (each.end - each.start) for each in chosen)
    to_come = sum(min(gpus * time for gpus, time in job.times.items()) for job in waiting)
    return (held + to_come) / cluster.num_gpus


def _choices(job: Job, ready: float, held: Nodes, cluster: Cluster) -> Iterator[_Choice]:
    """Every width, and every set of nodes that is not like another one."""
    for gpus, time in job.times.items():
        num_nodes = max(1, gpus // cluster.gpus_per_node)
        seen = set()
        for nodes in combinations(range(cluster.nodes), num_nodes):
            alike = tuple(sorted(held[node] for node in nodes)) if num_nodes > 1 else held[nodes[0]]
            if alike not in seen:
                seen.add(alike)
                on_each = gpus // num_nodes
                yield _Choice(
                    job, gpus, _earliest([held[node] for node in nodes], on_each, time, ready, cluster), nodes
                )


def _earliest(nodes: Sequence[tuple[_Held, ...]], gpus: int, time: float, ready: float, cluster: Cluster) -> float:
    """When so many GPUs are free for so long on all of `nodes`."""
    starts = sorted({ready, *(each.end for node in nodes for each in node if each.end > ready)})
    return next(
        start
        for start in starts
        if all(_most_held(node, start, start + time) + gpus <= cluster.gpus_per_node for node in nodes)
    )


def _most_held(node: Sequence[_Held], start: float, end: float) -> int:
    """The most GPUs in use at one time from `start` to `end`."""
    within = [each for each in node if each.start < end and each.end > start]
    moments = [start, *(each.start for each in within if each.start > start)]
    return max(sum(each.gpus for each in within if each.start <= moment < each.end) for moment in moments)


def _with(held: Nodes, choice: _Choice, cluster: Cluster) -> Nodes:
    taken = _Held(choice.start, choice.end, min(choice.gpus, cluster.gpus_per_node))
    return tuple((*node, taken) if number in choice.nodes else node for number, node in enumerate(held))


def _named(chosen: Sequence[_Choice], cluster: Cluster) -> list[Placed]:
    """The choices with GPUs of their own: whoever begins takes the first that are free."""
    free_from = {(node, gpu): 0.0 for node in range(cluster.nodes) for gpu in range(cluster.gpus_per_node)}
    placed = []
    for choice in sorted(chosen, key=lambda each: each.start):
        on_each = min(choice.gpus, cluster.gpus_per_node)
        gpus: list[tuple[int, int]] = []
        for node in choice.nodes:
            free = [place for place, time in free_from.items() if place[0] == node and time <= choice.start]
            gpus += free[:on_each]
        free_from.update(dict.fromkeys(gpus, choice.end))
        placed.append(Placed(choice.job.name, choice.start, choice.end, tuple(gpus)))
    return placed
