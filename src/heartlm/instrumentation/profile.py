"""Profile of a few steps after the warm-up with the profiler of torch, and a table that names the bottleneck.

    steps: seconds of every part ─► profile.json ─► lines for the terminal
    profiler of torch            ─► operators.txt, trace.json

The run folder contains the results in `profile/`; `trace.json` is for https://ui.perfetto.dev. Only rank 0 is profiled.
Starting and writing the profile are excluded from the metrics of the run. The profiled steps are slower than others,
and are included.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from heartlm.files import write_json
from heartlm.instrumentation.meters import PARTS, Meters

WAIT_STEPS = 3
"""Steps before profiling, to warm caches and compile."""
SEEN_STEPS = 5

WHAT_HELPS = {
    "data": "steps wait for batches: try --prefetch 2, or a faster disk for a corpus beyond memory",
    "forward_backward": "the arithmetic of the model: try --compile, more cores or ranks, bf16 on a GPU; if the trace "
    "shows gaps on a GPU, a larger --batch-size",
    "communication": "ranks wait for one another: try another --bucket-cap-mb, a larger --batch-size, or fewer ranks",
    "optimizer": "moving the weights: a larger --batch-size moves them less often for each token",
    "other": "what the loop does between the parts: a larger --batch-size does it less often for each token",
}

NUM_OPERATORS = 12


def summary(steps: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the mean seconds of each part of a step, and the largest part.

    Args:
        steps: seconds of each of `meters.PARTS` and of `other` in each step, which add up to the step.
    """
    parts_s = {name: sum(step[name] for step in steps) / len(steps) for name in (*PARTS, "other")}
    bottleneck = max(parts_s, key=lambda name: parts_s[name])
    about = {"num_steps": len(steps), "step_s": sum(parts_s.values()), "parts_s": parts_s}
    return {**about, "bottleneck": bottleneck, "what_helps": WHAT_HELPS[bottleneck]}


def table(found: Mapping[str, Any]) -> list[str]:
    """Return lines for the terminal: the parts of a step and the bottleneck."""
    step_s = found["step_s"]
    lines = [f"profile of {found['num_steps']} steps, {1e3 * step_s:.1f} ms each, the profiler's own cost included"]
    for name, taken_s in found["parts_s"].items():
        lines.append(f"  {name:<16} {1e3 * taken_s:8.2f} ms  {100 * taken_s / step_s:5.1f} %")
    return [*lines, f"bottleneck: {found['bottleneck']}: {found['what_helps']}"]


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

    def _try(self, act: Callable[[], None]) -> None:
        try:
            with self._meters.paused("profile"), _silent():
                act()
        except Exception as error:  # training continues after any failure of the profiler
            self._is_looking = False
            self._told.append(f"profile failed: {' '.join(str(error).split()) or type(error).__name__}")

    def _begin(self) -> None:
        """Start profiling; on a GPU each part of a step then synchronises."""
        if self._device.type == "cuda":
            self._meters.synchronize = lambda: torch.cuda.synchronize(self._device)
        self._is_looking = True
        self._profiler.start()

    def _end(self) -> None:
        """Stop profiling, and write the trace and the tables."""
        if not self._is_looking:
            return
        self._is_looking = False
        self._profiler.stop()
        self._meters.synchronize = self._synchronize
        if not self._steps:
            self._told.append("profile: the run ended before a step was seen")
            return
        found = summary(self._steps)
        own_time = "self_device_time_total" if self._device.type == "cuda" else "self_cpu_time_total"
        operators = self._profiler.key_averages().table(sort_by=own_time, row_limit=NUM_OPERATORS)
        write_json(self._folder / "profile.json", found)
        (self._folder / "operators.txt").write_text(operators, encoding="utf-8")
        self._profiler.export_chrome_trace(str(self._folder / "trace.json"))
        files = "profile.json, operators.txt, and trace.json for https://ui.perfetto.dev"
        self._told += [*table(found), f"{self._folder}: {files}"]


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
