"""Finishing a corpus: what the journal noted of its parts becomes the table of its rows and the manifest.

The rows are read part by part and written in groups, so that memory does not grow with their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from heartlm import __version__
from heartlm.corpus.encode import Part
from heartlm.corpus.journal import Entry, Journal
from heartlm.corpus.schema import SCHEMA_VERSION, Row, row_schema
from heartlm.errors import HeartlmError
from heartlm.files import sha256_of, write_json
from heartlm.tokenizers.base import Tokenizer

ROWS_AT_ONCE = 1 << 16
"""Rows of a group of `records.parquet`."""


@dataclass
class CorpusWriter:
    """Appends parts to a corpus under way."""

    journal: Journal

    def append(self, part: Part) -> None:
        """Append one part and note it."""
        noted = {
            name: getattr(part, name) for name in ("database", "num_records", "rows", "digests", "beats", "rhythms")
        }
        left_out = {"dropped": part.left_out.entries, "num_unreadable": part.left_out.num_unreadable}
        left_out["damaged"] = part.damaged
        self.journal.add(part.tokens, noted | left_out)


@dataclass
class _Split:
    """What is counted of one split of a database."""

    records: int = 0
    leads: int = 0
    tokens: int = 0
    patients: set[str] = field(default_factory=set)
    beats: Counter[str] = field(default_factory=Counter)
    rhythms: Counter[str] = field(default_factory=Counter)


@dataclass
class _Database:
    """What is counted of a database."""

    seconds: float = 0.0
    rates_hz: set[float] = field(default_factory=set)
    splits: dict[str, _Split] = field(default_factory=dict)

    def split(self, name: str) -> _Split:
        return self.splits.setdefault(name, _Split())


@dataclass
class Counts:
    """What is counted of a corpus, row by row and part by part."""

    num_tokens: int = 0
    databases: dict[str, _Database] = field(default_factory=dict)
    dropped: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[dict[str, str]] = field(default_factory=list)
    last: tuple[str, str] | None = None

    def add_part(self, entry: Entry) -> None:
        """Count the beats of a part and list what it left out."""
        self.dropped += entry["dropped"]
        self.damaged += entry["damaged"]
        for name in {*entry["beats"], *entry["rhythms"]}:
            split = self.databases.setdefault(entry["database"], _Database()).split(name)
            split.beats += Counter(entry["beats"].get(name, {}))
            split.rhythms += Counter(entry["rhythms"].get(name, {}))

    def add_row(self, row: Row) -> None:
        """Count a row; rows of one recording follow each other."""
        database = self.databases.setdefault(row.database, _Database())
        split = database.split(row.split)
        if (row.database, row.record_id) != self.last:
            self.last = (row.database, row.record_id)
            split.records += 1
            database.seconds += row.num_samples / row.rate_hz
        split.leads += 1
        split.tokens += row.num_tokens
        split.patients.add(row.patient_id)
        database.rates_hz.add(row.rate_hz)
        self.num_tokens += row.num_tokens

    def splits(self) -> list[_Split]:
        """All splits of all databases."""
        return [split for database in self.databases.values() for split in database.splits.values()]


def finish_corpus(journal: Journal, tokenizer: Tokenizer, command: str | None) -> dict[str, Any]:
    """Write `records.parquet` and `manifest.json` beside the tokens; return the manifest."""
    counts, folder = Counts(), journal.folder
    _write_rows(_rows(journal.entries(), counts), folder / "records.parquet")
    described = tokenizer.describe()
    splits = counts.splits()
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "heartlm": __version__,
        "command": command,
        "tokenizer": {
            "kind": tokenizer.kind,
            "hash": tokenizer.content_hash(),
            "causal": tokenizer.causal,
            "facets": described["facets"],
            "decode_error": described["settings"].get("decode_error"),
            "fitted_on": tokenizer.fitted_on,
        },
        "num_tokens": counts.num_tokens,
        "num_records": sum(split.records for split in splits),
        "num_patients": len(set().union(*(split.patients for split in splits))),
        "num_leads": sum(split.leads for split in splits),
        "num_beats": sum(split.beats.total() for split in splits),
        "databases": [_described(name, counts.databases[name]) for name in sorted(counts.databases)],
        "dropped": counts.dropped,
        "damaged": counts.damaged,
        "checksums": {**journal.checksums(), "records.parquet": sha256_of(folder / "records.parquet")},
    }
    write_json(folder / "manifest.json", manifest)
    return manifest


def _rows(entries: Iterable[Entry], counts: Counts) -> Iterator[Row]:
    first_with = dict[str, Row]()
    for entry in entries:
        counts.add_part(entry)
        columns = entry["rows"]
        for digest, *values in zip(entry["digests"], *columns.values(), strict=True):
            row = Row(first_token=counts.num_tokens, **dict(zip(columns, values, strict=True)))
            counts.add_row(row)
            other = first_with.setdefault(digest, row) if digest else row
            if other.patient_id != row.patient_id and other.split != row.split:
                raise HeartlmError(
                    f"{row.source}: gives the tokens of {other.source}, yet they count as two patients, one in "
                    f"{other.split} and one in {row.split}; remove one, or give both one patient in database.json"
                )
            yield row


def _write_rows(rows: Iterator[Row], path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    schema = row_schema()
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        while group := list(islice(rows, ROWS_AT_ONCE)):
            columns = [_column([getattr(row, entry.name) for row in group], entry.type) for entry in schema]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


def _column(values: Sequence[Any], kind: Any) -> Any:
    """A column of text or numbers, made from its bytes: pyarrow would import pandas to look at a list."""
    import pyarrow

    if not pyarrow.types.is_string(kind):
        numbers = np.array(values, kind.to_pandas_dtype())
        return pyarrow.Array.from_buffers(kind, len(values), [None, pyarrow.py_buffer(numbers)])
    texts = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(b"".join(texts))]
    return pyarrow.Array.from_buffers(kind, len(values), buffers)


def _described(name: str, database: _Database) -> dict[str, Any]:
    splits = database.splits
    return {
        "name": name,
        "num_records": sum(split.records for split in splits.values()),
        "num_patients": len(set().union(*(split.patients for split in splits.values()))),
        "num_beats": sum(split.beats.total() for split in splits.values()),
        "hours": round(database.seconds / 3600, 3),
        "rate_hz": sorted(database.rates_hz),
        "splits": {split: _described_split(splits[split]) for split in sorted(splits)},
    }


def _described_split(split: _Split) -> dict[str, Any]:
    return {
        "records": split.records,
        "patients": len(split.patients),
        "leads": split.leads,
        "tokens": split.tokens,
        "beats_per_class": dict(split.beats),
        "rhythms": dict(split.rhythms),
    }
