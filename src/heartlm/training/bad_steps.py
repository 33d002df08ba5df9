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


Action = Literal["take", "skip", "stop"]
"""Take the optimiser step, skip it, or save the state and stop."""


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
    _state: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.load({})

    def judge(self, step: int, loss: float, grad_norm: float) -> tuple[Action, str]:
        """Judge `step`, counted from 1, by its loss and its gradient norm before clipping.

        Returns:
            What to do, and the problem in one line; empty if the step is taken.
        """
        state, found = self._state, self._wrong(loss, grad_norm)
        if found is None:
            losses, norms = [*state["losses"], loss], [*state["norms"], grad_norm]
            self.load({"losses": losses[-self.window :], "norms": norms[-self.window :]})
            return "take", ""
        state["skipped_in_a_row"] += 1
        reason = f"step {step}: loss {loss:.6g}, gradient norm {grad_norm:.6g}: {found}"
        if self.policy == "skip" and state["skipped_in_a_row"] > MAX_SKIPPED_IN_A_ROW:
            return "stop", f"{reason}; {MAX_SKIPPED_IN_A_ROW} steps before it were skipped"
        return self.policy, reason

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint, as `Progress.bad_steps`."""
        return dict(self._state)

    def load(self, state: dict[str, Any]) -> None:
        """Restore `state`, as returned by `BadSteps.state`; an empty one resets."""
        self._state = {"losses": [], "norms": [], "skipped_in_a_row": 0, **state}

    def _wrong(self, loss: float, grad_norm: float) -> str | None:
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return "not finite"
        if self.spike_factor and len(self._state["losses"]) >= self.window:
            for name, value, key in (("loss", loss, "losses"), ("gradient norm", grad_norm, "norms")):
                if value > self.spike_factor * (usual := statistics.median(self._state[key])) > 0:
                    return f"the {name} is {value / usual:.3g} times the median {usual:.6g} of {self.window} steps"
        return None
