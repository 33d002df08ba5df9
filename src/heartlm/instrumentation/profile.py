"""Profile of a few steps after the warm-up with the profiler of torch, and a table that names the bottleneck.

    steps: seconds of every part ─┐
    operators: calls and seconds ─┴─► a summary (profile.json) ─► lines for the terminal

The run folder contains the results in `profile/`: `profile.json`, and `trace.json` for https://ui.perfetto.dev. Only
rank 0 is profiled. Starting and writing the profile are excluded from the metrics of the run. The profiled steps are
slower than others, and are included.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity

from heartlm.files import write_json
from heartlm.instrumentation.meters import Meters

WAIT_STEPS = 3
"""Steps before profiling, to warm caches and compile."""
SEEN_STEPS = 5

_BACKWARD = "autograd::engine::evaluate_function"
_NOT_THE_MODEL = ("Optimizer.", "nccl")


PARTS = ("data", "forward", "backward", "communication", "optimizer", "other")

WHAT_HELPS = {
    "data": "steps wait for batches: try --prefetch 2, a faster disk, or --order blocks for a corpus beyond memory",
    "forward": "the arithmetic of the model: try --compile, more cores or ranks, bf16 on a GPU",
    "backward": "the arithmetic of the model: try --compile, more cores or ranks, bf16 on a GPU",
    "communication": "ranks wait for one another: try another --bucket-cap-mb, a larger --batch-size, or fewer ranks",
    "optimizer": "moving the weights: a larger --batch-size moves them less often for each token",
    "other": "what the loop does between the parts: a larger --batch-size does it less often for each token",
}
WAITS_FOR_CPU = "the GPU computes {:.0%} of the time and waits for the CPU: try a larger --batch-size or --compile"
IDLE = 0.5
"""Fraction of busy time below which a GPU counts as waiting for the CPU."""

NUM_OPERATORS, NUM_SHOWN = 12, 4


class Operator(NamedTuple):
    """One operator of torch.

    Attributes:
        name: name in torch.
        calls: number of calls in all profiled steps.
        seconds: own time on the compute device, without nested operators.
    """

    name: str
    calls: int
    seconds: float


def summary(
    steps: Sequence[Mapping[str, float]],
    operators: Sequence[Operator],
    backward_share: float | None = None,
    device_busy_s: float | None = None,
) -> dict[str, Any]:
    """Return means per step, the largest part, and the slowest operators.

    Args:
        steps: seconds of `data`, `forward_backward`, `communication`, `optimizer` and `other` in each step, which add
            up to the step, and of `forward` if measured.
        operators: all operators recorded by torch.
        backward_share: fraction of the backward pass in `forward_backward`, if `forward` was not measured; else None.
        device_busy_s: busy time of the GPU in s over all steps; None on a CPU.
    """
    mean = {name: sum(step.get(name, 0.0) for step in steps) / len(steps) for name in steps[0]}
    both_s = mean["forward_backward"]
    forward_s = mean.get("forward", both_s * (1 - (backward_share or 0.0)))
    parts_s = mean | {"forward": min(forward_s, both_s), "backward": max(0.0, both_s - forward_s)}
    parts_s = {name: parts_s[name] for name in PARTS}
    step_s = sum(parts_s.values())
    bottleneck = max(parts_s, key=lambda name: parts_s[name])
    busy = None if device_busy_s is None else min(1.0, device_busy_s / (step_s * len(steps)))
    longest = sorted(operators, key=lambda operator: -operator.seconds)[:NUM_OPERATORS]
    return {
        "num_steps": len(steps),
        "step_s": step_s,
        "parts_s": parts_s,
        "bottleneck": bottleneck,
        "what_helps": WAITS_FOR_CPU.format(busy) if busy is not None and busy < IDLE else WHAT_HELPS[bottleneck],
        "device_busy_share": busy,
        "operators": [
            {"name": name, "calls_per_step": calls / len(steps), "self_s": seconds / len(steps)}
            for name, calls, seconds in longest
        ],
    }


def table(found: Mapping[str, Any]) -> list[str]:
    """Return lines for the terminal: the parts of a step, the slowest operators, and the bottleneck."""
    step_s, operators = found["step_s"], found["operators"][:NUM_SHOWN]
    lines = [f"profile of {found['num_steps']} steps, {1e3 * step_s:.1f} ms each, the profiler's own cost included"]
    for name, taken_s in found["parts_s"].items():
        share = taken_s / step_s
        lines.append(f"  {name:<14} {1e3 * taken_s:8.2f} ms  {100 * share:5.1f} %  {'█' * round(30 * share)}".rstrip())
    if operators:
        longest = ", ".join(f"{each['name']} {1e3 * each['self_s']:.3f} ms" for each in operators)
        lines.append(f"operators that took longest in a step, by themselves: {longest}")
    lines.append(f"bottleneck: {found['bottleneck']}: {found['what_helps']}")
    return lines


class Profiling:
    """Profiles `SEEN_STEPS` steps after `WAIT_STEPS`.

    Args:
        folder: output folder.
        meters: meters of this rank.
        device: compute device.
        say: function that prints a message to the user at the end of the run.
    """

    def __init__(self, folder: Path, meters: Meters, device: torch.device, say: Callable[[str], None]) -> None:
        self._folder, self._meters, self._device, self._say = folder, meters, device, say
        self._num_steps, self._is_looking = 0, False
        self._steps: list[dict[str, float]] = []
        self._told: list[str] = []
        self._synchronize = meters.synchronize
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self._profiler: Any = torch.profiler.profile(activities=activities)

    def add(self, part_s: dict[str, float]) -> None:
        """Add the parts of a finished step, before `stepped`."""
        if self._is_looking:
            self._steps.append(part_s)

    def stepped(self) -> None:
        """Start or stop profiling between two steps."""
        self._num_steps += 1
        if self._num_steps == WAIT_STEPS:
            self._try(self._begin)
        elif self._num_steps == WAIT_STEPS + SEEN_STEPS:
            self._try(self._end)

    def close(self) -> None:
        """Stop profiling if active, and print the results."""
        self._try(self._end)
        if self._num_steps < WAIT_STEPS:
            self._told.append(f"profile: the run took {self._num_steps} steps, a look begins after {WAIT_STEPS}")
        for line in self._told:
            self._say(line)
        self._told = []

    def _try(self, act: Callable[[], None]) -> None:
        try:
            with self._meters.paused("profile"):
                act()
        except Exception as error:  # training continues after any failure of the profiler
            self._is_looking = False
            self._told.append(f"profile failed: {' '.join(str(error).split()) or type(error).__name__}")

    def _begin(self) -> None:
        """Start profiling; on a GPU each part of a step then synchronises."""
        if self._device.type == "cuda":
            self._meters.synchronize = lambda: torch.cuda.synchronize(self._device)
        self._is_looking = True
        with _silent():
            self._profiler.start()

    def _end(self) -> None:
        """Stop profiling, and write the trace and the table."""
        if not self._is_looking:
            return
        self._is_looking = False
        with _silent():
            self._profiler.stop()
        self._meters.synchronize = self._synchronize
        if not self._steps:
            self._told.append("profile: the run ended before a step was seen")
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(self._folder / "trace.json"))
        on_gpu = self._device.type == "cuda"
        averages = [each for each in self._profiler.key_averages() if not each.is_user_annotation]
        own_us = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        by_cpu = [each for each in averages if _is_cpu(each)]  # excludes the kernels, which are listed separately
        operators = [Operator(each.key, each.count, getattr(each, own_us) / 1e6) for each in by_cpu]
        kernels_us = sum(each.self_device_time_total for each in averages if not _is_cpu(each))
        found = summary(
            self._steps,
            operators,
            backward_share=_backward_share(self._profiler.events()) if on_gpu else None,
            device_busy_s=kernels_us / 1e6 if on_gpu else None,
        )
        write_json(self._folder / "profile.json", found)
        self._told += [*table(found), f"{self._folder}: profile.json, and trace.json for https://ui.perfetto.dev"]


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress standard error: the profiler of torch prints when it starts and stops."""
    said, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(said, 2)
        os.close(said)
        os.close(nowhere)


def _is_cpu(event: Any) -> bool:
    return bool(event.device_type.name == "CPU")


def _backward_share(events: Any) -> float | None:
    """Return the fraction of the kernel time of the model spent in the backward pass; None without kernels."""
    on_cpu = [each for each in events if _is_cpu(each)]
    backward_us = sum(each.device_time_total for each in on_cpu if each.name.startswith(_BACKWARD))
    others_us = sum(each.device_time_total for each in on_cpu if each.name.startswith(_NOT_THE_MODEL))
    all_us = sum(each.self_device_time_total for each in on_cpu) - others_us
    return backward_us / all_us if all_us > 0 else None
