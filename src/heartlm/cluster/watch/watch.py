"""Reader of a run folder while the run trains: settings, and metrics as they are written.

Reader and writer do not wait for each other: an incomplete last line is read at the next refresh.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.runs.run_folder import RunFolder

NUM_RECENT = 10
"""Number of latest lines from which rates are computed."""


@dataclass
class WatchedRun:
    """State of a run, read from its folder.

    Attributes:
        folder: run folder.
        about: content of run.json.
        steps: total number of steps.
        train: lines of training steps, oldest first.
        validation: lines of validations, oldest first.
    """

    folder: Path
    about: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    train: list[dict[str, Any]] = field(default_factory=list)
    validation: list[dict[str, Any]] = field(default_factory=list)

    def refresh(self) -> None:
        """Read the current content of the folder.

        Raises:
            HeartlmError: the folder is not a run folder, or its settings cannot be read.
        """
        run = RunFolder(self.folder)
        self.about, self.steps = run.run_json, self.steps or run.num_steps
        whole = [
            line for line in run.metrics if isinstance(line.get("step"), int) and "loss" in line and "split" in line
        ]
        numbers = [
            line
            for line in whole
            if all(isinstance(value, int | float) for name, value in line.items() if name != "split")
        ]
        self.train = [line for line in numbers if line["split"] == "train"]
        self.validation = [line for line in numbers if line["split"] != "train"]

    @property
    def step(self) -> int:
        """Step of the last line."""
        return max((int(lines[-1]["step"]) for lines in (self.train, self.validation) if lines), default=0)

    @property
    def is_finished(self) -> bool:
        """Return whether the last step is done."""
        return bool(self.about.get("finished"))

    def latest(self, name: str) -> float | None:
        """Return the value `name` of the latest training line that has it."""
        return next((float(line[name]) for line in reversed(self.train) if name in line), None)

    def remaining_s(self) -> float:
        """Return the remaining seconds at the latest rate, with validations and checkpoints; NaN if unknown."""
        recent = [line for line in self.train[-NUM_RECENT:] if "elapsed_s" in line]
        for place in range(len(recent) - 1, 0, -1):
            if recent[place]["elapsed_s"] < recent[place - 1]["elapsed_s"]:  # the clock restarts when a run is resumed
                recent = recent[place:]
                break
        left = self.steps - self.step
        if len(recent) > 1 and recent[-1]["step"] > recent[0]["step"]:
            taken_s = recent[-1]["elapsed_s"] - recent[0]["elapsed_s"]
            return float(taken_s / (recent[-1]["step"] - recent[0]["step"]) * left)
        step_s = self.latest("step_s")
        return math.nan if step_s is None else step_s * left

    def silent_s(self) -> float:
        """Return the seconds since the last line was written or the run started; NaN if unknown."""
        for name in ("metrics.jsonl", "run.json"):
            if (path := self.folder / name).exists():
                return max(0.0, time.time() - path.stat().st_mtime)
        return math.nan

    def is_silent(self) -> bool:
        """Return whether no line has come for much longer than usual."""
        ends_s = [line["elapsed_s"] for line in self.train[-NUM_RECENT:] if "elapsed_s" in line]
        apart_s = [later - earlier for earlier, later in pairwise(ends_s) if later > earlier]
        return not self.is_finished and self.silent_s() > max(60.0, 10 * statistics.median(apart_s or [0.0]))


def sparkline(values: list[float], width: int) -> str:
    """Draw finite `values`, or means of neighbours, as at most `width` bars scaled from the lowest to the highest."""
    marks = "▁▂▃▄▅▆▇█"
    finite = [value for value in values if math.isfinite(value)]
    shown = [float(part.mean()) for part in np.array_split(finite, min(width, len(finite)) or 1) if len(part)]
    low, span = min(shown, default=0.0), max(shown, default=0.0) - min(shown, default=0.0)
    return "".join(marks[min(7, int(8 * (value - low) / span))] if span > 0 else marks[3] for value in shown)
