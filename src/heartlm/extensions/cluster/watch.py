"""Terminal dashboard of a run while it trains, read from its folder.

Reader and writer do not wait for each other: an incomplete last line is read at the next refresh.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from heartlm.runs.run_folder import RunFolder

NUM_RECENT = 10
"""Number of latest lines from which the rate is computed."""

SPARK_WIDTH, BAR_WIDTH = 48, 40

SPEEDS = {
    "tokens_per_s": (1e-3, "{:.1f} k tokens/s"),
    "step_median_s": (1e3, "step {:.0f} ms"),
    "step_p95_s": (1e3, "95 % of steps below {:.0f} ms"),
    "data_wait_share": (100, "data wait {:.1f} %"),
    "mfu": (100, "MFU {:.1f} %"),
}
"""Factor and format of each speed in a line of metrics."""


def lines_of(run: RunFolder, split: str) -> list[dict[str, Any]]:
    """Return the metrics of `split`, oldest first; lines with other values than numbers are left out."""
    lines = []
    for line in run.metrics:
        numbers = {name: value for name, value in line.items() if name != "split"}
        are_numbers = all(isinstance(value, int | float) for value in numbers.values())
        if line.get("split") == split and {"step", "loss"} <= numbers.keys() and are_numbers:
            lines.append(numbers)
    return lines


def step_s(train: Sequence[dict[str, Any]]) -> float:
    """Return the latest time of a step in seconds, with validations and checkpoints; NaN if unknown."""
    recent = [line for line in train[-NUM_RECENT:] if "elapsed_s" in line]
    pairs = [pair for pair in pairwise(recent) if pair[1]["elapsed_s"] > pair[0]["elapsed_s"]]  # in one session
    taken_s = sum(later["elapsed_s"] - earlier["elapsed_s"] for earlier, later in pairs)
    steps = sum(later["step"] - earlier["step"] for earlier, later in pairs)
    latest = next((float(line["step_s"]) for line in reversed(train) if "step_s" in line), math.nan)
    return float(taken_s / steps) if steps > 0 else latest


def frame(run: RunFolder) -> Panel:
    """Return the dashboard of `run`.

    Raises:
        HeartlmError: the folder is not a run folder, or its settings cannot be read.
    """
    about, steps, train, validation = run.run_json, run.num_steps, lines_of(run, "train"), lines_of(run, "validation")
    step = max((int(line["step"]) for line in (*train[-1:], *validation[-1:])), default=0)
    share = step / steps if steps else 0.0
    left_s = step_s(train) * (steps - step)
    left = f"   left {timedelta(seconds=round(left_s))}" if math.isfinite(left_s) and not run.is_finished else ""
    losses = [float(line["loss"]) for line in train]
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_row("progress", ProgressBar(total=1.0, completed=share, width=BAR_WIDTH))
    rows.add_row("", f"{step}/{steps}  {share:.0%}{left}")
    rows.add_row("loss", f"{losses[-1]:.4f}   {sparkline(losses, SPARK_WIDTH)}" if losses else "no line yet")
    if validation:
        best = min(validation, key=lambda line: (math.isnan(line["loss"]), line["loss"]))
        latest = validation[-1]["loss"]
        rows.add_row("validation", f"{latest:.4f}   best {best['loss']:.4f} after step {best['step']}")
    measured = next((line for line in reversed(train) if "tokens_per_s" in line), dict[str, Any]())
    speeds = [form.format(factor * measured[name]) for name, (factor, form) in SPEEDS.items() if name in measured]
    rows.add_row("speed", "   ".join(speeds) or "warming up")
    written = run.metrics_file if run.metrics_file.exists() else run.path / "run.json"
    silent = timedelta(seconds=max(0, round(time.time() - written.stat().st_mtime)))
    running = f"running, last line {silent} ago; if it stopped:  heartlm … --resume {run.path}"
    # As Text, since rich reads [w] in the name of a folder as markup and leaves it out.
    rows.add_row("state", Text(f"finished on {about['finished']}" if run.is_finished else running))
    kind = " ".join(str(about[name]) for name in ("kind", "objective", "task") if about.get(name))
    return Panel(rows, title=Text(f"{about.get('name', run.path.name)}: {kind}"), expand=False, padding=(0, 1))


def sparkline(values: list[float], width: int) -> str:
    """Draw finite `values`, or means of neighbours, as at most `width` bars scaled from the lowest to the highest."""
    marks = "▁▂▃▄▅▆▇█"
    finite = [value for value in values if math.isfinite(value)]
    shown = [float(part.mean()) for part in np.array_split(finite, min(width, len(finite)) or 1) if len(part)]
    low, span = min(shown, default=0.0), max(shown, default=0.0) - min(shown, default=0.0)
    # The highest value alone would be mark 8 of 0 to 7.
    return "".join(marks[min(7, int(8 * (value - low) / span))] if span > 0 else marks[3] for value in shown)
