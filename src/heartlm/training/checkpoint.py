"""Checkpoints for resuming exactly: model, optimiser, step and best loss so far.

They are written by `torch.distributed.checkpoint`, so a run may resume on another number of processes. Each is a
folder written under a temporary name and renamed; the newest complete one counts, and one older is kept behind it.
Because data, masks and dropout of a step follow from the seed and the step, no other state is needed.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from heartlm.errors import HeartlmError
from heartlm.files import atomic_folder, read_json, write_json
from heartlm.models.heart import HeartModel

KEEP = 2
_PREFIX = "step-"


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        step: steps done.
        best_loss: lowest validation loss so far; None before the first validation.
    """

    step: int = 0
    best_loss: float | None = None


def save_checkpoint(folder: Path, model: HeartModel, optimizer: Optimizer, progress: Progress) -> None:
    """Write a checkpoint below `folder`, then remove all but the newest `KEEP`, and unfinished ones.

    Raises:
        HeartlmError: it cannot be written; earlier ones are untouched.
    """
    with atomic_folder(folder / _name(progress.step)) as temporary:
        write_json(temporary / "progress.json", vars(progress))
        with _quiet():
            dcp.save(_state(model, optimizer), checkpoint_id=str(temporary / "state"), no_dist=True)
    torn = folder.glob(f".{_PREFIX}*")  # what a kill left
    for old in (*complete_checkpoints(folder)[:-KEEP], *torn):
        shutil.rmtree(old, ignore_errors=True)


def complete_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints below `folder`, oldest first."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / "progress.json").is_file())


def restore_checkpoint(folder: Path, model: HeartModel, optimizer: Optimizer) -> Progress:
    """Load the newest checkpoint below `folder` into `model` and `optimizer`.

    Raises:
        HeartlmError: there is none, or it does not fit.
    """
    complete = complete_checkpoints(folder)
    if not complete:
        raise HeartlmError(f"{folder}: no checkpoint to resume from; start the run anew")
    state = _state(model, optimizer)
    try:
        with _quiet():
            dcp.load(state, checkpoint_id=str(complete[-1] / "state"), no_dist=True)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise HeartlmError(
            f"{complete[-1]} cannot be loaded ({reason}); remove it to resume from the one before"
        ) from error
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return Progress(**read_json(complete[-1] / "progress.json"))


def _name(step: int) -> str:
    return f"{_PREFIX}{step:09d}"


def _state(model: HeartModel, optimizer: Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence `torch.distributed.checkpoint`, and raise what lies in its exceptions: a full disk is an OSError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except CheckpointException as error:
        failed, _ = next(iter(error.failures.values()))
        cause: BaseException | None = failed
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        raise (cause or failed) from None
