"""Event-based simulation of DDP training steps.

    data ─► forward ─► backward ──┬──┬──┬─► last gradient ─► wait for the sums ─► optimiser ─► other
                                  ▼  ▼  ▼ buckets, as they are ready on every rank
    communication:                ├──┤├──┤├────┤   one bucket at a time

A bucket is ready when the backward pass has computed all its gradients. Its sum over ranks starts when the slowest rank
has the bucket and the previous sum is done. If communication uses the computing core, as on CPU ranks, it takes a
fraction of that core.

Ranks differ by their jitter: each rank has the same relative step times in a different order. A single rank therefore
takes the measured time on average, and the slowest of several ranks takes longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from heartlm.extensions.scaling.hardware import Interconnect

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
    """

    ranks: int = 1
    nodes: int = 1
    network: Interconnect = field(default_factory=Interconnect)
    slowdown: float = 1.0
    core_share: float = 0.0
    jitter: Sequence[float] = (1.0,)
    by_node: bool = False


@dataclass(frozen=True)
class Simulated:
    """Simulated steps: seconds of every part of `cell.PARTS` in every step, `[num_steps]`, as means over ranks."""

    parts_s: dict[str, Seconds]

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
    # Each rank has the measured step times in another order, so that ranks wait for the slowest of a step.
    orders = np.random.default_rng(0).permuted(np.tile(jitter, (around.ranks, 1)), axis=1)

    def all_reduce_s(size: float) -> float:
        return around.network.all_reduce_s(size, around.ranks, around.nodes, by_node=around.by_node)

    costs_s = [all_reduce_s(size) for size in work.bucket_bytes]
    tail_s = all_reduce_s(TAIL_BYTES) if costs_s else 0.0
    micro_batch_s = work.forward_s + work.backward_s
    compute_s = work.micro_batches * micro_batch_s
    before_s = micro_batch_s * (work.micro_batches - 1) + work.forward_s  # only the last backward pass sends gradients
    clock_s = np.zeros(around.ranks)
    steps = list[dict[str, float]]()
    for step in range(len(jitter)):
        factor = orders[:, step] * around.slowdown
        got_s = clock_s + work.data_s * factor
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
        clock_s = through_s + parts["optimizer"] + parts["other"]
    return Simulated({name: np.array([each[name] for each in steps]) for name in steps[0]})


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
        start_s = max(sent_s, float(ready_s.max()))
        sent_s = start_s + cost_s
        # Messages that follow one another without a pause are one interval.
        busy.append((busy.pop()[0] if busy and busy[-1][1] == start_s else start_s, sent_s))
    return ready_s, sent_s


def _computed(begin_s: Seconds, work_s: Seconds, busy: Busy, rate: float) -> Seconds:
    """Return when `work_s` of computing that starts at `begin_s` is done, at rate `rate` while messages are sent."""
    while busy and busy[0][1] <= float(begin_s.min()):
        busy.popleft()
    if rate == 1 or not busy:
        return begin_s + work_s
    now_s, left_s = begin_s.copy(), work_s.copy()
    for first_s, last_s in busy:
        # Each rank computes at full speed until messages are sent, then at `rate` until they are sent or it is done.
        alone_s = np.clip(first_s - now_s, 0, left_s)
        now_s, left_s = now_s + alone_s, left_s - alone_s
        shared_s = np.where(left_s > 0, np.clip(last_s - now_s, 0, left_s / rate if rate else np.inf), 0.0)
        now_s, left_s = now_s + shared_s, left_s - shared_s * rate
    return now_s + left_s
