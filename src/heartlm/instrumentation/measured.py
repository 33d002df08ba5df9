"""Durations of every step of a rank: `measured/rank-0.json`, `rank-1.json`, … in the run folder.

    meters ─► one entry per step, in memory ─► one file per rank at the end of the run

Nothing is written or communicated during training, so the overhead is a few list entries per step. A comparison of the
files of all ranks tells the slowest rank, for which the others wait.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from heartlm.storage.atomic import write_json


class MeasuredSteps:
    """The steps of one rank, including warm-up.

    Args:
        path: output file.

    Attributes:
        steps: one entry per step: `step`, `num_tokens` of all ranks, `step_s`, and seconds of every part.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.steps: list[dict[str, Any]] = []
        self._losses: dict[int, float | None] = {}

    def loss(self, step: int, value: float) -> None:
        """Set the loss of `step`, which may be known some steps later; None if it is not finite."""
        self._losses[step] = value if math.isfinite(value) else None

    def add(self, step: int, num_tokens: int, busy_s: float, part_s: dict[str, float]) -> None:
        """Add a finished step."""
        times = {f"{name}_s": seconds for name, seconds in part_s.items()}
        self.steps.append({"step": step, "num_tokens": num_tokens, "step_s": busy_s, **times})

    def write(self, **about: Any) -> None:
        """Write all steps and the entries `about` the rank.

        Raises:
            HeartlmError: the file cannot be written.
        """
        steps = [{**each, "loss": self._losses.get(each["step"])} for each in self.steps]
        write_json(self.path, {**about, "steps": steps})
