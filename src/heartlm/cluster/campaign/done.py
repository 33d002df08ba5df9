"""How far the result of an experiment is, by what lies in its place, and the command that continues from there.

The result itself decides, not a note about it: a run is done when its `run.json` says so, an evaluation when its scores
are there, a corpus when its manifest is. What was made with other settings is never taken for done.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
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
"""Options of the other commands that say how to compute, not what."""

Progress = Literal["absent", "started", "done"]


def progress_of(experiment: Experiment, folder: Path) -> Progress:
    """How far the result of `experiment` is; paths are relative to `folder`.

    Raises:
        HeartlmError: there is a result of other settings in its place.
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
    """The file that is there when `experiment` is done, or, of a training run, has started."""
    names = {"evaluate": "scores.json", "tokenize": "manifest.json"}
    return folder / experiment.result / names.get(experiment.run.command, "run.json")


def _same(one: Any, other: Any) -> bool:
    with suppress(ValueError):
        return bool(one == other or parse_yaml(str(one)) == parse_yaml(str(other)))
    return False


def words_to_continue(experiment: Experiment, progress: Progress) -> list[str]:
    """The words after `heartlm` that begin `experiment`, or resume it."""
    run = experiment.run
    if run.is_training and progress == "started":  # its own settings hold, how to compute is as the campaign says
        layout = {name: value for name, value in run.fields.items() if name in LAYOUT}
        run = RunFile(run.command, {"resume": str(run.out), **layout})
    return run.argv()


def steps_of(experiment: Experiment, folder: Path) -> tuple[int, int] | None:
    """Steps done and all steps of a training run; None where it has not started."""
    if not experiment.run.is_training or not (note := _note(experiment, folder)).is_file():
        return None
    run = RunFolder(note.parent)
    steps = run.run_json.get("steps", 0)
    return (steps if run.is_finished else run.last_step), steps


def _check_command(experiment: Experiment, folder: Path, note: Path) -> None:
    """Raise a HeartlmError unless what lies there was made by the command of `experiment`, however it computed."""
    made_by, ours = str(read_json(note, dict[str, Any]).get("command") or ""), ["heartlm", *experiment.run.argv()]
    try:
        is_same = _what(shlex.split(made_by)) == _what(ours)
    except ValueError:  # an open quote
        is_same = False
    if not is_same:
        raise HeartlmError(
            f"{experiment.name}: {note.parent} was made by  {made_by or 'an unknown command'}  and not by  "
            f"{shlex.join(ours)}: remove it, or give the experiment another name"
        )


def _what(words: Sequence[str]) -> set[str]:
    return {word for word in words if not word.startswith(_HOW)}
