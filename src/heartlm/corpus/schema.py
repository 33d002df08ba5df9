"""The layout of a corpus folder.

    manifest.json     schema version, counts, tokenizer, checksums, dropped recordings with reasons
    codes.bin         uint16 [num_tokens, num_facets]
    sample.bin        int64  [num_tokens]      position in the recording
    labels.bin        int8   [num_tokens, 2]   beat class, rhythm; -1 unlabelled
    scale.bin         float32 [num_tokens]     millivolts per unit of the decoded waveform
    records.parquet   one row per lead of each recording, in the order of the tokens
    tokenizer/        the tokenizer that encoded the corpus

Every token is stored once; windows of any width are views. A corpus in shards has the array files in `shards/0000`,
`shards/0001`, ..., in the order of the rows; `first_token` counts as `corpus/shards.py` places them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import numpy as np

SCHEMA_VERSION = 1

FILES: dict[str, tuple[type[np.generic], str]] = {
    "codes.bin": (np.uint16, "codes"),
    "sample.bin": (np.int64, "sample"),
    "labels.bin": (np.int8, "labels"),
    "scale.bin": (np.float32, "scale_mv"),
}
"""Element type of each array file and the field it holds; all little-endian, C order."""


class FacetEntry(TypedDict):
    """A facet of the tokenizer in `manifest.json`."""

    name: str
    size: int


class TokenizerEntry(TypedDict):
    """The tokenizer in `manifest.json`."""

    kind: str
    hash: str
    facets: list[FacetEntry]


class SplitEntry(TypedDict):
    """A split of a database in `manifest.json`."""

    beats_per_class: dict[str, int]
    rhythms: dict[str, int]


class DatabaseEntry(TypedDict):
    """A database in `manifest.json`."""

    name: str
    splits: dict[str, SplitEntry]


class ShardEntry(TypedDict):
    """A shard in `manifest.json`; a corpus that is not in shards has none."""

    folder: str
    num_tokens: int


class Manifest(TypedDict):
    """The fields of `manifest.json` that heartlm reads; the file has more fields for information."""

    num_tokens: int
    tokenizer: TokenizerEntry
    databases: list[DatabaseEntry]
    checksums: dict[str, str]


@dataclass(frozen=True)
class LeadRow:
    """One lead of one recording in a corpus.

    Attributes:
        database: catalogue name of the database.
        record_id: name of the record within the database.
        patient_id: patient identifier, unique over databases.
        split: train, validation, test or excluded.
        lead: name of the lead; empty for tokenizers that read no signal.
        lead_index: index of the lead in the recording.
        rate_hz: rate of the positions in `sample`, in Hz.
        num_samples: length of the recording in samples; 0 if unknown.
        first_token: index of the first token.
        num_tokens: number of tokens.
        source: path of the file that the recording was read from.
        statements: what a report states about the recording, as JSON: whether each known statement is present.
    """

    database: str
    record_id: str
    patient_id: str
    split: str
    lead: str
    lead_index: int
    rate_hz: float
    num_samples: int
    first_token: int
    num_tokens: int
    source: str
    statements: str = "{}"


ROW_FIELDS: tuple[str, ...] = tuple(entry.name for entry in fields(LeadRow))


def row_schema(names: Sequence[str] = ROW_FIELDS) -> Any:
    """Return the pyarrow schema of the fields `names` of `records.parquet`; earlier ones have no statements."""
    import pyarrow

    kinds = {"str": pyarrow.string(), "int": pyarrow.int64(), "float": pyarrow.float64()}
    return pyarrow.schema([(name, kinds[kind]) for name, kind in LeadRow.__annotations__.items() if name in names])
