"""Finishing a corpus: what the journal noted of its parts becomes the table of its rows and the manifest.

The rows are read part by part and written in groups, so that memory does not grow with their number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from heartlm import __version__
from heartlm.corpus.journal import Entry, Journal
from heartlm.corpus.schema import SCHEMA_VERSION, LeadRow, row_schema
from heartlm.errors import HeartlmError
from heartlm.files import sha256_of, write_json
from heartlm.tokenizers.base import Tokenizer

ROWS_AT_ONCE = 1 << 16
"""Rows of a group of `records.parquet`."""


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
    splits: dict[str, _Split] = field(default_factory=lambda: defaultdict(_Split))

    def describe(self, name: str) -> dict[str, Any]:
        """The entry of the manifest."""
        splits = self.splits.values()
        return {
            "name": name,
            "num_records": sum(split.records for split in splits),
            "num_patients": len(set().union(*(split.patients for split in splits))),
            "num_beats": sum(split.beats.total() for split in splits),
            "hours": round(self.seconds / 3600, 3),
            "rate_hz": sorted(self.rates_hz),
            "splits": {
                split: {
                    "records": counted.records,
                    "patients": len(counted.patients),
                    "leads": counted.leads,
                    "tokens": counted.tokens,
                    "beats_per_class": dict(counted.beats),
                    "rhythms": dict(counted.rhythms),
                }
                for split, counted in sorted(self.splits.items())
            },
        }


@dataclass
class Counts:
    """What is counted of a corpus, row by row and part by part."""

    num_tokens: int = 0
    databases: dict[str, _Database] = field(default_factory=lambda: defaultdict(_Database))
    dropped: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[dict[str, str]] = field(default_factory=list)
    last: tuple[str, str] | None = None

    def add_part(self, entry: Entry) -> None:
        """Count the beats of a part and list what it left out."""
        self.dropped += entry["dropped"]
        self.damaged += entry["damaged"]
        for name in {*entry["beats"], *entry["rhythms"]}:
            split = self.databases[entry["database"]].splits[name]
            split.beats += Counter(entry["beats"].get(name, {}))
            split.rhythms += Counter(entry["rhythms"].get(name, {}))

    def add_row(self, row: LeadRow) -> None:
        """Count a row; rows of one recording follow each other."""
        database = self.databases[row.database]
        split = database.splits[row.split]
        if (row.database, row.record_id) != self.last:
            self.last = (row.database, row.record_id)
            split.records += 1
            database.seconds += row.num_samples / row.rate_hz
        split.leads += 1
        split.tokens += row.num_tokens
        split.patients.add(row.patient_id)
        database.rates_hz.add(row.rate_hz)
        self.num_tokens += row.num_tokens


def finish_corpus(journal: Journal, tokenizer: Tokenizer, command: str | None) -> dict[str, Any]:
    """Write `records.parquet` and `manifest.json` next to the tokens; return the manifest."""
    import pyarrow
    import pyarrow.parquet

    counts, folder = Counts(), journal.folder
    rows, schema = _rows(journal.entries(), counts), row_schema()
    with pyarrow.parquet.ParquetWriter(folder / "records.parquet", schema) as writer:
        while group := list(islice(rows, ROWS_AT_ONCE)):
            columns = [_column([getattr(row, entry.name) for row in group], entry.type) for entry in schema]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))
    described = tokenizer.describe()
    splits = [split for database in counts.databases.values() for split in database.splits.values()]
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
        "databases": [counts.databases[name].describe(name) for name in sorted(counts.databases)],
        "dropped": counts.dropped,
        "damaged": counts.damaged,
        "checksums": {**journal.checksums(), "records.parquet": sha256_of(folder / "records.parquet")},
    }
    write_json(folder / "manifest.json", manifest)
    return manifest


def _rows(entries: Iterable[Entry], counts: Counts) -> Iterator[LeadRow]:
    first_with = dict[str, LeadRow]()
    for entry in entries:
        counts.add_part(entry)
        for digest, fields in zip(entry["digests"], entry["rows"], strict=True):
            row = LeadRow(first_token=counts.num_tokens, **fields)
            counts.add_row(row)
            other = first_with.setdefault(digest, row) if digest else row
            if other.patient_id != row.patient_id and other.split != row.split:
                raise HeartlmError(
                    f"{row.source}: gives the tokens of {other.source}, yet they count as two patients, one in "
                    f"{other.split} and one in {row.split}; remove one, or give both one patient in database.json"
                )
            yield row


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
