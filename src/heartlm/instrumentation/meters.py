"""Definitions of the speed metrics of training.

    |- data -|------ forward_backward ------|- communication -|- optimizer -|- other -|
    |------------------------------------- a step ------------------------------------|

A step lasts from the end of the previous step to its own end, without pauses (validation, checkpoints). Work between
steps counts as `other`. Time in nested parts counts only for the inner part, so the parts and `other` add up to the
step. Time to prepare batches of several steps together is divided equally among them. The first two steps, which warm
up caches and compile, are excluded.
"""

from __future__ import annotations

import math
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from heartlm.instrumentation.spans import Spans

PARTS = ("data", "forward_backward", "communication", "optimizer")

OnStep = Callable[[int, int, float, dict[str, float]], None]
"""Callback with step number, tokens, seconds, and seconds of every part."""


def _no_sums() -> dict[str, float]:
    """Return zero totals; `energy_j` becomes NaN without an energy counter."""
    return dict.fromkeys(("num_steps", "num_tokens", "busy_s", "energy_j", *PARTS), 0.0)


@dataclass
class Meters:
    """Time, work and energy of training on one rank.

    GPU kernels run asynchronously; with `synchronize`, each part waits for its own kernels.

    Attributes:
        flops_per_token: see `utilization.flops_per_token`; None omits `mfu`.
        peak_flops: peak of all devices together, see `utilization.peak_flops`; None (unknown) omits `mfu`.
        energy_j: monotonic energy counter in J, see `energy.energy_counter`; None omits `energy_j_per_mtoken`.
        sum_over_ranks: function that sums a value over ranks; every rank then calls `line` at the same steps.
        peak_device_memory_bytes: function that reads the peak memory of the device; None on a CPU.
        spans: writer of the timeline; None writes none.
        synchronize: function that waits for the device.
        on_step: callback after every step, including warm-up.
        now_s: monotonic clock in s.
    """

    WARM_UP_STEPS = 2

    flops_per_token: float | None = None
    peak_flops: float | None = None
    energy_j: Callable[[], float] | None = None
    sum_over_ranks: Callable[[float], float] = float
    peak_device_memory_bytes: Callable[[], int] | None = None
    spans: Spans | None = None
    synchronize: Callable[[], object] | None = None
    on_step: OnStep | None = None
    now_s: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._begin_s = self._mark_s = self.now_s()
        self._step = 0
        self._num_steps = 0
        self._total, self._line, self._steps_s = _no_sums(), _no_sums(), list[float]()
        self._mark_j = self._read_j()
        self._inner_s = [0.0]
        self._shared_s, self._num_shares = 0.0, 0
        self._is_paused = False
        self._clear()

    def _clear(self) -> None:
        self._num_tokens, self._paused_s, self._part_s = 0, 0.0, dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Measure step `step`: the context, and the time since the previous step."""
        begin_s, self._step = self.now_s(), step
        if self._num_shares:
            self._num_shares -= 1
            self._part_s["data"] += self._shared_s
            self._paused_s -= self._shared_s
        yield
        now_s = self.now_s()
        self._write("step", begin_s, now_s)
        self._num_steps += 1
        busy_s = now_s - self._mark_s - self._paused_s
        if self.on_step is not None:
            other_s = busy_s - sum(self._part_s.values())
            self.on_step(step, self._num_tokens, busy_s, {**self._part_s, "other": other_s})
        if self._num_steps > self.WARM_UP_STEPS:
            self._steps_s.append(busy_s)
            step_sums = {"num_steps": 1, "num_tokens": self._num_tokens, "busy_s": busy_s, **self._part_s}
            for name, value in step_sums.items():
                self._line[name] += value
                self._total[name] += value
        elif self._num_steps == self.WARM_UP_STEPS:
            self._mark_j = self._read_j()
        self._mark_s = now_s
        self._clear()

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Measure a part of a step; a name not in `PARTS`, or a span in a pause, is only written to the timeline."""
        counts = name in PARTS and not self._is_paused
        begin_s = self.now_s()
        if counts:
            self._inner_s.append(0.0)
        yield
        if self.synchronize is not None and name in PARTS:
            self.synchronize()
        now_s = self.now_s()
        self._write(name, begin_s, now_s)
        if counts:
            self._part_s[name] += now_s - begin_s - self._inner_s.pop()  # parts within this one count for themselves
            self._inner_s[-1] += now_s - begin_s

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Exclude the context from all metrics, for validation and checkpoints."""
        outermost, self._is_paused = not self._is_paused, True
        begin_s, begin_j = self.now_s(), self._read_j()
        try:
            yield
        finally:  # training continues after an error of the profiler or of TensorBoard
            now_s = self.now_s()
            self._write(name, begin_s, now_s)
            if outermost:
                self._is_paused = False
                self._inner_s[-1] += now_s - begin_s
                self._paused_s += now_s - begin_s
                self._mark_j += self._read_j() - begin_j

    def share_data(self, num_steps: int) -> None:
        """Divide the data time of this step equally among it and the next `num_steps` − 1 steps.

        Batches of several steps are prepared together. Without this, steps after the first would have no data time, and
        a short measurement after the warm-up would count none. Spans keep the actual times.
        """
        if num_steps > 1:
            self._shared_s, self._num_shares = self._part_s["data"] / num_steps, num_steps - 1
            self._paused_s += self._part_s["data"] - self._shared_s
            self._part_s["data"] = self._shared_s

    def count(self, num_tokens: int) -> None:
        """Add valid tokens of all ranks to this step."""
        self._num_tokens += num_tokens

    def line(self) -> dict[str, float]:
        """Return the metrics of the steps since the last call, and reset; empty during the warm-up."""
        if not self._line["num_steps"]:
            return {}
        now_j = self._read_j()
        self._line["energy_j"] = self.sum_over_ranks(now_j - self._mark_j)
        self._total["energy_j"] += self._line["energy_j"]
        numbers = self._numbers(self._line) | {
            "step_median_s": statistics.median(self._steps_s),
            "step_p95_s": sorted(self._steps_s)[math.ceil(0.95 * len(self._steps_s)) - 1],
        }
        self._line, self._steps_s, self._mark_j = _no_sums(), [], now_j
        return numbers

    def totals(self) -> dict[str, float]:
        """Return the metrics of all steps since the warm-up; energy up to the last line."""
        return self._numbers(self._total) if self._total["num_steps"] else {}

    def used_j(self) -> float | None:
        """Return the energy in J of all ranks from the warm-up to the last line; None without a counter."""
        return None if self.energy_j is None else self._total["energy_j"]

    def elapsed_s(self) -> float:
        """Return seconds since the run started or was resumed."""
        return self.now_s() - self._begin_s

    def remaining_s(self, num_steps: int) -> float:
        """Return the estimated seconds of `num_steps` more steps; NaN during the warm-up."""
        totals = self._total
        return totals["busy_s"] / totals["num_steps"] * num_steps if totals["num_steps"] else math.nan

    def _numbers(self, sums: dict[str, float]) -> dict[str, float]:
        num_steps, busy_s = sums["num_steps"], max(sums["busy_s"], 1e-9)
        tokens_per_s = sums["num_tokens"] / busy_s
        numbers = {"tokens_per_s": tokens_per_s, "data_wait_share": sums["data"] / busy_s}
        numbers["step_s"] = sums["busy_s"] / num_steps
        numbers |= {f"{name}_s": sums[name] / num_steps for name in PARTS}
        numbers["other_s"] = (sums["busy_s"] - sum(sums[name] for name in PARTS)) / num_steps
        if self.flops_per_token is not None and self.peak_flops is not None:
            numbers["mfu"] = tokens_per_s * self.flops_per_token / self.peak_flops
        if sums["num_tokens"] and not math.isnan(sums["energy_j"]):
            numbers["energy_j_per_mtoken"] = sums["energy_j"] / (sums["num_tokens"] / 1e6)
        numbers["peak_memory_bytes"] = peak_memory_bytes()
        if self.peak_device_memory_bytes is not None:
            numbers["peak_device_memory_bytes"] = self.peak_device_memory_bytes()
        return numbers

    def _write(self, name: str, begin_s: float, end_s: float) -> None:
        if self.spans is not None:
            self.spans.add(name, begin_s, end_s, self._step)

    def _read_j(self) -> float:
        return math.nan if self.energy_j is None else self.energy_j()


def peak_memory_bytes() -> int:
    """Return the peak host memory of this process; `ru_maxrss` would include memory of the parent at fork."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    (peak,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024
