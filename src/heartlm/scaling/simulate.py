"""Event-based simulation of DDP and FSDP2 training steps.

    data ─► forward ─► backward ──┬──┬──┬─► last gradient ─► wait for the sums ─► optimiser ─► other
                                  ▼  ▼  ▼ buckets, as they are ready on every rank
    communication:                ├──┤├──┤├────┤   one bucket at a time

A bucket is ready when the backward pass has computed all its gradients. Its sum over ranks starts when the slowest rank
has the bucket and the previous sum is done. If communication uses the computing core, as on CPU ranks, it takes a
fraction of that core.

With FSDP2, the parameters of a block are gathered before its forward and again before its backward pass, while the
previous block is computed. The gradients of a block are summed and scattered as soon as the backward pass has them:

    compute:         wait ─► block 0 ─► block 1 ─► … ─► block 1 back ─► block 0 back ─► wait ─► optimiser
    communication:   gather 0, gather 1, …            gather 0, scatter 1, scatter 0

Ranks differ by their jitter: each rank has the same relative step times in a different order. A single rank therefore
takes the measured time on average, and the slowest of several ranks takes longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from heartlm.scaling.hardware import Network

Seconds = NDArray[np.float64]

Busy = deque[tuple[float, float]]
"""Intervals in which messages are sent; messages without a gap form one entry."""

TAIL_BYTES = 64
"""Size of the losses, which ranks add up after the backward pass."""


@dataclass(frozen=True)
class RankWork:
    """Work of one rank in a step when it runs alone.

    Attributes:
        forward_s: forward pass of one micro-batch in seconds.
        backward_s: backward pass of one micro-batch in seconds.
        optimizer_s: gradient clipping and optimiser step in seconds.
        data_s: preparation of batches in seconds, if it is not done ahead.
        other_s: remaining time in seconds.
        micro_batches: number of micro-batches of a step; gradients are sent in the last.
        bucket_bytes: bytes of every bucket, in the order in which they are ready.
        block_bytes: with FSDP2, parameter bytes of every block in the order of the forward pass; otherwise empty.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float = 0.0
    data_s: float = 0.0
    other_s: float = 0.0
    micro_batches: int = 1
    bucket_bytes: Sequence[float] = ()
    block_bytes: Sequence[float] = ()

    @property
    def alone_s(self) -> float:
        """Seconds of a step without other ranks."""
        compute_s = self.micro_batches * (self.forward_s + self.backward_s)
        return self.data_s + compute_s + self.optimizer_s + self.other_s


@dataclass(frozen=True)
class Surroundings:
    """Environment of the ranks.

    Attributes:
        ranks: total number of ranks on all nodes.
        nodes: number of nodes; it divides `ranks`.
        network: network between ranks.
        slowdown: factor on computing time due to other ranks of the node; 1 for none.
        core_share: fraction of the computing core that communication uses, 0 to 1.
        jitter: relative step times of one rank, around 1; a step is simulated for each.
        by_node: whether gradients are added up within each node first, and then by one rank per node.
        seed: random seed of the order of jitter.
    """

    ranks: int = 1
    nodes: int = 1
    network: Network = field(default_factory=Network)
    slowdown: float = 1.0
    core_share: float = 0.0
    jitter: Sequence[float] = (1.0,)
    by_node: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Simulated:
    """Simulated steps, as means over ranks.

    Attributes:
        parts_s: seconds of every part of `cell.PARTS` in every step, `[num_steps]` each; they add up to the step.
        hidden_communication_s: hidden communication per step in seconds.
    """

    parts_s: dict[str, Seconds]
    hidden_communication_s: float

    @property
    def step_s(self) -> Seconds:
        """Seconds of every step, `[num_steps]`."""
        steps: Seconds = sum(self.parts_s.values(), start=np.zeros(1))
        return steps

    def typical_part_s(self) -> dict[str, float]:
        """Seconds of every part, over the middle half of the steps; they add up to `typical_s(step_s)`."""
        middle = middle_half(self.step_s)
        return {name: float(each[middle].mean()) for name, each in self.parts_s.items()}


def middle_half(step_s: Sequence[float] | Seconds) -> NDArray[np.intp]:
    """Return the indices of the steps without the shortest and the longest quarter."""
    left_out = len(step_s) // 4
    order = np.argsort(np.asarray(step_s), kind="stable")
    return order[left_out : len(order) - left_out]


def typical_s(step_s: Sequence[float] | Seconds) -> float:
    """Return the mean of the middle half, which excludes steps that another program delayed."""
    return float(np.asarray(step_s)[middle_half(step_s)].mean())


def simulate(work: RankWork, around: Surroundings) -> Simulated:
    """Simulate as many steps as `around.jitter` has entries; arrays of times are `[ranks]`."""
    jitter = np.asarray(around.jitter, dtype=float)
    orders = np.random.default_rng(around.seed).permuted(np.tile(jitter, (around.ranks, 1)), axis=1)

    def all_reduce_s(size: float) -> float:
        return around.network.all_reduce_s(size, around.ranks, around.nodes, by_node=around.by_node)

    costs_s = [all_reduce_s(size) for size in work.block_bytes or work.bucket_bytes]
    tail_s = all_reduce_s(TAIL_BYTES) if costs_s else 0.0
    micro_batch_s = work.forward_s + work.backward_s
    compute_s = work.micro_batches * micro_batch_s
    sent_in_step_s = sum(costs_s) * (work.micro_batches + 0.5 if work.block_bytes else 1)
    before_s = micro_batch_s * (work.micro_batches - 1) + work.forward_s
    clock_s = np.zeros(around.ranks)
    steps, hidden_s = list[dict[str, float]](), list[float]()
    for step in range(len(jitter)):
        factor = orders[:, step] * around.slowdown
        got_s = clock_s + work.data_s * factor
        if work.block_bytes:
            ready_s, sent_s = _sharded(got_s, work, factor, costs_s, around.core_share)
        else:
            ready_s, sent_s = _backward(got_s + before_s * factor, work, factor, costs_s, around.core_share)
        last_s = float(ready_s.max())
        through_s = max(sent_s, last_s) + tail_s
        parts = {
            "data": got_s - clock_s,
            "compute": compute_s * factor,
            "exposed_communication": through_s - last_s + (ready_s - got_s - compute_s * factor),
            "straggler": last_s - ready_s,
            "optimizer": work.optimizer_s * factor,
            "other": work.other_s * factor,
        }
        steps.append({name: float(each.mean()) for name, each in parts.items()})
        exposed_s = float(parts["exposed_communication"].mean()) - tail_s
        hidden_s.append(max(0.0, sent_in_step_s - exposed_s))
        clock_s = through_s + parts["optimizer"] + parts["other"]
    return Simulated({name: np.array([each[name] for each in steps]) for name in steps[0]}, float(np.mean(hidden_s)))


def _backward(
    begin_s: Seconds, work: RankWork, factor: Seconds, costs_s: Sequence[float], core_share: float
) -> tuple[Seconds, float]:
    """Return when each rank has its last gradient, and when the last bucket is summed."""
    sizes = np.asarray(work.bucket_bytes, dtype=float)
    if len(begin_s) == 1 or not len(sizes):
        ready_s = begin_s + work.backward_s * factor
        return ready_s, float(ready_s.max())
    fractions = sizes / sizes.sum() if sizes.sum() else np.full(len(sizes), 1 / len(sizes))
    busy: Busy = deque()
    ready_s, sent_s = begin_s, -np.inf
    for fraction, cost_s in zip(fractions, costs_s, strict=True):
        ready_s = _computed(ready_s, fraction * work.backward_s * factor, busy, 1 - core_share)
        sent_s = _sent(busy, max(sent_s, float(ready_s.max())), cost_s)
    return ready_s, sent_s


def _sent(busy: Busy, start_s: float, cost_s: float) -> float:
    """Return when a message of `cost_s` that starts at `start_s` has been sent, and add it to `busy`."""
    first_s = busy.pop()[0] if busy and busy[-1][1] == start_s else start_s
    busy.append((first_s, start_s + cost_s))
    return start_s + cost_s


def _sharded(
    begin_s: Seconds, work: RankWork, factor: Seconds, costs_s: Sequence[float], core_share: float
) -> tuple[Seconds, float]:
    """Return when each rank has its last gradient, and when the last one is scattered; `costs_s` are all-reduce times.

    An all-gather and a reduce-scatter each cost half of an all-reduce (Thakur, Rabenseifner & Gropp 2005). The next
    block is gathered while one is computed, which is the default of FSDP2.
    """
    if len(begin_s) == 1:
        ready_s = begin_s + work.micro_batches * (work.forward_s + work.backward_s) * factor
        return ready_s, float(ready_s.max())
    fractions = np.asarray(work.block_bytes, dtype=float) / sum(work.block_bytes)
    forward = [(fraction * work.forward_s, cost_s / 2) for fraction, cost_s in zip(fractions, costs_s, strict=True)]
    backward = [(fraction * work.backward_s, cost_s / 2) for fraction, cost_s in zip(fractions, costs_s, strict=True)]
    passes = [(forward, False), (backward[::-1], False)] * (work.micro_batches - 1)
    passes += [(forward, False), (backward[::-1], True)]
    ready_s, sent_s = begin_s, -np.inf
    busy: Busy = deque()

    for blocks, scatters in passes:
        arrived_s = sent_s = _sent(busy, max(sent_s, float(ready_s.max())), blocks[0][1])
        for place, (work_s, half_s) in enumerate(blocks):
            ready_s = np.maximum(ready_s, arrived_s)
            if place + 1 < len(blocks):
                arrived_s = sent_s = _sent(busy, max(sent_s, float(ready_s.max())), blocks[place + 1][1])
            ready_s = _computed(ready_s, work_s * factor, busy, 1 - core_share)
            if scatters:
                sent_s = _sent(busy, max(sent_s, float(ready_s.max())), half_s)
    return ready_s, sent_s


def _computed(begin_s: Seconds, work_s: Seconds, busy: Busy, rate: float) -> Seconds:
    """Return when `work_s` of computing that starts at `begin_s` is done, at rate `rate` while messages are sent."""
    while busy and busy[0][1] <= float(begin_s.min()):
        busy.popleft()
    if rate == 1 or not busy:
        return begin_s + work_s
    now_s, left_s = begin_s.copy(), work_s.copy()
    for first_s, last_s in busy:
        alone_s = np.clip(first_s - now_s, 0, left_s)
        now_s, left_s = now_s + alone_s, left_s - alone_s
        shared_s = np.where(left_s > 0, np.clip(last_s - now_s, 0, left_s / rate if rate else np.inf), 0.0)
        now_s, left_s = now_s + shared_s, left_s - shared_s * rate
    return now_s + left_s
