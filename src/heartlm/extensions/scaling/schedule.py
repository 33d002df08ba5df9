"""Choose the number of GPUs of each experiment, and place the experiments on nodes: moldable-job scheduling.

    time limit per experiment ─► for each the fewest GPU-hours within the limit ─► list scheduling ─► a plan
    … for each limit, on all nodes and on fewer                                                  ─► the best of them

Two phases, as in Turek, Wolf & Yu (1992) and Ludwig & Tiwari (1994): choose widths, then place. With more GPUs an
experiment ends sooner and costs more GPU-hours. If there are many experiments, few GPUs each are best; if few, many.

An experiment on at most the GPUs of a node runs within one node; a wider one uses whole nodes. When GPUs become free,
the first ready experiment in the list that fits is started (Graham 1969, list scheduling), on the node with the least
free room. Times are in hours, or in any unit common to all experiments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import TopologicalSorter

MOST_LIMITS = 64
"""Maximum number of time limits to try; if there are more, they are sampled evenly."""


@dataclass(frozen=True)
class PlannedJob:
    """An experiment to place.

    Attributes:
        name: unique name.
        times: duration by number of GPUs.
        needs: names of jobs that must end before it starts.
    """

    name: str
    times: Mapping[int, float]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """Nodes with equal numbers of GPUs."""

    nodes: int
    gpus_per_node: int

    def fits(self, gpus: int) -> bool:
        """Return whether an experiment may use this number of GPUs: within one node, or whole nodes."""
        whole_nodes, rest = divmod(gpus, self.gpus_per_node)
        return gpus <= self.gpus_per_node or (rest == 0 and whole_nodes <= self.nodes)


@dataclass(frozen=True)
class Placed:
    """An experiment with its place and time; `gpus` holds `(node, GPU index on the node)`, both from 0."""

    name: str
    start: float
    end: float
    gpus: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Schedule:
    """All experiments with their places and times."""

    placed: Sequence[Placed]

    @cached_property
    def end(self) -> float:
        """End time of the last experiment."""
        return max((each.end for each in self.placed), default=0.0)

    @cached_property
    def node_time(self) -> float:
        """Total node-time: a whole node counts while any of its GPUs is in use."""
        total, reached = 0.0, defaultdict[int, float](float)
        for each in sorted(self.placed, key=lambda one: (one.start, one.end)):
            for node in {node for node, _ in each.gpus}:
                total += max(0.0, each.end - max(each.start, reached[node]))
                reached[node] = max(reached[node], each.end)
        return total

    @cached_property
    def gpu_time(self) -> float:
        """Total GPU-time in use."""
        return sum((each.end - each.start) * len(each.gpus) for each in self.placed)


def plan(jobs: Sequence[PlannedJob], cluster: Cluster, cheapest: bool = False) -> Schedule:
    """Return the plan that ends soonest, or the one with the least node-time if `cheapest`.

    Every job needs a time for at least one number of GPUs that fits the cluster, and for none that does not.
    """
    plans = [naive(jobs, cluster)]
    for nodes in {cluster.nodes, *(2**power for power in range(cluster.nodes.bit_length()))}:
        part = Cluster(nodes, cluster.gpus_per_node)
        fitting = [replace(job, times={gpus: job.times[gpus] for gpus in job.times if part.fits(gpus)}) for job in jobs]
        if not all(job.times for job in fitting):
            continue
        for widths in _widths(fitting):
            paths = _longest_chains(fitting, widths)
            order = sorted(fitting, key=lambda job: (-paths[job.name], -widths[job.name]))
            plans.append(list_schedule(order, widths, part))
    return min(plans, key=lambda each: (each.node_time, each.end) if cheapest else (each.end, each.node_time))


def naive(jobs: Sequence[PlannedJob], cluster: Cluster) -> Schedule:
    """Return the reference: every experiment on as many GPUs as it can use, in the order of the list."""
    return list_schedule(jobs, {job.name: max(job.times) for job in jobs}, cluster)


def least_end(jobs: Sequence[PlannedJob], cluster: Cluster) -> float:
    """Return a lower bound: all GPUs busy with the fewest GPU-hours, or the longest chain at its fastest."""
    work = sum(min(gpus * time for gpus, time in job.times.items()) for job in jobs)
    fastest = {job.name: min(job.times, key=job.times.__getitem__) for job in jobs}
    return max(work / (cluster.nodes * cluster.gpus_per_node), *_longest_chains(jobs, fastest).values())


def _widths(jobs: Sequence[PlannedJob]) -> Iterator[dict[str, int]]:
    """Yield widths for each time limit: the fewest GPU-hours within the limit, or the fastest if none is."""
    limits = sorted({time for job in jobs for time in job.times.values()})
    for limit in {*limits[:: -(-len(limits) // MOST_LIMITS)], limits[-1]}:
        # All times within the limit are equal in the first number; the second then chooses the fewest GPU-hours.
        yield {
            job.name: min(job.times, key=lambda gpus, job=job: (max(limit, job.times[gpus]), gpus * job.times[gpus]))  # type: ignore[misc]
            for job in jobs
        }


def list_schedule(jobs: Sequence[PlannedJob], widths: Mapping[str, int], cluster: Cluster) -> Schedule:
    """Place each job on `widths[name]` GPUs; if several could start, the first in the list is placed.

    The needs must not contain a cycle, and every width must fit the cluster.
    """
    free = [list(range(cluster.gpus_per_node)) for _ in range(cluster.nodes)]
    waiting, running, ended, placed, now = list(jobs), list[Placed](), set[str](), list[Placed](), 0.0
    while waiting or running:
        too_wide = float("inf")  # a width that found no room leaves none for wider ones
        for job in list(waiting):
            if not any(free):
                break
            width = widths[job.name]
            if width >= too_wide or not ended.issuperset(job.needs):
                continue
            if gpus := _take(free, width, cluster.gpus_per_node):
                running.append(Placed(job.name, now, now + job.times[width], gpus))
                waiting.remove(job)
            else:
                too_wide = width
        assert running, "a width does not fit, or needs go round in a circle"
        now = min(each.end for each in running)
        for each in [each for each in running if each.end <= now]:
            running.remove(each)
            placed.append(each)
            ended.add(each.name)
            for node, gpu in each.gpus:
                free[node] = sorted([*free[node], gpu])
    return Schedule(placed)


def _take(free: list[list[int]], gpus: int, per_node: int) -> tuple[tuple[int, int], ...]:
    """Take this number of `free` GPUs where they fit most tightly; return an empty tuple if they do not fit."""
    per_node = min(gpus, per_node)
    # Nodes with the least room first: wider experiments later need the nodes that are still empty.
    nodes = sorted(
        (node for node, indices in enumerate(free) if len(indices) >= per_node), key=lambda node: len(free[node])
    )
    nodes = nodes[: gpus // per_node]
    if len(nodes) * per_node < gpus:
        return ()
    placed_gpus = tuple((node, gpu) for node in nodes for gpu in free[node][:per_node])
    for node in nodes:
        free[node] = free[node][per_node:]
    return placed_gpus


def _longest_chains(jobs: Sequence[PlannedJob], widths: Mapping[str, int]) -> dict[str, float]:
    """Return for each job the duration of the longest chain of jobs that starts with it."""
    paths, followers = dict[str, float](), defaultdict[str, list[str]](list)
    for job in jobs:
        for need in job.needs:
            followers[need].append(job.name)

    durations = {job.name: job.times[widths[job.name]] for job in jobs}
    # Not by recursion: a chain may have more jobs than Python has frames.
    for name in reversed([*TopologicalSorter({job.name: job.needs for job in jobs}).static_order()]):
        paths[name] = durations[name] + max((paths[follower] for follower in followers[name]), default=0.0)
    return paths
