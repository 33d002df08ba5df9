"""Durations of every step of a rank, for scaling studies: `measured/rank-0.json`, `rank-1.json`, … in the run folder.

    meters ─► one entry per step, in memory ─► one file per rank at the end of the run

Nothing is written or communicated during training, so the overhead is a few list entries per step. The study compares
the files of all ranks to find the slowest rank, for which the others wait.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import nn

from heartlm.files import write_json
from heartlm.instrumentation.meters import Meters


class MeasuredSteps:
    """The steps of one rank, including warm-up.

    Args:
        path: output file.

    Attributes:
        steps: one entry per step: `step`, `num_tokens` of all ranks, `loss`, `step_s`, and seconds of every part and
            detail of the meters.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.steps: list[dict[str, Any]] = []
        self._loss: float | None = None

    def loss(self, value: float) -> None:
        """Set the loss of the current step; None if it is not finite."""
        self._loss = value if math.isfinite(value) else None

    def add(self, step: int, num_tokens: int, busy_s: float, part_s: dict[str, float]) -> None:
        """Add a finished step."""
        times = {f"{name}_s": seconds for name, seconds in part_s.items()}
        self.steps.append({"step": step, "num_tokens": num_tokens, "loss": self._loss, "step_s": busy_s, **times})
        self._loss = None

    def write(self, **about: Any) -> None:
        """Write all steps and the entries `about` the rank.

        Raises:
            HeartlmError: the file cannot be written.
        """
        write_json(self.path, {**about, "steps": self.steps})


def measure_forward(module: nn.Module, meters: Meters) -> None:
    """Time the forward pass of `module` separately in `meters`; only for synchronous devices (CPU)."""
    opened: list[Any] = []

    def begin(*_: object) -> None:
        opened.append(meters.span("forward"))
        opened[-1].__enter__()

    def end(*_: object) -> None:
        opened.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end)
