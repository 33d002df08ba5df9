"""What a run folder tells while the run trains: its settings, and lines of metrics as they come.

The run writes, this reads, neither waits for the other: a last line that is not whole yet is read the next time.
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
"""Lines that a rate is taken from: the latest."""


@dataclass
class WatchedRun:
    """A run, as far as its folder tells.

    Attributes:
        folder: of the run.
        about: what run.json says.
        steps: that the run is to take.
        train: lines of training steps, oldest first.
        validation: lines of validations, oldest first.
    """

    folder: Path
    about: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    train: list[dict[str, Any]] = field(default_factory=list)
    validation: list[dict[str, Any]] = field(default_factory=list)

    def refresh(self) -> None:
        """Read what is there now.

        Raises:
            HeartlmError: this is no run folder, or its settings cannot be read.
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
        """The last step of a line."""
        return max((int(lines[-1]["step"]) for lines in (self.train, self.validation) if lines), default=0)

    @property
    def is_finished(self) -> bool:
        """Whether the last step was done."""
        return bool(self.about.get("finished"))

    def latest(self, name: str) -> float | None:
        """The number `name` of the latest training line that has it."""
        return next((float(line[name]) for line in reversed(self.train) if name in line), None)

    def remaining_s(self) -> float:
        """Seconds to the last step at the latest rate, validations and checkpoints included; NaN where unknown."""
        recent = [line for line in self.train[-NUM_RECENT:] if "elapsed_s" in line]
        for place in range(len(recent) - 1, 0, -1):
            if recent[place]["elapsed_s"] < recent[place - 1]["elapsed_s"]:  # the clock of a resumed run starts again
                recent = recent[place:]
                break
        left = self.steps - self.step
        if len(recent) > 1 and recent[-1]["step"] > recent[0]["step"]:
            taken_s = recent[-1]["elapsed_s"] - recent[0]["elapsed_s"]
            return float(taken_s / (recent[-1]["step"] - recent[0]["step"]) * left)
        step_s = self.latest("step_s")
        return math.nan if step_s is None else step_s * left

    def silent_s(self) -> float:
        """Seconds since the last line was written, or the run began; NaN where the folder does not tell."""
        for name in ("metrics.jsonl", "run.json"):
            if (path := self.folder / name).exists():
                return max(0.0, time.time() - path.stat().st_mtime)
        return math.nan

    def is_silent(self) -> bool:
        """Whether lines have not come for much longer than they used to take."""
        ends_s = [line["elapsed_s"] for line in self.train[-NUM_RECENT:] if "elapsed_s" in line]
        apart_s = [later - earlier for earlier, later in pairwise(ends_s) if later > earlier]
        return not self.is_finished and self.silent_s() > max(60.0, 10 * statistics.median(apart_s or [0.0]))


def sparkline(values: list[float], width: int) -> str:
    """Finite `values`, or means of neighbours, as a row of at most `width` bars, from the lowest to the highest."""
    marks = "▁▂▃▄▅▆▇█"
    finite = [value for value in values if math.isfinite(value)]
    shown = [float(part.mean()) for part in np.array_split(finite, min(width, len(finite)) or 1) if len(part)]
    low, span = min(shown, default=0.0), max(shown, default=0.0) - min(shown, default=0.0)
    return "".join(marks[min(7, int(8 * (value - low) / span))] if span > 0 else marks[3] for value in shown)
