"""Placing experiments of chosen widths on the GPUs of some nodes, one after the other as room comes free.

An experiment on at most the GPUs of a node lies within one node; a wider one takes whole nodes. Whenever GPUs come
free, the first experiment of a list that is ready and fits begins (Graham 1969, list scheduling); among nodes it takes
the one with the least room left. Times are in hours, or in any unit all experiments share.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class PlannedJob:
    """An experiment to be placed.

    Attributes:
        name: of its own.
        times: how long it takes, by the number of GPUs it may have.
        needs: names of jobs that end before it begins.
    """

    name: str
    times: Mapping[int, float]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """Nodes of as many GPUs each."""

    nodes: int
    gpus_per_node: int

    @property
    def num_gpus(self) -> int:
        """Of all nodes."""
        return self.nodes * self.gpus_per_node

    def fits(self, gpus: int) -> bool:
        """Whether an experiment may have this number: within a node, or whole nodes."""
        return gpus <= self.gpus_per_node or (gpus % self.gpus_per_node == 0 and gpus <= self.num_gpus)


@dataclass(frozen=True)
class Placed:
    """An experiment with its place and time; `gpus` holds `(node, number on the node)`, both from 0."""

    name: str
    start: float
    end: float
    gpus: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Schedule:
    """All experiments, placed."""

    placed: Sequence[Placed]

    @cached_property
    def end(self) -> float:
        """When the last experiment is done."""
        return max((each.end for each in self.placed), default=0.0)

    @cached_property
    def node_time(self) -> float:
        """Time that nodes are held, summed: a node counts, whole, while any of its GPUs is at work."""
        return sum(_covered(spans) for spans in self._by_node().values())

    @cached_property
    def gpu_time(self) -> float:
        """Time that GPUs are at work, summed."""
        return sum((each.end - each.start) * len(each.gpus) for each in self.placed)

    def _by_node(self) -> dict[int, list[tuple[float, float]]]:
        spans: dict[int, list[tuple[float, float]]] = {}
        for each in self.placed:
            for node in {node for node, _ in each.gpus}:
                spans.setdefault(node, []).append((each.start, each.end))
        return spans


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    covered, reached = 0.0, 0.0
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


@dataclass
class _Room:
    """GPUs that are free now, by node."""

    cluster: Cluster
    free: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.free = [list(range(self.cluster.gpus_per_node)) for _ in range(self.cluster.nodes)]

    def take(self, gpus: int) -> tuple[tuple[int, int], ...] | None:
        """Take this number where they fit most tightly; None where they fit nowhere."""
        per_node = self.cluster.gpus_per_node
        if gpus > per_node:
            whole = [node for node, free in enumerate(self.free) if len(free) == per_node][: gpus // per_node]
            if len(whole) * per_node < gpus:
                return None
            taken = tuple((node, gpu) for node in whole for gpu in range(per_node))
            for node in whole:
                self.free[node] = []
            return taken
        room = [(len(free), node) for node, free in enumerate(self.free) if len(free) >= gpus]
        if not room:
            return None
        node = min(room)[1]
        taken = tuple((node, gpu) for gpu in self.free[node][:gpus])
        self.free[node] = self.free[node][gpus:]
        return taken

    def give_back(self, gpus: Sequence[tuple[int, int]]) -> None:
        """Make GPUs free again."""
        for node, gpu in gpus:
            self.free[node].append(gpu)
            self.free[node].sort()


def list_schedule(jobs: Sequence[PlannedJob], widths: Mapping[str, int], cluster: Cluster) -> Schedule:
    """Place `jobs`, earlier ones of the list first where several could begin, each on `widths[name]` GPUs.

    Jobs must not need one another in a circle, and every width must fit the cluster.
    """
    room, ready, running = _Room(cluster), _Ready(jobs, widths), list[tuple[float, int, Placed]]()
    placed: list[Placed] = []
    now = 0.0
    while True:
        while taken := ready.first_that_fits(room):
            job, gpus = taken
            each = Placed(job.name, now, now + job.times[widths[job.name]], gpus)
            placed.append(each)
            heapq.heappush(running, (each.end, len(placed), each))
        if not running:
            break
        now = running[0][0]
        while running and running[0][0] <= now:
            ended = heapq.heappop(running)[2]
            room.give_back(ended.gpus)
            ready.is_done(ended.name)
    assert len(placed) == len(jobs), "a width does not fit, or needs go round in a circle"
    return Schedule(placed)


class _Ready:
    """Jobs that wait for nothing but room, by width, each width's in the order of the list."""

    def __init__(self, jobs: Sequence[PlannedJob], widths: Mapping[str, int]) -> None:
        self.jobs, self.widths = jobs, widths
        self.missing = {job.name: len(set(job.needs)) for job in jobs}
        self.followers: dict[str, list[int]] = {}
        self.queues: dict[int, list[int]] = {}
        for place, job in enumerate(jobs):
            for need in set(job.needs):
                self.followers.setdefault(need, []).append(place)
            if not job.needs:
                self._add(place)

    def first_that_fits(self, room: _Room) -> tuple[PlannedJob, tuple[tuple[int, int], ...]] | None:
        """Take the first job of the list that fits, with its GPUs; None where none does."""
        for place, width in sorted((queue[0], width) for width, queue in self.queues.items() if queue):
            if gpus := room.take(width):
                heapq.heappop(self.queues[width])
                return self.jobs[place], gpus
        return None

    def is_done(self, name: str) -> None:
        """A job has ended: those that waited for it alone are ready."""
        for place in self.followers.get(name, []):
            follower = self.jobs[place].name
            self.missing[follower] -= 1
            if not self.missing[follower]:
                self._add(place)

    def _add(self, place: int) -> None:
        heapq.heappush(self.queues.setdefault(self.widths[self.jobs[place].name], []), place)


def by_critical_path(jobs: Sequence[PlannedJob], widths: Mapping[str, int]) -> list[PlannedJob]:
    """Jobs in the order of `critical_paths`, longest first."""
    paths = critical_paths(jobs, widths)
    return sorted(jobs, key=lambda job: (-paths[job.name], -widths[job.name]))


def critical_paths(jobs: Sequence[PlannedJob], widths: Mapping[str, int]) -> dict[str, float]:
    """For each job the time of the longest chain of jobs that begins with it."""
    paths: dict[str, float] = {}
    followers: dict[str, list[PlannedJob]] = {job.name: [] for job in jobs}
    for job in jobs:
        for need in job.needs:
            followers[need].append(job)

    def path(job: PlannedJob) -> float:
        if job.name not in paths:
            paths[job.name] = job.times[widths[job.name]] + max(map(path, followers[job.name]), default=0.0)
        return paths[job.name]

    for job in jobs:
        path(job)
    return paths
