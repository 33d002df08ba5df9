"""The models that heartlm ships, by name: `heartlm predict beats mitdb/100`.

A shipped model is a run folder without checkpoints, metrics and corpus. Its `data.json` lists the patients it was
trained on, and `card.md` says what it was trained on, how it scores and what it must not be used for. `make models`
makes all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

from heartlm.errors import HeartlmError
from heartlm.models import hub

FOLDER = Path(__file__).parent


def shipped_models() -> list[str]:
    """Names of the models in this installation."""
    return sorted(path.parent.name for path in FOLDER.glob("*/run.json"))


def model_files(model: Path) -> tuple[Path, Path]:
    """The files of a model that decide what it answers: weights, and its settings with temperature and threshold."""
    return model / "config.json", model / "model.safetensors"


def is_saved(run: Path) -> bool:
    """Whether `run` was written by `Model.save_pretrained`: its model is at the top."""
    return (run / "model.safetensors").is_file()


def is_shipped(run: Path) -> bool:
    """Whether `run` is a model without its training, which is only read: shipped, or saved."""
    return run.parent == FOLDER or is_saved(run)


def shipped_name(run: Path) -> str:
    """Name for files about a shipped model: of its folder, or of its repository in the cache of the hub."""
    return run.parents[1].name.removeprefix("models--") if run.parent.name == "snapshots" else run.name


def find_run(run: str | os.PathLike[str]) -> Path:
    """The run folder that the user means: a path, the name of a shipped model, or `hf:OWNER/NAME` of the hub.

    A run folder of that name in the current directory comes first; any other file or folder of that name does not
    count. With a slash, `./beats`, it is always a path.

    Raises:
        HeartlmError: none exists, or see `hub.fetch`.
    """
    run = Path(run)
    if (run / "run.json").is_file():
        return run
    if str(run).startswith(hub.PREFIX):
        return hub.fetch(str(run))
    if run.name in shipped_models() and str(run) == run.name:
        return FOLDER / run.name
    if not run.exists():
        raise HeartlmError(f"{run}: no such run folder, nor a shipped model ({', '.join(shipped_models())})")
    return run
