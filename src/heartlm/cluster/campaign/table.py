"""The state of a campaign for people: counts of every stage, and a row an experiment, of few or of those in trouble."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from heartlm.cluster.campaign.state import ExperimentState, State
from heartlm.cluster.watch.frame import clock

STATES: tuple[State, ...] = ("done", "running", "queued", "waiting", "interrupted", "failed", "not run")
MOST_ROWS = 40
"""Of more experiments than this only those that failed, run or wait are shown."""

Rows = list[list[str]]


def tables(rows: Sequence[ExperimentState]) -> tuple[Rows, Rows]:
    """What `heartlm campaign status` shows: stages with their counts, and experiments; the first row is a heading."""
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
    """How many are in which state, then every one that failed, with the end of its log, and those not run for it."""
    counts = Counter(row.state for row in rows)
    lines = [", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])]
    for row in rows:
        if row.state == "failed":
            lines.append(f"failed: {row.name}: {row.note}" + (f"  (log: {row.log})" if row.log else ""))
    lines += [f"not run: {row.name}: {row.note}" for row in rows if row.state == "not run"]
    return lines
