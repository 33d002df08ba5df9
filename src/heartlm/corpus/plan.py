"""What is to be done and how: the recordings of all databases, cut into parts of some megabytes, and the settings.

A part is what one process encodes at a time and what the journal of a build notes as done. Parts follow from the
recordings alone, not from the number of processes, and never reach over two databases.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heartlm import __version__
from heartlm.corpus.schema import SCHEMA_VERSION
from heartlm.ecg.database import Database, open_database
from heartlm.ecg.recording import Damaged
from heartlm.errors import HeartlmError
from heartlm.tokenizers.base import Tokenizer

Beats = Literal["auto", "annotated", "detected"]
TrainingLeads = Literal["first", "all"]

NUM_PARTS = 2048
"""Parts have as many bytes as make about this number of parts …"""
LEAST_BYTES, MOST_BYTES = 1 << 20, 1 << 24
"""… but not less than the first of these, nor more than the second; a long recording is a part by itself."""
PART_RECORDS = 64
"""Most recordings of a part."""

_SAMPLES_OF_HEADER = (".dat", ".mat")
"""Where the samples next to a header usually are; what has them elsewhere counts as a whole part."""


@dataclass(frozen=True)
class BuildPlan:
    """All recordings.

    Attributes:
        databases: where they are.
        parts: of each part the database and the names of the recordings.
    """

    databases: Sequence[Database]
    parts: Sequence[tuple[Database, Sequence[str]]]

    @property
    def num_records(self) -> int:
        """Recordings of all databases."""
        return sum(len(record_ids) for _, record_ids in self.parts)


def open_sources(folders: Sequence[Path]) -> list[Database]:
    """Open every database folder, names unique.

    Raises:
        HeartlmError: a folder is no database, or two have one name.
    """
    databases = [open_database(folder) for folder in folders]
    names = [database.name for database in databases]
    for name in names:
        if names.count(name) > 1:
            raise HeartlmError(f"two folders hold a database called {name!r}: rename one, or name it in database.json")
    return databases


def make_plan(databases: Sequence[Database]) -> BuildPlan:
    """Cut the recordings of `databases` into parts."""
    sizes = [[_size(database, record_id) for record_id in database.record_ids] for database in databases]
    part_bytes = min(max(sum(map(sum, sizes)) // NUM_PARTS, LEAST_BYTES), MOST_BYTES)
    parts = list[tuple[Database, list[str]]]()
    for database, of_database in zip(databases, sizes, strict=True):
        held = part_bytes  # parts never reach over two databases
        for record_id, size in zip(database.record_ids, of_database, strict=True):
            if held >= part_bytes or len(parts[-1][1]) == PART_RECORDS:
                parts.append((database, []))
                held = 0
            parts[-1][1].append(record_id)
            held += size
    return BuildPlan(databases, parts)


def _size(database: Database, record_id: str) -> int:
    files = database.files(record_id)
    if files.signal is None:
        return 1
    if files.signal.suffix != ".hea":
        return _file_size(str(files.signal)) or 1
    stem = str(files.signal).removesuffix(".hea")
    return next((size for suffix in _SAMPLES_OF_HEADER if (size := _file_size(stem + suffix))), LEAST_BYTES)


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - a hundred thousand of them
    except OSError:
        return 0


@dataclass(frozen=True)
class BuildSettings:
    """Settings of a build that its tokens follow from, besides the tokenizer and the recordings."""

    training_leads: TrainingLeads
    beats: Beats
    skip_unreadable: bool
    damaged: Damaged
    seed: int
    fit: bool

    def described(self, tokenizer: Tokenizer, plan: BuildPlan) -> dict[str, Any]:
        """All that tokens follow from, as the journal gives it back."""
        settings = {
            "heartlm": __version__,
            "schema_version": SCHEMA_VERSION,
            "tokenizer": [tokenizer.kind, tokenizer.settings()] if self.fit else tokenizer.content_hash(),
            "recordings": fingerprint(plan),
            "training_leads": self.training_leads,
            "beats": self.beats,
            "damaged": self.damaged,
            "seed": self.seed,
        }
        return dict(json.loads(json.dumps(settings)))


def fingerprint(plan: BuildPlan) -> str:
    """SHA-256 over the parts, and name, size and time of change of every file of the databases but hidden ones.

    Raises:
        HeartlmError: a folder cannot be listed.
    """
    digest = hashlib.sha256(json.dumps([record_ids for _, record_ids in plan.parts]).encode())
    for database in plan.databases:
        digest.update(json.dumps([database.name, str(database.folder.resolve())]).encode())
        try:
            for folder, folders, names in os.walk(database.folder.resolve(), onerror=_raise):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for name in sorted(name for name in names if not name.startswith(".")):
                    path = f"{folder}/{name}"
                    about = os.lstat(path)
                    text = f"{path}\0{about.st_size}\0{about.st_mtime_ns}\n"
                    digest.update(text.encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise HeartlmError(f"cannot read {error.filename}: {error.strerror}") from error
    return digest.hexdigest()


def _raise(error: OSError) -> None:
    raise error
