"""What a look at a few steps found, as a table that names the bottleneck. Pure functions of times.

steps: seconds of every part ─┐
operators: calls and seconds ─┴─► a summary (JSON) ─► a page (Markdown), a few lines for the terminal
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

PARTS = ("data", "forward", "backward", "communication", "optimizer", "other")

WHAT_HELPS = {
    "data": "steps wait for batches: try --prefetch 2, a faster disk, or --order blocks for a corpus beyond memory",
    "forward": "the arithmetic of the model: try --compile, more cores or ranks, bf16 on a GPU",
    "backward": "the arithmetic of the model: try --compile, more cores or ranks, bf16 on a GPU",
    "communication": "ranks wait for one another: try --bucket-cap-mb auto, a larger --batch-size, or fewer ranks",
    "optimizer": "moving the weights: a larger --batch-size moves them less often for each token",
    "other": "what the loop does between the parts: a larger --batch-size does it less often for each token",
}
IDLE = 0.5
"""A GPU that is busy for less than this share waits for the CPU that starts its kernels."""

NUM_OPERATORS = 12


class Operator(NamedTuple):
    """One kind of operator of torch.

    Attributes:
        name: as torch calls it.
        calls: in all steps seen.
        seconds: that it took itself, on the device that computes, without the operators inside.
    """

    name: str
    calls: int
    seconds: float


def summary(
    steps: Sequence[Mapping[str, float]],
    operators: Sequence[Operator],
    backward_share: float | None = None,
    device_busy_s: float | None = None,
) -> dict[str, Any]:
    """Means a step, the largest part, and the operators that took longest.

    Args:
        steps: seconds of `data`, `forward_backward`, `communication`, `optimizer` and `other` in each step, which add
            up to it, and of `forward` where that was measured.
        operators: everything that torch recorded.
        backward_share: of `forward_backward`, where `forward` was not measured; None where neither is known.
        device_busy_s: that a GPU computed in all steps; None on a CPU.
    """
    mean = {name: sum(step.get(name, 0.0) for step in steps) / len(steps) for name in steps[0]}
    both_s = mean["forward_backward"]
    forward_s = mean.get("forward", both_s * (1 - (backward_share or 0.0)))
    parts_s = mean | {"forward": min(forward_s, both_s), "backward": max(0.0, both_s - forward_s)}
    parts_s = {name: parts_s[name] for name in PARTS}
    step_s = sum(parts_s.values())
    bottleneck = max(parts_s, key=lambda name: parts_s[name])
    busy = None if device_busy_s is None else min(1.0, device_busy_s / (step_s * len(steps)))
    longest = sorted(operators, key=lambda operator: -operator.seconds)[:NUM_OPERATORS]
    return {
        "num_steps": len(steps),
        "step_s": step_s,
        "parts_s": parts_s,
        "bottleneck": bottleneck,
        "what_helps": _what_helps(bottleneck, busy),
        "device_busy_share": busy,
        "operators": [
            {"name": name, "calls_per_step": calls / len(steps), "self_s": seconds / len(steps)}
            for name, calls, seconds in longest
        ],
    }


def _what_helps(bottleneck: str, busy: float | None) -> str:
    if busy is not None and busy < IDLE:
        return f"the GPU computes {busy:.0%} of the time and waits for the CPU: try a larger --batch-size or --compile"
    return WHAT_HELPS[bottleneck]


def table(found: Mapping[str, Any]) -> list[str]:
    """A few lines for the terminal: the parts of a step, and the bottleneck."""
    step_s = found["step_s"]
    lines = [f"profile of {found['num_steps']} steps, {1e3 * step_s:.1f} ms each, the profiler's own cost included"]
    for name, taken_s in found["parts_s"].items():
        share = taken_s / step_s
        lines.append(f"  {name:<14} {1e3 * taken_s:8.2f} ms  {100 * share:5.1f} %  {'█' * round(30 * share)}".rstrip())
    lines.append(f"bottleneck: {found['bottleneck']}: {found['what_helps']}")
    return lines


def page(found: Mapping[str, Any]) -> str:
    """The same as Markdown, with the operators."""
    step_s = found["step_s"]
    head = f"Means of {found['num_steps']} steps after the warm-up; the profiler's own cost is included."
    lines = ["# Where the time of a step goes", "", f"**Bottleneck: {found['bottleneck']}.** {found['what_helps']}", ""]
    lines += [head, "", "| part | ms a step | share |", "|---|---:|---:|"]
    lines += [
        f"| {name} | {1e3 * taken_s:.2f} | {100 * taken_s / step_s:.1f} % |"
        for name, taken_s in found["parts_s"].items()
    ]
    lines += [f"| step | {1e3 * step_s:.2f} | 100 % |", ""]
    if found["device_busy_share"] is not None:
        lines += [f"The GPU computed {100 * found['device_busy_share']:.1f} % of the time.", ""]
    lines += ["| operator | calls a step | its own ms a step |", "|---|---:|---:|"]
    lines += [
        f"| `{each['name']}` | {each['calls_per_step']:g} | {1e3 * each['self_s']:.3f} |" for each in found["operators"]
    ]
    return "\n".join([*lines, "", "`trace.json` next to this file opens in https://ui.perfetto.dev.", ""])
