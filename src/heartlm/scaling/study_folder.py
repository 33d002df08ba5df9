"""The folder of a study: one study at a time, with one set of settings.

study.json          settings that decide the numbers
skipped.json        cells that do not fit, with the reason
foundations/        one hardly trained model a database, for the fine-tunings
measurements/       one file a cell and repeat, written when it is whole
work/               the training that goes on; what failed leaves its logs here
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heartlm.corpus.corpus import open_corpus
from heartlm.errors import HeartlmError
from heartlm.files import read_json, write_json
from heartlm.scaling.cell import SCHEMA_VERSION
from heartlm.scaling.study import StudyConfig

DECIDES = ("accumulation", "batch_tokens", "compile", "depth", "device", "seed", "steps", "task", "warm_up", "width")
"""Settings that must not change while a study goes on: its numbers would not be comparable."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep others from measuring in the same folder; the lock ends with this process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise HeartlmError(f"cannot write {folder}: {error.strerror}: choose another --out") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise HeartlmError(f"{folder}: another study is being measured there: wait for its end") from None
        yield


def describe(config: StudyConfig, folder: Path) -> None:
    """Note what decides the numbers of a study, or see that a study that goes on has the same.

    Raises:
        HeartlmError: a corpus cannot be opened, or the study was begun with other settings.
    """
    hashes = {name: open_corpus(Path(path)).manifest_hash for name, path in config.databases.items()}
    about = {"schema": SCHEMA_VERSION, **{name: getattr(config, name) for name in DECIDES}}
    before = read_json(folder / "study.json") if (folder / "study.json").exists() else {**about, "databases": {}}
    for name, value in about.items():
        if before.get(name) != value:
            raise HeartlmError(
                f"{name}: {value} found, but {folder} was begun with {before.get(name)}: choose another --out"
            )
    for name, value in hashes.items():
        if before["databases"].setdefault(name, value) != value:
            raise HeartlmError(f"databases: {name} is another corpus than {folder} was begun with: choose another name")
    write_json(folder / "study.json", before)
