"""Plan of a build: the recordings of all databases, divided into parts of a few recordings, and the settings.

A part is the unit that one process encodes at a time and that the journal records as finished. Parts depend only on the
recordings, not on the number of processes. A part never spans two databases. Of a source with more than
`discovery.HELD` recordings the list is on disk, and parts are read from it when they are encoded.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any, Literal

from heartlm import __version__
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.schema import SCHEMA_VERSION
from heartlm.databases.database import Database, stream_database
from heartlm.databases.discovery import RecordFiles, beginning_of
from heartlm.databases.spool import RecordSpool
from heartlm.ecg.recording import Repaired
from heartlm.errors import HeartlmError
from heartlm.storage.foreign import RemotePath
from heartlm.tokenizers.base import Tokenizer

Beats = Literal["auto", "annotated", "detected"]
TrainingLeads = Literal["first", "all"]

Statements = Mapping[str, Mapping[str, bool]]
"""Whether each statement about a recording is present, by `database/record`."""

NUM_PARTS, PART_RECORDS = 256, 16
"""A database has about this number of parts, and a part at most this number of recordings."""


@dataclass(frozen=True)
class PartRecords:
    """Recordings of a part.

    Attributes:
        database: index of the database.
        record_ids: their names.
        files: their files, if the database was opened without its records.
    """

    database: int
    record_ids: Sequence[str]
    files: Mapping[str, RecordFiles] | None = None

    def opened(self, databases: Sequence[Database]) -> Database:
        """Return the database with the recordings."""
        database = databases[self.database]
        return database if self.files is None else database.with_files(self.files)

    def singles(self) -> list[PartRecords]:
        """Return each recording as a part of its own."""
        return [PartRecords(self.database, [name], self.files and {name: self.files[name]}) for name in self.record_ids]


@dataclass(frozen=True)
class _Span:
    """Consecutive recordings of a database, in parts of `size`; the last part may have fewer."""

    database: int
    records: Sequence[str] | RecordSpool
    size: int

    def __len__(self) -> int:
        return -(-len(self.records) // self.size)

    def parts(self, first: int, stop: int) -> _Span:
        return _Span(self.database, self.records[first * self.size : stop * self.size], self.size)

    def __iter__(self) -> Iterator[PartRecords]:
        if isinstance(self.records, RecordSpool):
            left = iter(self.records)
            while files := dict(islice(left, self.size)):
                yield PartRecords(self.database, list(files), files)
        else:
            for first in range(0, len(self.records), self.size):
                yield PartRecords(self.database, self.records[first : first + self.size])


@dataclass(frozen=True)
class BuildPlan:
    """Parts of consecutive recordings."""

    spans: Sequence[_Span]

    @property
    def num_records(self) -> int:
        """Number of recordings."""
        return sum(len(span.records) for span in self.spans)

    def __len__(self) -> int:
        return sum(map(len, self.spans))

    def __iter__(self) -> Iterator[PartRecords]:
        for span in self.spans:
            yield from span

    def parts(self, first: int, stop: int | None = None) -> BuildPlan:
        """Return the parts with the numbers from `first` to before `stop`."""
        ends = [0, *accumulate(map(len, self.spans))]
        stop = ends[-1] if stop is None else stop
        cut = (
            span.parts(max(first - begin, 0), max(min(stop - begin, len(span)), 0))
            for begin, span in zip(ends, self.spans, strict=False)
        )
        return BuildPlan([span for span in cut if len(span)])

    def shards(self, num_shards: int) -> list[BuildPlan]:
        """Divide the parts into consecutive shards of about as many recordings; some are empty if there are few."""
        spans = ((span.size, len(span.records)) for span in self.spans)
        sizes = (min(size, number - first) for size, number in spans for first in range(0, number, size))
        ends = array("Q", accumulate(sizes))
        total = ends[-1] if ends else 0
        edges = [bisect_left(ends, round(total * number / num_shards)) for number in range(1, num_shards)]
        edges = [0, *(edge + 1 if edge < len(ends) else edge for edge in edges), len(ends)]
        return [self.parts(first, stop) for first, stop in pairwise(edges)]


def listed(folder: Path, repaired: Repaired) -> tuple[Database, Sequence[str] | RecordSpool]:
    """Open a database, and list its recordings: their names, or those of a large source on disk.

    Raises:
        HeartlmError: as `open_database`.
    """
    database, records = stream_database(folder, repaired=repaired)
    first, are_all = beginning_of(records)
    if are_all:
        database = database.with_files(dict(first))
        return database, database.record_ids
    return database, RecordSpool(chain(first, records), type(database.folder))


def make_plan(records: Sequence[Sequence[str] | RecordSpool]) -> BuildPlan:
    """Divide the recordings of each database into parts."""
    sizes = (min(max(len(each) // NUM_PARTS, 1), PART_RECORDS) for each in records)
    return BuildPlan(
        [_Span(number, each, size) for number, (each, size) in enumerate(zip(records, sizes, strict=True))]
    )


def settings_of(
    config: TokenizeConfig,
    tokenizer: Tokenizer,
    is_fitted: bool,
    databases: Sequence[Database],
    plan: BuildPlan,
    statements: Statements,
) -> dict[str, Any]:
    """Return everything that the tokens depend on, in the form read back from the journal.

    Args:
        config: settings of the corpus.
        tokenizer: tokenizer to encode with.
        is_fitted: whether it is fitted first, so that its settings decide, not its content.
        databases: the databases.
        plan: their recordings.
        statements: what is stated about each recording.
    """
    settings = {
        "heartlm": __version__,
        "schema_version": SCHEMA_VERSION,
        "tokenizer": [tokenizer.kind, tokenizer.settings()] if is_fitted else tokenizer.content_hash(),
        "recordings": _fingerprint(databases, plan),
        "training_leads": config.training_leads,
        "beats": config.beats,
        "damaged": config.damaged,
        "repaired": sorted({database.repaired for database in databases}),
        "seed": config.seed,
        **({"shards": config.num_shards} if config.num_shards > 1 else {}),
        "statements": hashlib.sha256(json.dumps(statements, sort_keys=True).encode()).hexdigest(),
    }
    return dict(json.loads(json.dumps(settings)))


def _fingerprint(databases: Sequence[Database], plan: BuildPlan) -> str:
    """Return the SHA-256 of the parts and of the name, size and time of change of every non-hidden database file.

    Raises:
        HeartlmError: a folder cannot be listed.
    """
    digest = hashlib.sha256()
    for span in plan.spans:
        named = span.records.digest if isinstance(span.records, RecordSpool) else list(span.records)
        digest.update(json.dumps([databases[span.database].name, span.size, named]).encode())
    for database in {database.folder: database for database in databases}.values():
        for line in database.versions():
            digest.update(line.encode())
    local = (database.folder for database in databases if not isinstance(database.folder, RemotePath))
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
