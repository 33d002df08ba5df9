"""Detection of bad steps: a loss or gradient norm that is not finite, or far above its recent median.

The check runs before the optimiser step, so a bad step does not change weights and moments. It depends only on losses
and gradient norms of the global batch, which are equal on every rank, so all ranks make the same decision.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

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
        state, fault = self._state, self._wrong(loss, grad_norm)
        if fault is None:
            losses, norms = [*state["losses"], loss], [*state["norms"], grad_norm]
            self.load({"losses": losses[-self.window :], "norms": norms[-self.window :]})
            return "take", ""
        state["skipped_in_a_row"] += 1
        reason = f"step {step}: loss {loss:.6g}, gradient norm {grad_norm:.6g}: {fault}"
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


class DeviceCheck:
    """The decisions of `BadSteps.judge` on a device, without a synchronisation.

    Args:
        bad_steps: the check on the host, with the steps before this.
        device: device of the losses and norms.
    """

    def __init__(self, bad_steps: BadSteps, device: torch.device) -> None:
        state = bad_steps.state()
        self.policy, self.factor, self.window = bad_steps.policy, bad_steps.spike_factor, bad_steps.window
        history = torch.tensor([state["losses"], state["norms"]], dtype=torch.float64)
        empty = torch.zeros(2, self.window - history.shape[1], dtype=torch.float64)
        self.history = torch.cat([empty, history], dim=1).to(device)  # newest last
        self.num_good = torch.tensor(history.shape[1], device=device)
        self.skipped_in_a_row = torch.tensor(int(state["skipped_in_a_row"]), device=device)
        self.has_stopped = torch.zeros((), dtype=torch.bool, device=device)

    def __call__(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Return whether to take the step, bool `[]`; after a step that stops the run no other is taken.

        Args:
            loss: mean loss of the global batch, float64 `[]`.
            grad_norm: gradient norm before clipping, float64 `[]`.
        """
        values = torch.stack([loss, grad_norm])
        is_bad = ~values.isfinite().all()
        if self.factor:
            ordered = self.history.sort(dim=1).values
            usual = (ordered[:, (self.window - 1) // 2] + ordered[:, self.window // 2]) / 2
            is_spike = ((values > self.factor * usual) & (self.factor * usual > 0)).any()
            is_bad = is_bad | (is_spike & (self.num_good >= self.window))
        is_taken = ~(is_bad | self.has_stopped)
        if self.factor:
            newer = torch.cat([self.history[:, 1:], values[:, None]], dim=1)
            self.history.copy_(torch.where(is_taken, newer, self.history))
            self.num_good += is_taken
        self.skipped_in_a_row.copy_(torch.where(is_bad, self.skipped_in_a_row + 1, 0))
        stops = is_bad if self.policy == "stop" else self.skipped_in_a_row > MAX_SKIPPED_IN_A_ROW
        self.has_stopped.logical_or_(stops)
        return is_taken
