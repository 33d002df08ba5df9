"""Profile of a few steps after the warm-up with the profiler of torch, and the part of a step that takes longest.

    profiler of torch                     ─► operators.txt, trace.json
    mean of every part of all steps       ─► the largest part, and what makes it smaller, on the terminal

The run folder contains the results in `profile/`; `trace.json` is for https://ui.perfetto.dev. Only rank 0 is profiled.
Starting and writing the profile are excluded from the metrics of the run. The profiled steps are slower than others,
and are included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

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


def bottleneck(means: Mapping[str, float]) -> str:
    """Return a line that names the largest part of a step, from the metrics of `Meters.totals`."""
    name = max((*PARTS, "other"), key=lambda part: means[f"{part}_s"])
    times = f"{1e3 * means[f'{name}_s']:.1f} of {1e3 * means['step_s']:.1f} ms a step"
    return f"bottleneck: {name}, {times}: {WHAT_HELPS[name]}"


class Profiling:
    """Profiles `SEEN_STEPS` steps after `WAIT_STEPS`.

    Args:
        folder: output folder.
        meters: meters of this rank.
        device: compute device.
        say: function that prints a message to the user.
    """

    def __init__(self, folder: Path, meters: Meters, device: torch.device, say: Callable[[str], None]) -> None:
        self._folder, self._meters, self._device, self._say = folder, meters, device, say
        self._num_steps, self._is_looking = 0, False
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self._profiler: Any = torch.profiler.profile(activities=activities)

    def stepped(self) -> None:
        """Start or stop profiling between two steps."""
        self._num_steps += 1
        if self._num_steps == WAIT_STEPS:
            self._is_looking = True
            self._try(self._profiler.start)
        elif self._num_steps == WAIT_STEPS + SEEN_STEPS:
            self._end()

    def close(self) -> None:
        """Stop profiling if active, and print the largest part of a step."""
        self._end()
        if self._num_steps < WAIT_STEPS:
            self._say(f"profile: the run took {self._num_steps} steps, a look begins after {WAIT_STEPS}")
        elif means := self._meters.totals():
            self._say(bottleneck(means))

    def _end(self) -> None:
        if self._is_looking:
            self._try(self._write)
        self._is_looking = False

    def _try(self, act: Callable[[], None]) -> None:
        try:
            with self._meters.paused("profile"):
                act()
        except Exception as error:  # training continues after any failure of the profiler
            self._is_looking = False
            self._say(f"profile failed: {' '.join(str(error).split()) or type(error).__name__}")

    def _write(self) -> None:
        """Stop profiling, and write the trace and the table of operators."""
        self._profiler.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        own_time = "self_device_time_total" if self._device.type == "cuda" else "self_cpu_time_total"
        operators = self._profiler.key_averages().table(sort_by=own_time, row_limit=NUM_OPERATORS)
        (self._folder / "operators.txt").write_text(operators, encoding="utf-8")
        self._profiler.export_chrome_trace(str(self._folder / "trace.json"))
        self._say(f"{self._folder}: operators.txt, and trace.json for https://ui.perfetto.dev")
