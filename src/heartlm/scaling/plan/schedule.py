"""Place experiments of given widths on the GPUs of nodes: list scheduling.

An experiment on at most the GPUs of a node runs within one node; a wider one uses whole nodes. When GPUs become free,
the first ready experiment in the list that fits is started (Graham 1969, list scheduling), on the node with the least
free room. Times are in hours, or in any unit common to all experiments.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property


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
    """Nodes with equal numbers of GPUs.

    Attributes:
        nodes: number of nodes.
        gpus_per_node: number of GPUs per node; if runs share GPUs, number of GPU parts.
        runs_per_gpu: number of parts of a GPU.
    """

    nodes: int
    gpus_per_node: int
    runs_per_gpu: int = 1

    @property
    def num_gpus(self) -> int:
        """Total number of GPUs."""
        return self.nodes * self.gpus_per_node

    def fits(self, gpus: int) -> bool:
        """Return whether an experiment may use this number of GPUs: within one node, or whole nodes."""
        return gpus <= self.gpus_per_node or (gpus % self.gpus_per_node == 0 and gpus <= self.num_gpus)


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
        held, reached = defaultdict[int, float](float), defaultdict[int, float](float)
        for each in sorted(self.placed, key=lambda one: (one.start, one.end)):
            for node in {node for node, _ in each.gpus}:
                held[node] += max(0.0, each.end - max(each.start, reached[node]))
                reached[node] = max(reached[node], each.end)
        return sum(held.values())

    @cached_property
    def gpu_time(self) -> float:
        """Total GPU-time in use."""
        return sum((each.end - each.start) * len(each.gpus) for each in self.placed)

    @property
    def totals(self) -> dict[str, float]:
        """The three times above, by name."""
        return {"end": self.end, "node_time": self.node_time, "gpu_time": self.gpu_time}


def list_schedule(jobs: Sequence[PlannedJob], widths: Mapping[str, int], cluster: Cluster) -> Schedule:
    """Place each job on `widths[name]` GPUs; if several could start, the first in the list is placed.

    The needs must not contain a cycle, and every width must fit the cluster.
    """
    free = [list(range(cluster.gpus_per_node)) for _ in range(cluster.nodes)]
    missing = {job.name: len(set(job.needs)) for job in jobs}
    followers = defaultdict[str, list[int]](list)
    ready = defaultdict[int, list[int]](list)  # jobs that wait only for GPUs: a heap of their positions per width
    for place, job in enumerate(jobs):
        for need in set(job.needs):
            followers[need].append(place)
        if not job.needs:
            heapq.heappush(ready[widths[job.name]], place)
    running, placed, now = list[tuple[float, int, Placed]](), list[Placed](), 0.0
    while True:
        waiting = sorted((queue[0], width) for width, queue in ready.items() if queue)
        for place, width in waiting:
            if gpus := _take(free, width, cluster.gpus_per_node):
                heapq.heappop(ready[width])
                each = Placed(jobs[place].name, now, now + jobs[place].times[width], gpus)
                placed.append(each)
                heapq.heappush(running, (each.end, len(placed), each))
                break
        else:  # nothing fits: advance to the next end
            if not running:
                break
            now = running[0][0]
            while running and running[0][0] <= now:
                ended = heapq.heappop(running)[2]
                for node, gpu in ended.gpus:
                    free[node].append(gpu)
                    free[node].sort()
                for place in followers[ended.name]:
                    follower = jobs[place].name
                    missing[follower] -= 1
                    if not missing[follower]:
                        heapq.heappush(ready[widths[follower]], place)
    assert len(placed) == len(jobs), "a width does not fit, or needs go round in a circle"
    return Schedule(placed)


def _take(free: list[list[int]], gpus: int, per_node: int) -> tuple[tuple[int, int], ...]:
    """Take this number of `free` GPUs where they fit most tightly; return an empty tuple if they do not fit."""
    if gpus > per_node:
        nodes = [node for node, own in enumerate(free) if len(own) == per_node][: gpus // per_node]
        if len(nodes) * per_node < gpus:
            return ()
    else:
        room = [(len(own), node) for node, own in enumerate(free) if len(own) >= gpus]
        nodes = [min(room)[1]] if room else []
    taken = tuple((node, gpu) for node in nodes for gpu in free[node][:gpus])
    for node in nodes:
        free[node] = free[node][gpus:]
    return taken


def critical_paths(jobs: Sequence[PlannedJob], widths: Mapping[str, int]) -> dict[str, float]:
    """Return for each job the duration of the longest chain of jobs that starts with it."""
    paths, followers = dict[str, float](), defaultdict[str, list[PlannedJob]](list)
    for job in jobs:
        for need in job.needs:
            followers[need].append(job)

    def path(job: PlannedJob) -> float:
        if job.name not in paths:
            paths[job.name] = job.times[widths[job.name]] + max(map(path, followers[job.name]), default=0.0)
        return paths[job.name]

    return {job.name: path(job) for job in jobs}
