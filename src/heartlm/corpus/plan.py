"""Plan of a build: the recordings of all databases, divided into parts of a few recordings, and the settings.

A part is the unit that one process encodes at a time and that the journal records as finished. Parts depend only on the
recordings, not on the number of processes. A part never spans two databases.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

from heartlm import __version__
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.schema import SCHEMA_VERSION
from heartlm.databases.database import Database
from heartlm.errors import HeartlmError
from heartlm.storage.foreign import RemotePath
from heartlm.tokenizers.base import Tokenizer

Beats = Literal["auto", "annotated", "detected"]
TrainingLeads = Literal["first", "all"]

Parts = Sequence[tuple[Database, Sequence[str]]]
"""The database and the record names of each part."""

Statements = Mapping[str, Mapping[str, bool]]
"""Whether each statement about a recording is present, by `database/record`."""

NUM_PARTS, PART_RECORDS = 256, 16
"""A database has about this number of parts, and a part at most this number of recordings."""


def make_plan(databases: Sequence[Database]) -> Parts:
    """Divide the recordings of `databases` into parts."""
    parts = list[tuple[Database, Sequence[str]]]()
    for database in databases:
        names = database.record_ids
        size = min(max(len(names) // NUM_PARTS, 1), PART_RECORDS)
        parts += [(database, names[first : first + size]) for first in range(0, len(names), size)]
    return parts


def shards_of(parts: Parts, num_shards: int) -> list[Parts]:
    """Divide a plan into consecutive shards of about as many recordings; some are empty if there are few parts."""
    ends = list(accumulate(len(record_ids) for _, record_ids in parts))
    total = ends[-1] if ends else 0
    edges = [bisect_left(ends, round(total * number / num_shards)) for number in range(1, num_shards)]
    edges = [0, *(edge + 1 if edge < len(ends) else edge for edge in edges), len(parts)]
    return [parts[first:stop] for first, stop in pairwise(edges)]


def settings_of(
    config: TokenizeConfig, tokenizer: Tokenizer, is_fitted: bool, parts: Parts, statements: Statements
) -> dict[str, Any]:
    """Return everything that the tokens depend on, in the form read back from the journal.

    Args:
        config: settings of the corpus.
        tokenizer: tokenizer to encode with.
        is_fitted: whether it is fitted first, so that its settings decide, not its content.
        parts: recordings.
        statements: what is stated about each recording.
    """
    settings = {
        "heartlm": __version__,
        "schema_version": SCHEMA_VERSION,
        "tokenizer": [tokenizer.kind, tokenizer.settings()] if is_fitted else tokenizer.content_hash(),
        "recordings": fingerprint(parts),
        "training_leads": config.training_leads,
        "beats": config.beats,
        "damaged": config.damaged,
        "repaired": sorted({database.repaired for database, _ in parts}),
        "seed": config.seed,
        **({"shards": config.num_shards} if config.num_shards > 1 else {}),
        "statements": hashlib.sha256(json.dumps(statements, sort_keys=True).encode()).hexdigest(),
    }
    return dict(json.loads(json.dumps(settings)))


def fingerprint(parts: Parts) -> str:
    """Return the SHA-256 of the parts and of the name, size and time of change of every non-hidden database file.

    Raises:
        HeartlmError: a folder cannot be listed.
    """
    digest = hashlib.sha256()
    for database, record_ids in parts:
        digest.update(json.dumps([database.name, *record_ids]).encode())
    for database in {database.folder: database for database, _ in parts}.values():
        for line in database.versions():
            digest.update(line.encode())
    local = (database.folder for database, _ in parts if not isinstance(database.folder, RemotePath))
    try:
        for root in dict.fromkeys(folder.resolve() for folder in local):
            for folder, folders, names in os.walk(root, onerror=_raise):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for path in sorted(f"{folder}/{name}" for name in names if not name.startswith(".")):
                    about = os.lstat(path)
                    digest.update(os.fsencode(f"{path}\0{about.st_size}\0{about.st_mtime_ns}\n"))
    except OSError as error:
        raise HeartlmError(f"cannot read {error.filename}: {error.strerror}") from error
    return digest.hexdigest()


def _raise(error: OSError) -> None:
    raise error
