"""The state of a campaign for people: counts of every stage, and a row an experiment, of few or of those in trouble."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heartlm.cluster.campaign.state import ExperimentState, State
from heartlm.cluster.watch.frame import clock

STATES: tuple[State, ...] = ("done", "running", "queued", "waiting", "interrupted", "failed", "not run")
STYLES: dict[State, str] = {
    "done": "green",
    "running": "cyan",
    "interrupted": "yellow",
    "failed": "red",
    "not run": "red",
}
MOST_ROWS = 40
"""Of more experiments than this only those that failed, run or wait are shown."""


def view(rows: Sequence[ExperimentState]) -> RenderableType:
    """What `heartlm campaign status` shows."""
    telling = ("running", "interrupted", "failed", "not run")
    shown = [row for row in rows if len(rows) <= MOST_ROWS or row.state in telling]
    stages = Table("stage", box=None, padding=(0, 2, 0, 0))
    for state in STATES:
        stages.add_column(state, justify="right")
    for stage in dict.fromkeys(row.stage for row in rows):
        counts = Counter(row.state for row in rows if row.stage == stage)
        stages.add_row(stage, *(Text(str(counts[state] or "·"), STYLES.get(state, "")) for state in STATES))
    experiments = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("experiment", "state", "step", "time", ""):
        experiments.add_column(name, justify="right" if name in ("step", "time") else "left", overflow="fold")
    for row in shown:
        step = f"{row.step} of {row.steps}" if row.steps is not None else ""
        taken = "" if row.seconds is None else clock(row.seconds)
        experiments.add_row(row.name, Text(row.state, STYLES.get(row.state, "")), step, taken, Text(row.note))
    return Group(stages, experiments) if shown else stages


def summary(rows: Sequence[ExperimentState]) -> list[str]:
    """How many are in which state, then every one that failed, with the end of its log, and those not run for it."""
    counts = Counter(row.state for row in rows)
    lines = [", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])]
    for row in rows:
        if row.state == "failed":
            lines.append(f"failed: {row.name}: {row.note}" + (f"  (log: {row.log})" if row.log else ""))
    lines += [f"not run: {row.name}: {row.note}" for row in rows if row.state == "not run"]
    return lines
