"""Steps of DDP training, event by event.

    data ─► forward ─► backward ──┬──┬──┬─► last gradient ─► wait for the sums ─► optimiser ─► other
                                  ▼  ▼  ▼ buckets, as they are ready on every rank
    communication:                ├──┤├──┤├────┤   one bucket at a time

A bucket is ready when the backward pass has come to the share of gradients before its end; its sum over ranks begins
when the slowest rank has it and the bucket before is through. Where communication needs the core that computes, as on
CPU ranks, it takes a share of it. A shared supply of batches is a queue: one is prepared after the other, at most so
many ahead, and whoever waits for a rank that waited for its batch waits for data, too.

Ranks differ by their jitter: each goes through the same relative step times in an order of its own, so a rank by itself
takes on average what one was measured to take, and the slowest of many takes longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from heartlm.scaling.network import Network

Seconds = NDArray[np.float64]

TAIL_BYTES = 64
"""The losses, which ranks add up after the backward pass."""


@dataclass(frozen=True)
class RankWork:
    """What one rank does in a step, if it were alone.

    Attributes:
        data_s: preparing its batches, where that is not done ahead.
        forward_s: of one micro-batch.
        backward_s: of one micro-batch.
        optimizer_s: clipping and the step of the optimiser.
        other_s: all else.
        micro_batches: of a step; gradients are sent in the last.
        bucket_bytes: of every bucket, in the order in which they are ready.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float = 0.0
    data_s: float = 0.0
    other_s: float = 0.0
    micro_batches: int = 1
    bucket_bytes: Sequence[float] = ()

    @property
    def alone_s(self) -> float:
        """Seconds of a step without other ranks."""
        compute_s = self.micro_batches * (self.forward_s + self.backward_s)
        return self.data_s + compute_s + self.optimizer_s + self.other_s


@dataclass(frozen=True)
class Supply:
    """Batches that the ranks of a node share.

    Attributes:
        batches_per_s: that a node prepares, each for one rank and step.
        prefetch: batches prepared ahead for each rank; 0 begins when one is asked for.
        jitter: relative times of preparing one, around 1.
    """

    batches_per_s: float
    prefetch: int = 2
    jitter: Sequence[float] = (1.0,)


@dataclass(frozen=True)
class Surroundings:
    """Where the ranks are.

    Attributes:
        ranks: of all nodes together.
        nodes: a divisor of `ranks`.
        network: between them.
        slowdown: of all computing, by the other ranks of the node; 1 for none.
        core_share: of the computing core that communication takes while it runs, 0 to 1.
        jitter: relative times of steps of one rank, around 1; a step is simulated for each.
        supply: None where every rank prepares its own batches.
        seed: of the order of jitter.
    """

    ranks: int = 1
    nodes: int = 1
    network: Network = field(default_factory=Network)
    slowdown: float = 1.0
    core_share: float = 0.0
    jitter: Sequence[float] = (1.0,)
    supply: Supply | None = None
    seed: int = 0


@dataclass(frozen=True)
class Simulated:
    """What came out, means over ranks.

    Attributes:
        parts_s: seconds of every part of `cell.PARTS` in every step, `[num_steps]` each; they add up to the step.
        hidden_communication_s: a step, while ranks computed.
    """

    parts_s: dict[str, Seconds]
    hidden_communication_s: float

    @property
    def step_s(self) -> Seconds:
        """Of every step, `[num_steps]`."""
        steps: Seconds = sum(self.parts_s.values(), start=np.zeros(1))
        return steps

    @property
    def mean_step_s(self) -> float:
        """Seconds a step."""
        return float(self.step_s.mean())

    def typical_part_s(self) -> dict[str, float]:
        """Seconds a step of every part, over the middle half of the steps: they add up to `typical_s(step_s)`."""
        middle = middle_half(self.step_s)
        return {name: float(each[middle].mean()) for name, each in self.parts_s.items()}


def middle_half(step_s: Sequence[float] | Seconds) -> NDArray[np.intp]:
    """Which steps are neither among the shortest nor among the longest quarter."""
    left_out = len(step_s) // 4
    order = np.argsort(np.asarray(step_s), kind="stable")
    return order[left_out : len(order) - left_out]


def typical_s(step_s: Sequence[float] | Seconds) -> float:
    """The mean of the middle half: a step that something else on the machine held up does not count."""
    return float(np.asarray(step_s)[middle_half(step_s)].mean())


def simulate(work: RankWork, around: Surroundings) -> Simulated:
    """Simulate as many steps as `around.jitter` has entries, after one supply's worth to fill the queue."""
    jitter = np.asarray(around.jitter, dtype=float)
    orders = np.random.default_rng(around.seed).permuted(np.tile(jitter, (around.ranks, 1)), axis=1)
    costs_s = [around.network.all_reduce_s(size, around.ranks, around.nodes) for size in work.bucket_bytes]
    tail_s = around.network.all_reduce_s(TAIL_BYTES, around.ranks, around.nodes) if costs_s else 0.0
    supply = None if around.supply is None else _Queues(around.supply, around.ranks, around.nodes, around.seed)
    num_filling = 0 if supply is None else len(jitter)
    clock_s = np.zeros(around.ranks)
    steps = []
    for step in range(num_filling + len(jitter)):
        one = _Step(work, around, costs_s, tail_s, orders[:, step % len(jitter)])
        clock_s = one.run(clock_s, supply)
        if step >= num_filling:
            steps.append(one)
    parts_s = {name: np.array([step.part_s[name].mean() for step in steps]) for name in steps[0].part_s}
    return Simulated(parts_s, float(np.mean([step.hidden_s for step in steps])))


class _Step:
    """One step of all ranks; arrays are `[ranks]`."""

    def __init__(
        self, work: RankWork, around: Surroundings, costs_s: Sequence[float], tail_s: float, jitter: Seconds
    ) -> None:
        self.work, self.around, self.costs_s, self.tail_s = work, around, costs_s, tail_s
        self.factor = jitter * around.slowdown
        self.busy: deque[tuple[float, float]] = deque()  # when something is sent, the parts that may still matter
        self.part_s: dict[str, Seconds] = {}
        self.hidden_s = 0.0

    def run(self, clock_s: Seconds, supply: _Queues | None) -> Seconds:
        """Go through the step from `clock_s` on; returns when each rank is through."""
        work = self.work
        taken_s = clock_s if supply is None else supply.take(clock_s)
        got_s = taken_s + work.data_s * self.factor
        before_s = (work.forward_s + work.backward_s) * (work.micro_batches - 1) + work.forward_s
        begin_s = got_s + before_s * self.factor
        ready_s, sent_s = self._backward(begin_s)
        last_s = float(ready_s.max())
        through_s = max(sent_s, last_s) + self.tail_s
        compute_s = work.micro_batches * (work.forward_s + work.backward_s) * self.factor
        optimizer_s, other_s = work.optimizer_s * self.factor, work.other_s * self.factor
        taken_from_compute_s = ready_s - begin_s - work.backward_s * self.factor
        waited_s = taken_s - clock_s
        for_data_of_others_s = np.minimum(last_s - ready_s, waited_s.max() - waited_s)
        self.part_s = {
            "data": got_s - clock_s + for_data_of_others_s,
            "compute": compute_s,
            "exposed_communication": through_s - last_s + taken_from_compute_s,
            "straggler": last_s - ready_s - for_data_of_others_s,
            "optimizer": optimizer_s,
            "other": other_s,
        }
        self.hidden_s = max(0.0, sum(self.costs_s) - (through_s - self.tail_s - last_s))
        end_s: Seconds = through_s + optimizer_s + other_s
        return end_s

    def _backward(self, begin_s: Seconds) -> tuple[Seconds, float]:
        """When each rank has its last gradient, and when the last bucket is summed."""
        sizes = np.asarray(self.work.bucket_bytes, dtype=float)
        if self.around.ranks == 1 or not len(sizes):
            ready_s = begin_s + self.work.backward_s * self.factor
            return ready_s, float(ready_s.max())
        shares = sizes / sizes.sum() if sizes.sum() else np.full(len(sizes), 1 / len(sizes))
        ready_s, sent_s = begin_s, -np.inf
        for share, cost_s in zip(shares, self.costs_s, strict=True):
            ready_s = self._computed(ready_s, share * self.work.backward_s * self.factor)
            sent_s = self._send(max(sent_s, float(ready_s.max())), cost_s)
        return ready_s, sent_s

    def _send(self, begin_s: float, cost_s: float) -> float:
        joins = bool(self.busy) and self.busy[-1][1] == begin_s
        first_s = self.busy.pop()[0] if joins else begin_s
        self.busy.append((first_s, begin_s + cost_s))
        return begin_s + cost_s

    def _computed(self, begin_s: Seconds, work_s: Seconds) -> Seconds:
        """When `work_s` of computing is done that begins at `begin_s`, with the core shared while something is sent."""
        rate = 1 - self.around.core_share
        while self.busy and self.busy[0][1] <= float(begin_s.min()):
            self.busy.popleft()
        if rate == 1 or not self.busy:
            return begin_s + work_s
        now_s, left_s = begin_s.copy(), work_s.copy()
        for first_s, last_s in self.busy:
            alone_s = np.clip(first_s - now_s, 0, left_s)
            now_s, left_s = now_s + alone_s, left_s - alone_s
            shared_s = np.where(left_s > 0, np.clip(last_s - now_s, 0, left_s / rate if rate else np.inf), 0.0)
            now_s, left_s = now_s + shared_s, left_s - shared_s * rate
        return now_s + left_s


class _Queues:
    """Where batches come from: on each node one is prepared after the other, as long as there is room for it."""

    def __init__(self, supply: Supply, ranks: int, nodes: int, seed: int) -> None:
        self.supply, self.per_node = supply, ranks // nodes
        self.room = supply.prefetch * self.per_node
        self.free_s = [0.0] * nodes
        self.taken_s: list[deque[float]] = [deque([0.0] * self.room, maxlen=self.room) for _ in range(nodes)]
        generator = np.random.default_rng([seed, 1])
        self.jitters = [generator.permuted(np.asarray(supply.jitter, dtype=float)) for _ in range(nodes)]
        self.num_made = [0] * nodes

    def take(self, asked_s: Seconds) -> Seconds:
        """When each rank has a batch that asked for one at `asked_s`, those of a node one after the other."""
        got_s = np.empty_like(asked_s)
        for node in range(len(self.free_s)):
            first = node * self.per_node
            of_node = asked_s[first : first + self.per_node]
            for rank in first + np.argsort(of_node, kind="stable"):
                got_s[rank] = self._next(node, float(asked_s[rank]))
        return got_s

    def _next(self, node: int, asked_s: float) -> float:
        room_s = self.taken_s[node][0] if self.room else asked_s
        jitter = self.jitters[node][self.num_made[node] % len(self.jitters[node])]
        self.free_s[node] = max(self.free_s[node], room_s) + jitter / self.supply.batches_per_s
        self.num_made[node] += 1
        got_s = max(asked_s, self.free_s[node])
        self.taken_s[node].append(got_s)
        return got_s
