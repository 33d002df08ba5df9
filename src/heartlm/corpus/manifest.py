"""Finish a corpus: write the table of rows and the manifest from the journal's entries."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from heartlm import __version__
from heartlm.corpus.journal import Journal
from heartlm.corpus.rows import ROWS_AT_ONCE, RowWriter
from heartlm.corpus.schema import FILES, SCHEMA_VERSION, LeadRow
from heartlm.corpus.shards import first_tokens
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import sha256_of, write_json
from heartlm.tokenizers.base import Tokenizer


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
    in_shards, num_records = list[int](), 0
    dropped, damaged, checksums = list[dict[str, Any]](), list[dict[str, str]](), dict[str, str]()
    databases, compared = defaultdict[str, _Database](_Database), _Compared()
    with closing(RowWriter(folder / "records.parquet")) as writer:
        for shard, journal in shards.items():
            in_shards.append(0)
            first_of_shard = first_tokens(in_shards)[-2]
            sums = dict.fromkeys(FILES, hashlib.sha256().hexdigest())
            for entry in journal.entries():
                sums = entry["sha256"]
                num_records += entry["num_records"]
                dropped += entry["dropped"]
                damaged += entry["damaged"]
                database = databases[entry["database"]]
                for split, counted in entry["beats"].items():
                    database.splits[split].beats.update(counted)
                for split, counted in entry["rhythms"].items():
                    database.splits[split].rhythms.update(counted)
                for digest, fields in zip(entry["digests"], entry["rows"], strict=True):
                    row = LeadRow(first_token=first_of_shard + in_shards[-1], **fields)
                    compared.add(digest, row)
                    database.add(row)
                    writer.add(row)
                    in_shards[-1] += row.num_tokens
            checksums |= {str(Path(shard, name)): digest for name, digest in sums.items()}
    compared.refuse_patient_in_two_splits(shards.values())
    used = [each.described(name, compared) for name, each in sorted(databases.items()) if each.last is not None]
    num_used = sum(database["num_records"] for database in used)
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
        "num_patients": compared.num_patients(),
        "num_leads": sum(split["leads"] for database in used for split in database["splits"].values()),
        "num_beats": sum(database["num_beats"] for database in used),
        "databases": used,
        "dropped": dropped,
        "damaged": damaged,
        "checksums": checksums | {"records.parquet": sha256_of(folder / "records.parquet")},
    }
    if any(shards):
        numbers = zip(shards, in_shards, strict=True)
        manifest["shards"] = [{"folder": shard, "num_tokens": number} for shard, number in numbers]
    write_json(folder / "manifest.json", manifest)
    return manifest


@dataclass
class _Split:
    """Numbers of a split of a database."""

    num_records: int = 0
    num_leads: int = 0
    num_tokens: int = 0
    beats: Counter[str] = field(default_factory=Counter)
    rhythms: Counter[str] = field(default_factory=Counter)


@dataclass
class _Database:
    """Numbers of a database."""

    splits: dict[str, _Split] = field(default_factory=lambda: defaultdict(_Split))
    seconds: float = 0.0
    rates: set[float] = field(default_factory=set)
    last: str | None = None

    def add(self, row: LeadRow) -> None:
        split = self.splits[row.split]
        if row.record_id != self.last:  # the rows of a recording follow one another
            self.last = row.record_id
            split.num_records += 1
            self.seconds += row.num_samples / row.rate_hz
            self.rates.add(row.rate_hz)
        split.num_leads += 1
        split.num_tokens += row.num_tokens

    def described(self, name: str, compared: _Compared) -> dict[str, Any]:
        """Return the entry of the manifest."""
        splits = {split: each for split, each in sorted(self.splits.items()) if each.num_leads}
        return {
            "name": name,
            "num_records": sum(each.num_records for each in splits.values()),
            "num_patients": compared.num_patients({(name, split) for split in splits}),
            "num_beats": sum(each.beats.total() for each in splits.values()),
            "hours": round(self.seconds / 3600, 3),
            "rate_hz": sorted(self.rates),
            "splits": {
                split: {
                    "records": each.num_records,
                    "patients": compared.num_patients({(name, split)}),
                    "leads": each.num_leads,
                    "tokens": each.num_tokens,
                    "beats_per_class": dict(each.beats),
                    "rhythms": dict(each.rhythms),
                }
                for split, each in splits.items()
            },
        }


class _Compared:
    """What rows are compared by, 18 bytes each: the digest of the tokens and the patient in 64 bits, and the split."""

    def __init__(self) -> None:
        self._digest, self._patient, self._split = array("Q"), array("Q"), array("H")
        self._splits = dict[tuple[str, str], int]()

    def add(self, digest: str, row: LeadRow) -> None:
        """Add a row; one without a digest is compared with none."""
        patient = hashlib.blake2b(row.patient_id.encode(), digest_size=8).digest()
        self._digest.append(int(digest[:16] or "0", 16))
        self._patient.append(int.from_bytes(patient))
        self._split.append(self._splits.setdefault((row.database, row.split), len(self._splits)))

    def num_patients(self, splits: Container[tuple[str, str]] | None = None) -> int:
        """Return the number of patients in splits of databases, by default in all."""
        patients = np.frombuffer(self._patient, np.uint64)
        if splits is not None:
            chosen = [index for split, index in self._splits.items() if split in splits]
            patients = patients[np.isin(np.frombuffer(self._split, np.uint16), chosen)]
        ordered = np.sort(patients)  # np.unique makes a set of them, of several times their size
        return int((ordered[1:] != ordered[:-1]).sum()) + 1 if len(ordered) else 0

    def refuse_patient_in_two_splits(self, journals: Iterable[Journal]) -> None:
        """Refuse rows with the same tokens, of two patients in two splits.

        Raises:
            HeartlmError: there are some; the first is named.
        """
        digest, patient = np.frombuffer(self._digest, np.uint64), np.frombuffer(self._patient, np.uint64)
        ordered = np.sort(digest)
        repeated = np.unique(ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] > 0)])
        del ordered
        pairs, names, first_with = list[tuple[int, int]](), list(self._splits), dict[int, int]()
        for begin in range(0, len(digest), ROWS_AT_ONCE):
            for place in (begin + np.flatnonzero(np.isin(digest[begin : begin + ROWS_AT_ONCE], repeated))).tolist():
                first = first_with.setdefault(int(digest[place]), place)
                if patient[place] != patient[first] and names[self._split[place]][1] != names[self._split[first]][1]:
                    pairs.append((place, first))
        if not pairs:
            return
        wanted = {*chain.from_iterable(pairs)}
        entries = chain.from_iterable(journal.entries() for journal in journals)
        each = chain.from_iterable(zip(entry["digests"], entry["rows"], strict=True) for entry in entries)
        rows = {index: row for index, row in enumerate(each) if index in wanted}
        for later_index, first_index in pairs:
            (own_digest, row), (other_digest, other) = rows[later_index], rows[first_index]
            if own_digest == other_digest:  # not only in 64 bits
                raise HeartlmError(
                    f"{row['source']}: gives the tokens of {other['source']}, yet they count as two patients, one in "
                    f"{other['split']} and one in {row['split']}; remove one, or give both one patient in database.json"
                )
