"""Writing a corpus: tokens appended to its files, and the manifest that says what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from heartlm import __version__
from heartlm.corpus.encode import Encoded, LeftOut
from heartlm.corpus.schema import FILES, SCHEMA_VERSION, Row
from heartlm.corpus.sources import Source
from heartlm.ecg.beats import BEAT_CLASSES
from heartlm.ecg.rhythms import RHYTHMS
from heartlm.files import sha256_of, write_json
from heartlm.tokenizers.base import Tokenizer


@dataclass
class CorpusWriter:
    """Appends tokens to the files of a corpus and counts what it wrote."""

    folder: Path
    rows: list[Row] = field(default_factory=list)
    dropped: list[LeftOut] = field(default_factory=list)
    num_tokens: int = 0
    beats: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    rhythms: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)

    def append(self, streams: Mapping[str, IO[bytes]], source: Source, leads: Sequence[Encoded]) -> None:
        """Append the leads of one recording; its beats are counted once, since every lead repeats them."""
        for encoded in leads:
            self._append_lead(streams, source, encoded)
        for encoded in leads[:1]:
            key = (source.recording.database, source.split)
            self.beats.setdefault(key, Counter()).update(_named(encoded.beat_class, BEAT_CLASSES))
            self.rhythms.setdefault(key, Counter()).update(_named(encoded.tokens.rhythm, RHYTHMS))

    def _append_lead(self, streams: Mapping[str, IO[bytes]], source: Source, encoded: Encoded) -> None:
        tokens = encoded.tokens
        values = {
            "codes.bin": tokens.codes,
            "sample.bin": tokens.sample,
            "labels.bin": np.stack([tokens.beat_class, tokens.rhythm], axis=1),
            "scale.bin": tokens.scale_mv,
        }
        for name, array in values.items():
            streams[name].write(np.ascontiguousarray(array, FILES[name][0]).tobytes())
        recording = source.recording
        self.rows.append(
            Row(
                database=recording.database,
                record_id=recording.record_id,
                patient_id=recording.patient_id,
                split=source.split,
                lead=recording.lead_names[encoded.lead] if recording.lead_names else "",
                lead_index=encoded.lead,
                rate_hz=recording.rate_hz,
                num_samples=recording.num_samples,
                first_token=self.num_tokens,
                num_tokens=tokens.num_tokens,
                source=str(recording.path.resolve()),
            )
        )
        self.num_tokens += tokens.num_tokens


def _named(index: np.ndarray[Any, Any], names: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(index.astype(np.int64) + 1, minlength=len(names) + 1)
    return {name: int(count) for name, count in zip(("unlabelled", *names), counts, strict=True) if count}


def write_manifest(writer: CorpusWriter, tokenizer: Tokenizer, command: str | None) -> dict[str, Any]:
    """Write `records.parquet` and `manifest.json` beside the tokens; return the manifest."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist([asdict(row) for row in writer.rows])
    pyarrow.parquet.write_table(table, writer.folder / "records.parquet")
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
        "num_tokens": writer.num_tokens,
        "num_records": len({(row.database, row.record_id) for row in writer.rows}),
        "num_patients": len({row.patient_id for row in writer.rows}),
        "num_leads": len(writer.rows),
        "num_beats": sum(sum(counts.values()) for counts in writer.beats.values()),
        "databases": [_database(name, writer) for name in sorted({row.database for row in writer.rows})],
        "dropped": writer.dropped,
        "checksums": {name: sha256_of(writer.folder / name) for name in (*FILES, "records.parquet")},
    }
    write_json(writer.folder / "manifest.json", manifest)
    return manifest


def _database(name: str, writer: CorpusWriter) -> dict[str, Any]:
    rows = [row for row in writer.rows if row.database == name]
    unique = {row.record_id: row for row in rows}.values()
    return {
        "name": name,
        "num_records": len(unique),
        "num_patients": len({row.patient_id for row in rows}),
        "num_beats": sum(sum(counts.values()) for (other, _), counts in writer.beats.items() if other == name),
        "hours": round(sum(row.num_samples / row.rate_hz for row in unique) / 3600, 3),
        "rate_hz": sorted({row.rate_hz for row in rows}),
        "splits": {split: _split(name, split, rows, writer) for split in sorted({row.split for row in rows})},
    }


def _split(name: str, split: str, rows: list[Row], writer: CorpusWriter) -> dict[str, Any]:
    inside = [row for row in rows if row.split == split]
    return {
        "records": len({row.record_id for row in inside}),
        "patients": len({row.patient_id for row in inside}),
        "leads": len(inside),
        "tokens": sum(row.num_tokens for row in inside),
        "beats_per_class": dict(writer.beats.get((name, split), {})),
        "rhythms": dict(writer.rhythms.get((name, split), {})),
    }
