"""The learning rate of every step."""

from __future__ import annotations

import math


def learning_rate(step: int, *, peak: float, warmup_steps: int, steps: int, final_share: float) -> float:
    """Return the rate at `step`: linear warm-up to `peak`, then cosine decay to `final_share * peak`, the last rate."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = (step - warmup_steps) / max(1, steps - 1 - warmup_steps)
    return peak * (final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
