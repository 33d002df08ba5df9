"""Tables of the state of a campaign: counts per stage, and one row per experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from heartlm.cluster.campaign.state import ExperimentState, State
from heartlm.cluster.watch.frame import clock

STATES: tuple[State, ...] = ("done", "running", "queued", "waiting", "interrupted", "failed", "not run")
MOST_ROWS = 40
"""Above this number of experiments, only failed, running and waiting ones are listed."""

Rows = list[list[str]]


def tables(rows: Sequence[ExperimentState]) -> tuple[Rows, Rows]:
    """Return the tables of `heartlm campaign status`: stages and experiments; the first row is a heading."""
    stages: Rows = [["stage", *STATES]]
    for stage in dict.fromkeys(row.stage for row in rows):
        counts = Counter(row.state for row in rows if row.stage == stage)
        stages.append([stage, *(str(counts[state] or "·") for state in STATES)])
    telling = ("running", "interrupted", "failed", "not run")
    experiments: Rows = [["experiment", "state", "step", "time", ""]]
    for row in rows:
        if len(rows) <= MOST_ROWS or row.state in telling:
            step = f"{row.step} of {row.steps}" if row.steps is not None else ""
            experiments.append([row.name, row.state, step, "" if row.seconds is None else clock(row.seconds), row.note])
    return stages, experiments


def summary(rows: Sequence[ExperimentState]) -> list[str]:
    """Return the counts per state, each failed experiment with its last log line, and those skipped because of it."""
    counts = Counter(row.state for row in rows)
    lines = [", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])]
    for row in rows:
        if row.state == "failed":
            lines.append(f"failed: {row.name}: {row.note}" + (f"  (log: {row.log})" if row.log else ""))
    lines += [f"not run: {row.name}: {row.note}" for row in rows if row.state == "not run"]
    return lines
