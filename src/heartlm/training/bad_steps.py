"""Steps that would hurt the model: a loss that is no number, or far above what it was.

The loop asks before the optimiser steps, so a bad step leaves weights and moments as they were. The verdict follows
from losses and gradient norms of the whole global batch alone, which every rank has, so all ranks judge alike.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

MAX_SKIPPED_IN_A_ROW = 10


@dataclass(frozen=True)
class Verdict:
    """What to do with a step.

    Attributes:
        action: take the optimiser step, skip it, or save the state and stop.
        reason: one line that says what was found; empty where the step is taken.
    """

    action: Literal["take", "skip", "stop"]
    reason: str = ""


@dataclass
class BadSteps:
    """Judges steps by those before it.

    Attributes:
        policy: what to do with a bad step. Skipping stops as well after ten in a row.
        spike_factor: a loss or gradient norm of more than this times the median of the window is bad; 0 judges none.
        window: good steps the medians are of; until there are as many, only what is not finite is bad.
    """

    policy: Literal["stop", "skip"] = "stop"
    spike_factor: float = 0.0
    window: int = 50
    _losses: list[float] = field(default_factory=list)
    _norms: list[float] = field(default_factory=list)
    _skipped: int = 0

    def judge(self, step: int, loss: float, grad_norm: float) -> Verdict:
        """Judge step number `step`, counted from 1, by its loss and the norm of its gradient before clipping."""
        found = self._wrong(loss, grad_norm)
        if found is None:
            self._skipped = 0
            self._losses = [*self._losses, loss][-self.window :]
            self._norms = [*self._norms, grad_norm][-self.window :]
            return Verdict("take")
        self._skipped += 1
        reason = f"step {step}: loss {loss:.6g}, gradient norm {grad_norm:.6g}: {found}"
        if self.policy == "stop":
            return Verdict("stop", reason)
        if self._skipped > MAX_SKIPPED_IN_A_ROW:
            return Verdict("stop", f"{reason}; {MAX_SKIPPED_IN_A_ROW} steps before it were skipped")
        return Verdict("skip", reason)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, for `Progress.bad_steps`."""
        return {"losses": self._losses, "norms": self._norms, "skipped_in_a_row": self._skipped}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned; from nothing where it is empty."""
        self._losses, self._norms = state.get("losses", []), state.get("norms", [])
        self._skipped = state.get("skipped_in_a_row", 0)

    def _wrong(self, loss: float, grad_norm: float) -> str | None:
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return "not finite"
        if self.spike_factor and len(self._losses) >= self.window:
            for name, value, values in (("loss", loss, self._losses), ("gradient norm", grad_norm, self._norms)):
                if value > self.spike_factor * (usual := statistics.median(values)) > 0:
                    return f"the {name} is {value / usual:.3g} times the median {usual:.6g} of {self.window} steps"
        return None
