"""Finish a corpus: write the table of rows and the manifest from the journal's entries."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from heartlm import __version__
from heartlm.corpus.journal import Journal
from heartlm.corpus.schema import FILES, SCHEMA_VERSION, LeadRow, row_schema
from heartlm.corpus.shards import first_tokens
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import sha256_of, write_json
from heartlm.tokenizers.base import Tokenizer

ROWS_AT_ONCE = 1 << 16
"""Number of rows in a row group of `records.parquet`."""

SplitCounts = dict[tuple[str, str], Counter[str]]
"""Counts by database and split."""


def finish_corpus(
    folder: Path, shards: Mapping[str, Journal], tokenizer: Tokenizer, command: str | None
) -> dict[str, Any]:
    """Write `records.parquet` and `manifest.json` into `folder`, and return the manifest.

    Args:
        folder: folder of the corpus.
        shards: journal of each shard by its folder below `folder`, in their order; a corpus without shards is the one
            of the folder "".
        tokenizer: tokenizer of the tokens.
        command: command line to record.

    Raises:
        HeartlmError: the same samples occur under two patients in different splits.
    """
    rows, in_shards, first_with = list[LeadRow](), list[int](), dict[str, LeadRow]()
    dropped, damaged = list[dict[str, Any]](), list[dict[str, str]]()
    num_records, checksums = 0, dict[str, str]()
    beats: SplitCounts = defaultdict(Counter)
    rhythms: SplitCounts = defaultdict(Counter)
    for shard, journal in shards.items():
        in_shards.append(0)
        first_of_shard = first_tokens(in_shards)[-2]
        digests = dict.fromkeys(FILES, hashlib.sha256().hexdigest())
        for entry in journal.entries():
            digests = entry["sha256"]
            num_records += entry["num_records"]
            dropped += entry["dropped"]
            damaged += entry["damaged"]
            for counts, noted in ((beats, entry["beats"]), (rhythms, entry["rhythms"])):
                for split, counted in noted.items():
                    counts[entry["database"], split] += Counter(counted)
            for digest, fields in zip(entry["digests"], entry["rows"], strict=True):
                row = LeadRow(first_token=first_of_shard + in_shards[-1], **fields)
                # the first row with these tokens; a row without a digest is compared with none
                other = first_with.setdefault(digest, row) if digest else row
                if other.patient_id != row.patient_id and other.split != row.split:
                    raise HeartlmError(
                        f"{row.source}: gives the tokens of {other.source}, yet they count as two patients, one in "
                        f"{other.split} and one in {row.split}; remove one, or give both one patient in database.json"
                    )
                rows.append(row)
                in_shards[-1] += row.num_tokens
        checksums |= {str(Path(shard, name)): digest for name, digest in digests.items()}
    _write_rows(folder / "records.parquet", rows)
    rows_by_database = defaultdict[str, list[LeadRow]](list)
    for row in rows:
        rows_by_database[row.database].append(row)
    databases = [_database(name, rows_by_database[name], beats, rhythms) for name in sorted(rows_by_database)]
    num_used = sum(database["num_records"] for database in databases)
    described = tokenizer.describe()
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
        "num_tokens": sum(in_shards),
        "num_records": num_used,
        "num_left_out": num_records - num_used,
        "num_patients": len({row.patient_id for row in rows}),
        "num_leads": len(rows),
        "num_beats": sum(database["num_beats"] for database in databases),
        "databases": databases,
        "dropped": dropped,
        "damaged": damaged,
        "checksums": checksums | {"records.parquet": sha256_of(folder / "records.parquet")},
    }
    if any(shards):
        numbers = zip(shards, in_shards, strict=True)
        manifest["shards"] = [{"folder": shard, "num_tokens": number} for shard, number in numbers]
    write_json(folder / "manifest.json", manifest)
    return manifest


def _database(name: str, rows: Sequence[LeadRow], beats: SplitCounts, rhythms: SplitCounts) -> dict[str, Any]:
    """Return the entry of a database in the manifest."""
    seconds = {row.record_id: row.num_samples / row.rate_hz for row in rows}
    splits = {}
    for split in sorted({row.split for row in rows}):
        own = [row for row in rows if row.split == split]
        splits[split] = {
            "records": len({row.record_id for row in own}),
            "patients": len({row.patient_id for row in own}),
            "leads": len(own),
            "tokens": sum(row.num_tokens for row in own),
            "beats_per_class": dict(beats[name, split]),
            "rhythms": dict(rhythms[name, split]),
        }
    return {
        "name": name,
        "num_records": len(seconds),
        "num_patients": len({row.patient_id for row in rows}),
        "num_beats": sum(beats[name, split].total() for split in splits),
        "hours": round(sum(seconds.values()) / 3600, 3),
        "rate_hz": sorted({row.rate_hz for row in rows}),
        "splits": splits,
    }


def _write_rows(path: Path, rows: Sequence[LeadRow]) -> None:
    # By way of JSON, because pyarrow imports pandas to convert lists of Python objects.
    from pyarrow import json as arrow_json
    from pyarrow import parquet

    options = arrow_json.ParseOptions(explicit_schema=row_schema())
    with parquet.ParquetWriter(path, row_schema()) as writer:
        for first in range(0, len(rows), ROWS_AT_ONCE):  # one row group at a time is in memory as text
            text = "\n".join(json.dumps(vars(row)) for row in rows[first : first + ROWS_AT_ONCE])
            table = arrow_json.read_json(BytesIO(text.encode()), parse_options=options)
            writer.write_table(table.combine_chunks(), row_group_size=ROWS_AT_ONCE)
