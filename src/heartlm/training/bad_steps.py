"""Detection of bad steps: a loss or gradient norm that is not finite, or far above its recent median.

The check runs before the optimiser step, so a bad step does not change weights and moments. It depends only on losses
and gradient norms of the global batch, which are equal on every rank, so all ranks make the same decision.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

MAX_SKIPPED_IN_A_ROW = 10


@dataclass(frozen=True)
class Verdict:
    """The decision on a step.

    Attributes:
        action: take the optimiser step, skip it, or save the state and stop.
        reason: description of the problem in one line; empty if the step is taken.
    """

    action: Literal["take", "skip", "stop"]
    reason: str = ""


@dataclass
class BadSteps:
    """Compares each step with the steps before it.

    Attributes:
        policy: action on a bad step; skip also stops after ten bad steps in a row.
        spike_factor: ratio of the loss or gradient norm to its median above which a step is bad; 0 disables the check.
        window: number of good steps in the median; with fewer steps, only values that are not finite are bad.
    """

    policy: Literal["stop", "skip"] = "stop"
    spike_factor: float = 0.0
    window: int = 50
    _losses: list[float] = field(default_factory=list)
    _norms: list[float] = field(default_factory=list)
    _skipped: int = 0

    def judge(self, step: int, loss: float, grad_norm: float) -> Verdict:
        """Return the verdict on `step`, counted from 1, from its loss and its gradient norm before clipping."""
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
        """Return the state to save in a checkpoint, as `Progress.bad_steps`."""
        return {"losses": self._losses, "norms": self._norms, "skipped_in_a_row": self._skipped}

    def load(self, state: dict[str, Any]) -> None:
        """Restore `state`, as returned by `BadSteps.state`; an empty one resets."""
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
