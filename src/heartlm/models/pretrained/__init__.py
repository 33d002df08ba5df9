"""The models that heartlm ships, by name: `heartlm predict beats mitdb/100`.

A shipped model is a run folder without checkpoints, metrics and corpus. Its `data.json` lists the patients it was
trained on, and `card.md` says what it was trained on, how it scores and what it must not be used for. `make models`
makes all of them.
"""

from __future__ import annotations

from pathlib import Path

from heartlm.errors import HeartlmError

FOLDER = Path(__file__).parent


def shipped_models() -> list[str]:
    """Names of the models in this installation."""
    return sorted(path.parent.name for path in FOLDER.glob("*/run.json"))


def is_shipped(run: Path) -> bool:
    """Whether `run` is the folder of a shipped model, which is only read."""
    return run.parent == FOLDER


def find_run(run: Path) -> Path:
    """The run folder that the user means: a path, or the name of a shipped model.

    A run folder of that name in the current directory comes first; any other file or folder of that name does not
    count. With a slash, `./beats`, it is always a path.

    Raises:
        HeartlmError: neither exists.
    """
    run = Path(run)
    if (run / "run.json").is_file():
        return run
    if run.name in shipped_models() and str(run) == run.name:
        return FOLDER / run.name
    if not run.exists():
        raise HeartlmError(f"{run}: no such run folder, nor a shipped model ({', '.join(shipped_models())})")
    return run
