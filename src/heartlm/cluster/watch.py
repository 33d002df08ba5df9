"""Terminal dashboard of a run while it trains, read from its folder.

Reader and writer do not wait for each other: an incomplete last line is read at the next refresh.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from heartlm.runs.run_folder import RunFolder

NUM_RECENT = 10
"""Number of latest lines from which the rate is computed."""

SPARK_WIDTH, BAR_WIDTH = 48, 40


@dataclass(frozen=True)
class WatchedRun:
    """State of a run.

    Attributes:
        folder: run folder.
        about: content of run.json.
        steps: total number of steps.
        train: lines of training steps, oldest first.
        validation: lines of validations, oldest first.
    """

    folder: Path
    about: dict[str, Any]
    steps: int
    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> WatchedRun:
        """Read the current content of a run folder; lines with other values than numbers are left out.

        Raises:
            HeartlmError: the folder is not a run folder, or its settings cannot be read.
        """
        run, train, validation = RunFolder(folder), list[dict[str, Any]](), list[dict[str, Any]]()
        for line in run.metrics:
            numbers = {name: value for name, value in line.items() if name != "split"}
            is_whole = isinstance(line.get("step"), int) and "loss" in line and "split" in line
            if is_whole and all(isinstance(value, int | float) for value in numbers.values()):
                (train if line["split"] == "train" else validation).append(numbers)
        return cls(folder, run.run_json, run.num_steps, train, validation)

    @property
    def step(self) -> int:
        """Step of the last line."""
        return max((int(line["step"]) for line in (*self.train[-1:], *self.validation[-1:])), default=0)

    @property
    def is_finished(self) -> bool:
        """Return whether the last step is done."""
        return bool(self.about.get("finished"))

    def step_s(self) -> float:
        """Return the latest time of a step in seconds, with validations and checkpoints; NaN if unknown."""
        recent = [line for line in self.train[-NUM_RECENT:] if "elapsed_s" in line]
        pairs = [pair for pair in pairwise(recent) if pair[1]["elapsed_s"] > pair[0]["elapsed_s"]]  # in one session
        taken_s = sum(later["elapsed_s"] - earlier["elapsed_s"] for earlier, later in pairs)
        steps = sum(later["step"] - earlier["step"] for earlier, later in pairs)
        latest = next((float(line["step_s"]) for line in reversed(self.train) if "step_s" in line), math.nan)
        return float(taken_s / steps) if steps > 0 else latest

    def silent_s(self) -> float:
        """Return the seconds since the last line was written or the run started; NaN if unknown."""
        for name in ("metrics.jsonl", "run.json"):
            if (path := self.folder / name).exists():
                return max(0.0, time.time() - path.stat().st_mtime)
        return math.nan

    def is_silent(self) -> bool:
        """Return whether no line has come for much longer than usual."""
        apart = self.train[-1]["step"] - self.train[-2]["step"] if len(self.train) > 1 else 0
        usual_s = self.step_s() * apart
        return not self.is_finished and self.silent_s() > max(60.0, 10 * usual_s if math.isfinite(usual_s) else 0.0)


def frame(run: WatchedRun) -> Panel:
    """Return the dashboard of `run`."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    share = run.step / run.steps if run.steps else 0.0
    rows.add_row("progress", ProgressBar(total=1.0, completed=share, width=BAR_WIDTH))
    left = "" if run.is_finished else f"   left {clock(run.step_s() * (run.steps - run.step))}"
    rows.add_row("", f"{run.step}/{run.steps}  {share:.0%}{left}")
    losses = [float(line["loss"]) for line in run.train]
    loss = f"{losses[-1]:.4f}   {sparkline(losses, SPARK_WIDTH)}" if losses else "no line yet"
    rows.add_row("loss", loss)
    if run.validation:
        best = min(run.validation, key=lambda line: float(line["loss"]))
        latest = run.validation[-1]["loss"]
        rows.add_row("validation", f"{latest:.4f}   best {best['loss']:.4f} after step {best['step']}")
    rows.add_row("speed", _speed(run))
    rows.add_row("state", _state(run))
    kind = " ".join(str(run.about[name]) for name in ("kind", "objective", "task") if run.about.get(name))
    return Panel(rows, title=f"{run.about.get('name', run.folder.name)}: {kind}", expand=False, padding=(0, 1))


def _speed(run: WatchedRun) -> str:
    line = next((line for line in reversed(run.train) if "tokens_per_s" in line), None)
    if line is None:
        return "warming up"
    forms = {
        "tokens_per_s": (1e-3, "{:.1f} k tokens/s"),
        "step_median_s": (1e3, "step {:.0f} ms"),
        "step_p95_s": (1e3, "95 % of steps below {:.0f} ms"),
        "data_wait_share": (100, "data wait {:.1f} %"),
        "mfu": (100, "MFU {:.1f} %"),
    }
    return "   ".join(form.format(factor * line[name]) for name, (factor, form) in forms.items() if name in line)


def _state(run: WatchedRun) -> Text:
    if run.is_finished:
        return Text(f"finished on {run.about['finished']}", style="green")
    silent = clock(run.silent_s())
    if run.is_silent():
        return Text(f"nothing new for {silent}: did it stop?  heartlm … --resume {run.folder}", style="red")
    return Text(f"running, last line {silent} ago")


def clock(taken_s: float) -> str:
    """Format a duration as hours, minutes and seconds; a question mark if it is unknown."""
    if not math.isfinite(taken_s):
        return "?"
    days, rest_s = divmod(int(taken_s), 86400)
    return (f"{days} d " if days else "") + time.strftime("%H:%M:%S", time.gmtime(rest_s))


def sparkline(values: list[float], width: int) -> str:
    """Draw finite `values`, or means of neighbours, as at most `width` bars scaled from the lowest to the highest."""
    marks = "▁▂▃▄▅▆▇█"
    finite = [value for value in values if math.isfinite(value)]
    shown = [float(part.mean()) for part in np.array_split(finite, min(width, len(finite)) or 1) if len(part)]
    low, span = min(shown, default=0.0), max(shown, default=0.0) - min(shown, default=0.0)
    return "".join(marks[min(7, int(8 * (value - low) / span))] if span > 0 else marks[3] for value in shown)
