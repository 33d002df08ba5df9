"""One frame of the terminal dashboard."""

from __future__ import annotations

import math
import time

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from heartlm.cluster.watch.watch import WatchedRun, sparkline

SPARK_WIDTH = 48
PART_WIDTH = 40
PARTS = (
    ("data", "yellow"),
    ("forward_backward", "green"),
    ("communication", "magenta"),
    ("optimizer", "blue"),
    ("other", "bright_black"),
)


def frame(run: WatchedRun) -> RenderableType:
    """Return the dashboard of `run`."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column()
    rows.add_row("progress", _progress(run))
    rows.add_row("loss", _loss(run))
    if run.validation:
        best = min(run.validation, key=lambda line: float(line["loss"]))
        latest = run.validation[-1]
        rows.add_row("validation", f"{latest['loss']:.4f}   best {best['loss']:.4f} after step {best['step']}")
    rows.add_row("speed", _speed(run))
    if (parts := _parts(run)) is not None:
        rows.add_row("a step is", parts)
    rows.add_row("state", _state(run))
    kind = " ".join(str(run.about[name]) for name in ("kind", "objective", "task") if run.about.get(name))
    return Panel(rows, title=f"{run.about.get('name', run.folder.name)}: {kind}", expand=False, padding=(0, 1))


def _progress(run: WatchedRun) -> RenderableType:
    share = run.step / run.steps if run.steps else 0.0
    left_s = run.remaining_s()
    left = "" if run.is_finished else f"   left {clock(left_s)}"
    line = Table.grid(padding=(0, 2))
    line.add_row(
        ProgressBar(total=1.0, completed=share, width=PART_WIDTH), f"{run.step}/{run.steps}  {share:.0%}{left}"
    )
    return line


def _loss(run: WatchedRun) -> RenderableType:
    if not run.train:
        return Text("no line yet", style="dim")
    losses = [float(line["loss"]) for line in run.train]
    return Group(Text(f"{losses[-1]:.4f}   ") + Text(sparkline(losses, SPARK_WIDTH), style="cyan"))


def _speed(run: WatchedRun) -> str:
    rate, step_s, waited = (run.latest(name) for name in ("tokens_per_s", "step_median_s", "data_wait_share"))
    if rate is None:
        return "warming up"
    told = f"{rate / 1000:.1f} k tokens/s"
    told += f"   step {1e3 * step_s:.0f} ms" if step_s is not None else ""
    slowest_s = run.latest("step_p95_s")
    told += f" (p95 {1e3 * slowest_s:.0f} ms)" if slowest_s is not None else ""
    told += f"   data wait {100 * waited:.1f} %" if waited is not None else ""
    mfu = run.latest("mfu")
    return told + (f"   MFU {100 * mfu:.1f} %" if mfu is not None else "")


def _parts(run: WatchedRun) -> RenderableType | None:
    """Return the time of a step by part: a bar, and the fraction of each part."""
    taken_s = {name: run.latest(f"{name}_s") or 0.0 for name, _ in PARTS}
    whole_s = sum(taken_s.values())
    if whole_s <= 0:
        return None
    bar, words = Text(), Text()
    for name, colour in PARTS:
        share = taken_s[name] / whole_s
        bar.append("█" * round(PART_WIDTH * share), style=colour)
        if share >= 0.005:
            words.append(f"{name.replace('_', ' ')} {share:.0%}  ", style=colour)
    return Group(bar, words)


def _state(run: WatchedRun) -> Text:
    if run.is_finished:
        return Text(f"finished on {run.about['finished']}", style="green")
    silent = clock(run.silent_s())
    if run.is_silent():
        return Text(f"nothing new for {silent}: did it stop?  heartlm … --resume {run.folder}", style="red")
    return Text(f"running, last line {silent} ago")


def clock(taken_s: float) -> str:
    """Format a duration as hours, minutes and seconds; a question mark if it is unknown."""
    if not math.isfinite(taken_s):
        return "?"
    days, rest_s = divmod(int(taken_s), 86400)
    return (f"{days} d " if days else "") + time.strftime("%H:%M:%S", time.gmtime(rest_s))
