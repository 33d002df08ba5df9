"""Plan of a build: the recordings of all databases, divided into parts of a few megabytes, and the settings.

A part is the unit that one process encodes at a time and that the journal records as finished. Parts depend only on the
recordings, not on the number of processes. A part never spans two databases.
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
"""Approximate number of parts, which determines their size in bytes."""
LEAST_BYTES, MOST_BYTES = 1 << 20, 1 << 24
"""Minimum and maximum size of a part in bytes. A longer recording is a part of its own."""
PART_RECORDS = 64
"""Maximum number of recordings in a part."""

_SAMPLES_OF_HEADER = (".dat", ".mat")
"""Usual suffixes of the sample file next to a header. A record with samples elsewhere counts as a whole part."""


@dataclass(frozen=True)
class BuildPlan:
    """All recordings to encode.

    Attributes:
        databases: the databases.
        parts: the database and the record names of each part.
    """

    databases: Sequence[Database]
    parts: Sequence[tuple[Database, Sequence[str]]]

    @property
    def num_records(self) -> int:
        """Number of recordings in all databases."""
        return sum(len(record_ids) for _, record_ids in self.parts)


def open_sources(folders: Sequence[Path]) -> list[Database]:
    """Open every database folder; names must be unique.

    Raises:
        HeartlmError: a folder is not a database, or two databases have the same name.
    """
    databases = [open_database(folder) for folder in folders]
    names = [database.name for database in databases]
    for name in names:
        if names.count(name) > 1:
            raise HeartlmError(f"two folders hold a database called {name!r}: rename one, or name it in database.json")
    return databases


def make_plan(databases: Sequence[Database]) -> BuildPlan:
    """Divide the recordings of `databases` into parts."""
    sizes = [[_size(database, record_id) for record_id in database.record_ids] for database in databases]
    part_bytes = min(max(sum(map(sum, sizes)) // NUM_PARTS, LEAST_BYTES), MOST_BYTES)
    parts = list[tuple[Database, list[str]]]()
    for database, of_database in zip(databases, sizes, strict=True):
        held = part_bytes  # a part never spans two databases
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
        return os.stat(path).st_size  # noqa: PTH116 - faster for a hundred thousand files
    except OSError:
        return 0


@dataclass(frozen=True)
class BuildSettings:
    """Settings of a build that affect its tokens, in addition to the tokenizer and the recordings."""

    training_leads: TrainingLeads
    beats: Beats
    skip_unreadable: bool
    damaged: Damaged
    seed: int
    fit: bool

    def described(self, tokenizer: Tokenizer, plan: BuildPlan) -> dict[str, Any]:
        """Return everything that the tokens depend on, in the form read back from the journal."""
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
    """Return the SHA-256 of the parts and of the name, size and time of change of every non-hidden database file.

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
