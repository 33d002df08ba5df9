"""What every step of a rank took, kept for a study: `measured/rank-0.json`, `rank-1.json`, … in the run folder.

    meters ─► a line a step, in memory ─► one file a rank when the run ends

Nothing is written, summed up or sent while the run trains, so measuring costs a few list entries a step. The study
reads the files of all ranks and compares them: a rank waits for the slowest one, which none can know by itself.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import nn

from heartlm.files import write_json
from heartlm.instrumentation.flights import InFlight
from heartlm.instrumentation.meters import Meters


class MeasuredSteps:
    """The steps of one rank, warm-up included.

    Args:
        path: the file to write.
        flights: of this rank's sums.

    Attributes:
        steps: one entry a step: `step`, `num_tokens` of all ranks, `loss`, `step_s`, `hidden_communication_s`, and
            seconds of every part and detail the meters know.
    """

    def __init__(self, path: Path, flights: InFlight) -> None:
        self.path, self.flights = Path(path), flights
        self.steps: list[dict[str, Any]] = []
        self._loss: float | None = None

    def loss(self, value: float) -> None:
        """Note the loss of the present step; none where it is not finite."""
        self._loss = value if math.isfinite(value) else None

    def add(self, step: int, num_tokens: int, busy_s: float, part_s: dict[str, float]) -> None:
        """Note a step that is over."""
        times = {f"{name}_s": seconds for name, seconds in part_s.items()}
        hidden = self.flights.take_hidden_s()
        about = {"step": step, "num_tokens": num_tokens, "loss": self._loss, "hidden_communication_s": hidden}
        self.steps.append({**about, "step_s": busy_s, **times})
        self._loss = None

    def write(self, **about: Any) -> None:
        """Write all steps, with what else there is to say `about` the rank.

        Raises:
            HeartlmError: the file cannot be written.
        """
        write_json(self.path, {**about, "steps": self.steps})


def measure_forward(module: nn.Module, meters: Meters) -> None:
    """Let `meters` know the forward pass of `module` apart; only where calls return when the work is done (CPU)."""
    opened: list[Any] = []

    def begin(*_: object) -> None:
        opened.append(meters.span("forward"))
        opened[-1].__enter__()

    def end(*_: object) -> None:
        opened.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end)
