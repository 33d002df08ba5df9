"""What is known of the experiments of a campaign, read from files alone, by any process on any machine that sees them.

CAMPAIGN.campaign/
    submitted.json                    the job arrays submitted last, and the task of each experiment
    arrays/NAME.sh, NAME.tasks        their scripts, and a command line for each task
    experiments/NAME/
        attempt-1.begun               when, where, by which job (JSON)
        attempt-1.log                 what it printed; locked while the processes of a local attempt live
        attempt-1.ended               exit status and time (JSON)

An attempt that began and did not end is running if its log is locked or its job is in the queue, and was killed if not.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from heartlm.cluster.campaign.campaign import Campaign, Experiment
from heartlm.cluster.campaign.done import progress_of, steps_of
from heartlm.distributed.spawn import last_line
from heartlm.errors import HeartlmError
from heartlm.files import read_json, write_json

State = Literal["done", "running", "queued", "interrupted", "waiting", "failed", "not run"]

STOPPED = (143, -15, 130, -2)
"""Exit statuses of what was asked to stop."""


@dataclass(frozen=True)
class Attempt:
    """One time that an experiment was tried.

    Attributes:
        folder: of the experiment's attempts.
        number: 1 for the first.
    """

    folder: Path
    number: int

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.folder / f"attempt-{self.number}.log"

    @property
    def start_note(self) -> _Note:
        """When it began, and where."""
        return _read(self.folder / f"attempt-{self.number}.begun")

    @property
    def status(self) -> int | None:
        """Its exit status; None where it has not ended, or was killed."""
        return _read(self.folder / f"attempt-{self.number}.ended").get("status")

    @property
    def seconds(self) -> float | None:
        """How long it took, or takes."""
        started, ended = self.start_note.get("at"), _read(self.folder / f"attempt-{self.number}.ended").get("at")
        if started is None:
            return None
        return (time.time() if ended is None else float(ended)) - float(started)

    def begin(self) -> None:
        """Note that it begins here and now."""
        job = os.environ.get("SLURM_JOB_ID")
        where = {"at": time.time(), "host": socket.gethostname(), "job": job}
        write_json(self.folder / f"attempt-{self.number}.begun", where)

    def end(self, status: int) -> None:
        """Note its exit status."""
        write_json(self.folder / f"attempt-{self.number}.ended", {"status": status, "at": time.time()})

    def is_locked(self) -> bool:
        """Whether a process of a local attempt lives."""
        try:
            with self.log.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


class _Note(TypedDict, total=False):
    at: float
    host: str
    job: str | None
    status: int


def _read(path: Path) -> _Note:
    with suppress(HeartlmError):
        return read_json(path, _Note)
    return {}


def attempts_of(campaign: Campaign, name: str) -> list[Attempt]:
    """The attempts of the experiment `name`, the first one first."""
    folder = campaign.state_folder / "experiments" / name
    numbers = sorted(int(path.stem.partition("-")[2]) for path in folder.glob("attempt-*.begun"))
    return [Attempt(folder, number) for number in numbers]


def next_attempt(campaign: Campaign, name: str) -> Attempt:
    """The attempt after those that the experiment `name` had."""
    had = attempts_of(campaign, name)
    folder = campaign.state_folder / "experiments" / name
    folder.mkdir(parents=True, exist_ok=True)
    return Attempt(folder, had[-1].number + 1 if had else 1)


@dataclass(frozen=True)
class ExperimentState:
    """The state of one experiment, as the table shows it.

    Attributes:
        name: of the experiment.
        stage: of the experiment.
        state: what it is doing.
        attempts: how often it was started.
        step: optimiser steps done, of a training run that has started.
        steps: all its steps.
        seconds: of the last attempt.
        note: what is worth saying: why it failed, what it waits for.
        log: of the last attempt.
    """

    name: str
    stage: str
    state: State
    attempts: int = 0
    step: int | None = None
    steps: int | None = None
    seconds: float | None = None
    note: str = ""
    log: str | None = None


def rows_of(campaign: Campaign, queue: Mapping[str, str]) -> list[ExperimentState]:
    """The state of every experiment.

    Args:
        campaign: whose experiments.
        queue: state in SLURM's queue of experiments that are in it, by name.
    """
    rows: dict[str, ExperimentState] = {}
    for experiment in campaign.experiments:
        had = attempts_of(campaign, experiment.name)
        last = had[-1] if had else None
        state: State = "done"
        note = ""
        try:
            if progress_of(experiment, campaign.folder) != "done":
                state, note = _state(experiment, last, queue.get(experiment.name), rows)
        except HeartlmError as error:
            state, note = "failed", str(error)
        step, steps = steps_of(experiment, campaign.folder) or (None, None)
        rows[experiment.name] = ExperimentState(
            name=experiment.name,
            stage=experiment.stage,
            state=state,
            attempts=len(had),
            step=step,
            steps=steps,
            seconds=last.seconds if last and state in ("done", "running", "failed") else None,
            note=note,
            log=os.fspath(last.log) if last else None,
        )
    return list(rows.values())


def _state(
    experiment: Experiment, last: Attempt | None, queued: str | None, others: Mapping[str, ExperimentState]
) -> tuple[State, str]:
    """What an experiment that is not done is doing, and why."""
    if queued is not None:
        return ("running" if queued == "RUNNING" else "queued"), ""
    if last is not None and last.status is None:
        return ("running", "") if last.is_locked() else ("interrupted", "killed; run the campaign again to continue")
    if last is not None and last.status not in STOPPED:
        return "failed", failure(last)
    if broken := next((need for need in experiment.needs if others[need].state in ("failed", "not run")), None):
        how = "failed" if others[broken].state == "failed" else "did not run"
        return "not run", f"needs {broken}, which {how}"
    if last is not None:
        return "interrupted", "stopped; run the campaign again to continue"
    missing = [need for need in experiment.needs if others[need].state != "done"]
    return "waiting", f"for {', '.join(missing)}" if missing else ""


def failure(attempt: Attempt) -> str:
    """Why an attempt failed: its exit status and the last line of its log."""
    return f"exit status {attempt.status}: {last_line(attempt.log) or 'nothing said'}"
