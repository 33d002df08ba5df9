"""Progress of an experiment, read from its result folder, and the command that continues it.

Progress is read from the result itself: a run is done if its `run.json` says so, an evaluation if its scores
exist, a corpus if its manifest exists. A result with other settings never counts as done.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from heartlm.cluster.campaign.campaign import Experiment
from heartlm.cluster.run_file import RunFile
from heartlm.errors import HeartlmError
from heartlm.files import read_json
from heartlm.runs.run_folder import RunFolder
from heartlm.safe_yaml import parse_yaml
from heartlm.training.config import LAYOUT, FinetuneConfig, PretrainConfig

_PATHS = ("corpus", "run")
_HOW = ("--threads=", "--device=", "--processes=")
"""Options of the other commands that affect the computation but not the result."""

Progress = Literal["absent", "started", "done"]


def progress_of(experiment: Experiment, folder: Path) -> Progress:
    """Return the progress of `experiment`; paths are relative to `folder`.

    Raises:
        HeartlmError: the result folder contains a result of other settings.
    """
    run, note = experiment.run, _note(experiment, folder)
    if not note.is_file():
        return "absent"
    if not run.is_training:
        _check_command(experiment, folder, note)
        return "done"
    made = RunFolder(note.parent)
    found = {**made.settings, "kind": made.run_json.get("kind")}
    defaults = vars(PretrainConfig() if run.command == "pretrain" else FinetuneConfig())
    for name, value in {"kind": run.command, **defaults, **run.fields}.items():
        if value is None or name in (*LAYOUT, "out", "resume"):
            continue
        expected = str((folder / str(value)).resolve()) if name in _PATHS else value
        if not _same(found.get(name), expected):
            raise HeartlmError(
                f"{experiment.name}: {note.parent} is there already with {name} {found.get(name)}, {expected} "
                "expected: remove it, or give the experiment another out"
            )
    return "done" if made.is_finished else "started"


def _note(experiment: Experiment, folder: Path) -> Path:
    """Return the file that exists when `experiment` is done, or, for a training run, when it has started."""
    names = {"evaluate": "scores.json", "tokenize": "manifest.json"}
    return folder / experiment.result / names.get(experiment.run.command, "run.json")


def _same(one: Any, other: Any) -> bool:
    with suppress(ValueError):
        return bool(one == other or parse_yaml(str(one)) == parse_yaml(str(other)))
    return False


def words_to_continue(experiment: Experiment, progress: Progress) -> list[str]:
    """Return the arguments of `heartlm` that start or resume `experiment`."""
    run = experiment.run
    if run.is_training and progress == "started":  # the run's settings apply, with the compute options of the campaign
        layout = {name: value for name, value in run.fields.items() if name in LAYOUT}
        run = RunFile(run.command, {"resume": str(run.out), **layout})
    return run.argv()


def steps_of(experiment: Experiment, folder: Path) -> tuple[int, int] | None:
    """Return the completed steps and all steps of a training run, or None if it has not started."""
    if not experiment.run.is_training or not (note := _note(experiment, folder)).is_file():
        return None
    run = RunFolder(note.parent)
    steps = run.run_json.get("steps", 0)
    return (steps if run.is_finished else run.last_step), steps


def _check_command(experiment: Experiment, folder: Path, note: Path) -> None:
    """Raise a HeartlmError unless the result was made by the command of `experiment`; compute options may differ."""
    made_by, ours = str(read_json(note, dict[str, Any]).get("command") or ""), ["heartlm", *experiment.run.argv()]
    if _what(made_by) != _what(shlex.join(ours)):
        raise HeartlmError(
            f"{experiment.name}: {note.parent} was made by  {made_by or 'an unknown command'}  and not by  "
            f"{shlex.join(ours)}: remove it, or give the experiment another name"
        )


def _what(command: str) -> list[str]:
    """Return the words of a command without compute options; other quoting or order is another command."""
    return [word for word in command.split() if not word.startswith(_HOW)]
