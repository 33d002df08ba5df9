"""Training steps of TinyECG, timed by parts: what the host prepares, what travels, what is computed.

|- data -|- H2D -|----- compute -----|- data -|- H2D -| …        one after the other, as on a CPU
|- data -|- data -|- data …          on a GPU the host may run ahead: then the parts are more than the step
         |- H2D -|- compute -|- H2D -|- compute -|
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

from bench.measure import Timed, interleaved
from bench.shards import Shards
from bench.ways import Places, Way, batches_of, reference
from heartlm.errors import HeartlmError
from heartlm.extensions.conv1d import replace_conv1d
from heartlm.models.tiny_ecg import TinyECG

LEARNING_RATE = 1e-2
"""Of plain SGD, as in the study."""

CHECKED_STEPS, CLOSE = 10, {"cpu": 1e-5, "cuda": 1e-2}
"""Losses of ways with the same order differ by less than this fraction: a GPU adds up in an order of its own."""


@dataclass(frozen=True)
class Setting:
    """How a turn trains.

    Attributes:
        batch_size: windows of a batch.
        num_steps: of a turn that count, after one that does not.
        precision: fp32, or bf16 by autocast.
        convolution: torch's or heartlm's.
    """

    batch_size: int
    num_steps: int
    precision: str
    convolution: str = "torch"


@dataclass(frozen=True)
class Steps:
    """What the steps of one way took.

    Attributes:
        data_ms: of every step, on the host.
        h2d_ms: of every step, empty where nothing travels.
        compute_ms: of every step.
        losses: of every step of the last turn.
        timed: whole turns, in windows.
    """

    data_ms: list[float]
    h2d_ms: list[float]
    compute_ms: list[float]
    losses: list[float]
    timed: Timed

    def medians_ms(self) -> tuple[float, float | None, float]:
        """Data, H2D and compute of a step in the middle of all; no H2D where nothing travels."""
        travelled = statistics.median(self.h2d_ms) if self.h2d_ms else None
        return statistics.median(self.data_ms), travelled, statistics.median(self.compute_ms)


def timed_ways(
    ways: Mapping[str, Way], setting: Setting, rounds: int, before: Callable[[], None] | None = None
) -> dict[str, Steps]:
    """Let ways take turns of training the same network from the same start.

    Args:
        ways: by name.
        setting: of every turn.
        rounds: turns of each way that count.
        before: called before every turn, and not timed.

    Raises:
        HeartlmError: ways in the same order trained to other losses: they do not give the same windows.
    """
    size = setting.batch_size, setting.num_steps + 1
    places = {name: batches_of(len(way.shards), *size, way.shuffled) for name, way in ways.items()}
    turns: dict[str, list[Steps]] = {name: [] for name in ways}

    def turn(name: str) -> None:
        if before is not None:
            before()
        turns[name].append(train(ways[name], places[name], setting))

    interleaved({name: lambda name=name: turn(name) for name in ways}, rounds)  # type: ignore[misc]
    found = {name: _together(taken[1:]) for name, taken in turns.items()}
    _same_losses(ways, found)
    return found


def _together(turns: Sequence[Steps]) -> Steps:
    """All turns as one: every step, and the seconds of each turn."""
    data_ms, h2d_ms, compute_ms = (
        list(chain.from_iterable(parts))
        for parts in zip(*((turn.data_ms, turn.h2d_ms, turn.compute_ms) for turn in turns), strict=True)
    )
    seconds = tuple(turn.timed.seconds[0] for turn in turns)
    return Steps(data_ms, h2d_ms, compute_ms, turns[-1].losses, Timed(seconds, turns[-1].timed.amount))


def train(way: Way, places: list[Places], setting: Setting) -> Steps:
    """Train a new network on the batches at `places`; the first step, in which workers start, does not count."""
    device = way.device
    torch.manual_seed(0)
    model = TinyECG().to(device)
    if setting.convolution == "heartlm":
        replace_conv1d(model)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    clock: HostClock = DeviceClock() if device.type == "cuda" else HostClock()
    data_ms, losses, begin_s = [], [], 0.0
    prepared = way.prepare(places)
    for step in range(len(places)):
        if step == 1:
            clock.wait()
            begin_s = time.perf_counter()
        asked_s = time.perf_counter()
        ready = next(prepared)
        data_ms.append(1e3 * (time.perf_counter() - asked_s))
        clock.mark()
        windows, labels = way.send(ready)
        clock.mark()
        with torch.autocast(device.type, torch.bfloat16, enabled=setting.precision == "bf16"):
            loss = F.cross_entropy(model(windows), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.mark()
        losses.append(loss.detach())
    clock.wait()
    elapsed_s = time.perf_counter() - begin_s
    prepared.close()
    sent_ms, computed_ms = clock.between_ms()
    if device.type == "cpu":  # nothing travels: what sending takes is another part of preparing
        data_ms, sent_ms = [ms + more for ms, more in zip(data_ms, sent_ms, strict=True)], []
    timed = Timed((elapsed_s,), setting.num_steps * setting.batch_size)
    return Steps(data_ms[1:], sent_ms[1:], computed_ms[1:], torch.stack(losses).tolist(), timed)


class HostClock:
    """Marks in time where the host computes: three a step, around what travels and what is computed."""

    def __init__(self) -> None:
        self.marks_s: list[float] = []

    def mark(self) -> None:
        """Note the time."""
        self.marks_s.append(time.perf_counter())

    def wait(self) -> None:
        """Nothing is computed elsewhere."""

    def between_ms(self) -> tuple[list[float], list[float]]:
        """Milliseconds of both parts of every step."""
        marks_ms = 1e3 * np.reshape(self.marks_s, (-1, 3))
        return (marks_ms[:, 1] - marks_ms[:, 0]).tolist(), (marks_ms[:, 2] - marks_ms[:, 1]).tolist()


class DeviceClock(HostClock):
    """The same by events of a GPU, which the host does not wait for."""

    def __init__(self) -> None:
        self.events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Put an event behind what was asked of the GPU so far."""
        self.events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self.events[-1].record()

    def wait(self) -> None:
        """Until the GPU has done all it was asked."""
        torch.cuda.synchronize()

    def between_ms(self) -> tuple[list[float], list[float]]:
        """Milliseconds of both parts of every step."""
        steps = [self.events[first : first + 3] for first in range(0, len(self.events), 3)]
        return [a.elapsed_time(b) for a, b, _ in steps], [b.elapsed_time(c) for _, b, c in steps]


def check_same_windows(shards: Shards, ways: Mapping[str, Way], batch_size: int) -> None:
    """See that every way gives the windows and labels that lie in the shards, before anything is timed.

    Raises:
        HeartlmError: one does not.
    """
    for name, way in ways.items():
        places = batches_of(len(shards), batch_size, 2, way.shuffled)
        prepared = way.prepare(places)
        for each in places:
            windows, labels = way.send(next(prepared))
            expected, classes = reference(shards, each)
            if not np.array_equal(windows[:, 0].cpu().numpy(), expected) or labels.tolist() != classes:
                raise HeartlmError(f"{name}: other windows than the shards hold: a defect of heartlm, report it")
        prepared.close()


def _same_losses(ways: Mapping[str, Way], found: Mapping[str, Steps]) -> None:
    for shuffled in (True, False):
        names = [name for name, way in ways.items() if way.shuffled == shuffled]
        for name in names[1:]:
            ours, first = (found[each].losses[:CHECKED_STEPS] for each in (name, names[0]))
            if not np.allclose(ours, first, rtol=CLOSE[ways[name].device.type], atol=0.0):
                raise HeartlmError(f"{name}: other losses than {names[0]}: a defect of heartlm, report it")
