"""State of the experiments of a campaign, read only from files, by any process on any machine with access to them.

CAMPAIGN.campaign/
    submitted.json                    job of each experiment of the last submission
    jobs/NAME.sh, NAME-JOB.out        scripts and output of the jobs
    experiments/NAME/
        attempt-1.begun               start time, host and job (JSON)
        attempt-1.log                 output; locked while processes of a local attempt run
        attempt-1.ended               exit status and time (JSON)

A started attempt without an end note is running if its log is locked or its job is in the queue. Otherwise it was
killed. Progress is read from the result itself: a run is done if its `run.json` says so, an evaluation if its scores
exist, a corpus if its manifest exists. A result with other settings never counts as done.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from heartlm.distributed.ranks import STOPPED_STATUS
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.campaign.campaign import Campaign, Experiment
from heartlm.extensions.cluster.spawn import last_line
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.atomic import write_json
from heartlm.storage.reading import read_json
from heartlm.storage.safe_yaml import parse_yaml
from heartlm.tasks.task import FinetuneConfig
from heartlm.training.config import LAYOUT, PretrainConfig

State = Literal["done", "running", "queued", "waiting", "interrupted", "failed", "not run"]

_PATHS = ("corpus", "run")
# Options of the other commands that affect the computation but not the result.
_HOW = ("--threads=", "--device=", "--processes=")

Progress = Literal["absent", "started", "done"]

STOPPED = (STOPPED_STATUS, -15, 130, -2)
"""Exit statuses of processes stopped by a signal."""


class _Note(TypedDict, total=False):
    at: float
    host: str
    job: str | None
    status: int


@dataclass(frozen=True)
class Attempt:
    """One attempt to run an experiment.

    Attributes:
        folder: folder of the experiment's attempts.
        number: number of the attempt, from 1.
    """

    folder: Path
    number: int

    @property
    def log(self) -> Path:
        """Log file with the output."""
        return self.folder / f"attempt-{self.number}.log"

    @property
    def status(self) -> int | None:
        """Exit status; None if the attempt is running or was killed."""
        return self._read("ended").get("status")

    @property
    def seconds(self) -> float | None:
        """Duration so far, in seconds."""
        started, ended = self._read("begun").get("at"), self._read("ended").get("at")
        return None if started is None else (ended or time.time()) - started

    def begin(self) -> None:
        """Write the start note."""
        note = {"at": time.time(), "host": socket.gethostname(), "job": os.environ.get("SLURM_JOB_ID")}
        write_json(self.folder / f"attempt-{self.number}.begun", note)

    def end(self, status: int) -> None:
        """Write the end note with the exit status."""
        write_json(self.folder / f"attempt-{self.number}.ended", {"status": status, "at": time.time()})

    def _read(self, what: Literal["begun", "ended"]) -> _Note:
        with suppress(HeartlmError):
            return read_json(self.folder / f"attempt-{self.number}.{what}", _Note)
        return {}

    def is_locked(self) -> bool:
        """Return whether a process of a local attempt is running."""
        try:
            # A shared lock: two readers at the same time do not take each other for a process of the attempt.
            with self.log.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def attempts_of(campaign: Campaign, name: str) -> list[Attempt]:
    """Return the attempts of the experiment `name`, oldest first."""
    folder = campaign.state_folder / "experiments" / name
    numbers = sorted(int(path.stem.partition("-")[2]) for path in folder.glob("attempt-*.begun"))
    return [Attempt(folder, number) for number in numbers]


def next_attempt(campaign: Campaign, name: str) -> Attempt:
    """Return the next attempt of the experiment `name`."""
    had = attempts_of(campaign, name)
    folder = campaign.state_folder / "experiments" / name
    folder.mkdir(parents=True, exist_ok=True)
    return Attempt(folder, had[-1].number + 1 if had else 1)


@dataclass(frozen=True)
class ExperimentState:
    """State of one experiment, as shown in the table.

    Attributes:
        name: name of the experiment.
        state: current state.
        attempts: number of attempts.
        step: completed optimiser steps of a started training run.
        steps: total number of optimiser steps.
        seconds: duration of the last attempt in seconds.
        note: reason of a failure, or what the experiment waits for.
        log: log file of the last attempt.
    """

    name: str
    state: State
    attempts: int = 0
    step: int | None = None
    steps: int | None = None
    seconds: float | None = None
    note: str = ""
    log: str | None = None


def rows_of(campaign: Campaign, queue: Mapping[str, str]) -> list[ExperimentState]:
    """Return the state of every experiment.

    Args:
        campaign: campaign with the experiments.
        queue: state in SLURM's queue of the queued experiments, by name.
    """
    rows: dict[str, ExperimentState] = {}
    for experiment in campaign.experiments:
        had = attempts_of(campaign, experiment.name)
        last = had[-1] if had else None
        state: State = "done"
        note, step, steps = "", None, None
        try:
            step, steps = steps_of(experiment, campaign.folder) or (None, None)
            if progress_of(experiment, campaign.folder) != "done":
                state, note = _state(experiment, last, queue.get(experiment.name), rows)
        except HeartlmError as error:
            state, note = "failed", str(error)
        rows[experiment.name] = ExperimentState(
            name=experiment.name,
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
    """Return the state of an unfinished experiment and its reason."""
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
    """Return the exit status and the last log line of a failed attempt."""
    return f"exit status {attempt.status}: {last_line(attempt.log) or 'nothing said'}"


def summary(rows: Sequence[ExperimentState]) -> list[str]:
    """Return the counts per state, each failed experiment with its last log line, and those skipped because of it."""
    counts = Counter(row.state for row in rows)
    lines = [", ".join(f"{counts[state]} {state}" for state in get_args(State) if counts[state])]
    for row in rows:
        if row.state == "failed":
            lines.append(f"failed: {row.name}: {row.note}" + (f"  (log: {row.log})" if row.log else ""))
    return lines + [f"not run: {row.name}: {row.note}" for row in rows if row.state == "not run"]


# --- results --------------------------------------------------------------------------------------------------------


def progress_of(experiment: Experiment, folder: Path) -> Progress:
    """Return the progress of `experiment`; paths are relative to `folder`.

    Raises:
        HeartlmError: the result folder contains a result of other settings.
    """
    run, note = experiment.run, _note(experiment, folder)
    if not note.is_file():
        return "absent"
    if not run.is_training:
        made_by, ours = read_json(note, dict[str, Any]).get("command"), shlex.join(["heartlm", *run.argv()])
        if _without_compute_options(made_by) != _without_compute_options(ours):
            raise HeartlmError(
                f"{experiment.name}: {note.parent} was made by  {made_by or 'an unknown command'}  and not by  "
                f"{ours}: remove it, or give the experiment another name"
            )
        return "done"
    earlier_run = RunFolder(note.parent)
    earlier = {**earlier_run.settings, "kind": earlier_run.run_json.get("kind")}
    defaults = vars(PretrainConfig() if run.command == "pretrain" else FinetuneConfig())
    for name, value in {"kind": run.command, **defaults, **run.fields}.items():
        if value is None or name in (*LAYOUT, "out", "resume"):
            continue
        expected = str((folder / str(value)).resolve()) if name in _PATHS else value
        if not _same(earlier.get(name), expected):
            raise HeartlmError(
                f"{experiment.name}: {note.parent} is there already with {name} {earlier.get(name)}, {expected} "
                "expected: remove it, or give the experiment another out"
            )
    return "done" if earlier_run.is_finished else "started"


def _note(experiment: Experiment, folder: Path) -> Path:
    """Return the file that exists when `experiment` is done, or, for a training run, when it has started."""
    names = {"evaluate": "scores.json", "tokenize": "manifest.json"}
    return folder / experiment.result / names.get(experiment.run.command, "run.json")


def _same(one: Any, other: Any) -> bool:
    with suppress(ValueError):  # one may be the text of the other, as a place in a template gives it
        return bool(one == other or parse_yaml(str(one)) == parse_yaml(str(other)))
    return False


def words_to_continue(experiment: Experiment, progress: Progress) -> list[str]:
    """Return the arguments of `heartlm` that start or resume `experiment`."""
    run = experiment.run
    return (run.resumed() if run.is_training and progress == "started" else run).argv()


def steps_of(experiment: Experiment, folder: Path) -> tuple[int, int] | None:
    """Return the completed steps and all steps of a training run, or None if it has not started."""
    if not experiment.run.is_training or not (note := _note(experiment, folder)).is_file():
        return None
    run = RunFolder(note.parent)
    steps = run.run_json.get("steps", 0)
    return (steps if run.is_finished else run.last_step), steps


def _without_compute_options(command: Any) -> list[str]:
    """Return the words of a command without compute options; other quoting or order is another command."""
    return [word for word in str(command or "").split() if not word.startswith(_HOW)]
