"""Building a corpus: fit the tokenizer on the training split, encode every lead, write, rename.

Recordings are encoded by several processes and appended in their order, so the corpus is the same whatever their
number, and memory holds a few recordings at a time.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from heartlm import __version__
from heartlm.corpus.schema import FILES, SCHEMA_VERSION, Row
from heartlm.corpus.sources import (
    Beats,
    Source,
    TrainingLeads,
    Unusable,
    find_sources,
    open_sources,
    usable_leads,
)
from heartlm.ecg.beats import BEAT_CLASSES
from heartlm.ecg.rhythms import RHYTHMS
from heartlm.errors import HeartlmError
from heartlm.files import atomic_folder, sha256_of, write_json
from heartlm.progress import track
from heartlm.tokenizers.base import Lead, Tokenizer, Tokens

LeftOut = Mapping[str, str | int]
"""What is not in the corpus: `record`, `reason` and, where several of a kind are left out, their `count`."""

Result = tuple[list["Encoded"], list[LeftOut]]
"""The leads of one recording, and what was left out of it."""

FIT_RECORDINGS = 300
"""At most so many training recordings of each database fit the tokenizer."""


@dataclass(frozen=True)
class Encoded:
    """One lead as tokens, with the class of each of its beats, int8 `[num_beats]`."""

    lead: int
    tokens: Tokens
    beat_class: NDArray[np.int8]


@dataclass
class _Writer:
    """Appends tokens to the files of a corpus and counts what it wrote."""

    folder: Path
    rows: list[Row] = field(default_factory=list)
    dropped: list[LeftOut] = field(default_factory=list)
    num_tokens: int = 0
    beats: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    rhythms: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)

    def append(self, streams: Mapping[str, IO[bytes]], source: Source, encoded: Encoded) -> None:
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
        if encoded.lead == source.leads[0]:  # the other leads repeat the same beats
            key = (source.recording.database, source.split)
            self.beats.setdefault(key, Counter()).update(_named(encoded.beat_class, BEAT_CLASSES))
            self.rhythms.setdefault(key, Counter()).update(_named(tokens.rhythm, RHYTHMS))


def _named(index: np.ndarray[Any, Any], names: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(index.astype(np.int64) + 1, minlength=len(names) + 1)
    return {name: int(count) for name, count in zip(("unlabelled", *names), counts, strict=True) if count}


def build_corpus(
    folders: Sequence[Path],
    tokenizer: Tokenizer,
    out: Path,
    *,
    training_leads: TrainingLeads = "first",
    beats: Beats = "auto",
    fit: bool = True,
    skip_unreadable: bool = False,
    processes: int | None = None,
    seed: int = 0,
    command: str | None = None,
) -> dict[str, Any]:
    """Tokenise the databases in `folders` into the corpus folder `out`; return its manifest.

    Args:
        folders: one folder a database.
        tokenizer: fitted here on the training split, unless `fit` is false or there is nothing to fit.
        out: replaced when the corpus is complete, untouched before.
        training_leads: the first lead of training recordings, or all of them.
        beats: annotated beats, detected ones, or annotated where there are any.
        fit: false keeps the tokenizer as it is (another run's).
        skip_unreadable: list unreadable recordings in the manifest instead of stopping at the first.
        processes: how many encode side by side; by default as many as this process has cores.
        seed: of the choice of beats the codebooks are fitted on.
        command: noted in the manifest, so that others can do the same.

    Raises:
        HeartlmError: unreadable input, nothing to tokenise, or `out` cannot be written or holds something else.
    """
    databases = open_sources(folders)
    sources, dropped = find_sources(databases, tokenizer, training_leads, skip_unreadable)
    with atomic_folder(_replaceable(out)) as temporary, ExitStack() as stack:
        if fit and tokenizer.needs_fitting:
            _fit(tokenizer, sources, beats, seed, skip_unreadable)
        writer = _Writer(temporary, dropped=[*dropped])
        streams = {name: stack.enter_context((temporary / name).open("wb")) for name in FILES}
        work = _Work(sources, tokenizer, beats, skip_unreadable)
        results = encode_all(work, processes or len(os.sched_getaffinity(0)))
        for source, (leads, left_out) in zip(sources, track(results, len(sources), "tokenize"), strict=True):
            writer.dropped += left_out
            for encoded in leads:
                writer.append(streams, source, encoded)
        stack.close()
        if writer.num_tokens == 0:
            raise HeartlmError(f"nothing to tokenise in {', '.join(map(str, folders))}: {_reasons(writer.dropped)}")
        tokenizer.save(temporary / "tokenizer")
        manifest = _finish(writer, tokenizer, command)
    return manifest


def _replaceable(out: Path) -> Path:
    """Return `out` unless something stands there that is no corpus, such as the recordings themselves."""
    is_corpus = (out / "manifest.json").is_file() and (out / "codes.bin").is_file()
    if out.exists() and not is_corpus and not (out.is_dir() and not any(out.iterdir())):
        raise HeartlmError(f"{out} exists and is no corpus: choose another name, or remove it first")
    return out


@dataclass(frozen=True)
class _Work:
    """What a process needs to encode any of the sources; inherited, not sent."""

    sources: Sequence[Source]
    tokenizer: Tokenizer
    beats: Beats
    skip_unreadable: bool

    def encode(self, index: int) -> Result:
        source, left_out = self.sources[index], list[LeftOut]()
        leads, ignored = list[Encoded](), dict[str, int]()
        for lead in _readable(source, self.tokenizer, self.beats, left_out, self.skip_unreadable):
            leads.append(Encoded(lead.lead, self.tokenizer.encode(lead), lead.annotations.beat_classes()))
            ignored = lead.annotations.ignored
        for reason, count in ignored.items():
            left_out.append({"record": source.name, "reason": f"annotation: {reason}", "count": count})
        return leads, left_out


_work: _Work | None = None


def _encode(index: int) -> Result:
    assert _work is not None, "set before the processes were forked"
    return _work.encode(index)


def encode_all(work: _Work, processes: int) -> Iterator[Result]:
    """Encode every source, in order, by `processes` forked ones.

    Raises:
        HeartlmError: a recording is unreadable and none are to be skipped.
    """
    global _work
    if processes == 1 or len(work.sources) < 2:
        yield from map(work.encode, range(len(work.sources)))
        return
    _work = work
    try:
        with multiprocessing.get_context("fork").Pool(min(processes, len(work.sources))) as pool:
            yield from pool.imap(_encode, range(len(work.sources)))
    finally:
        _work = None


def _readable(
    source: Source, tokenizer: Tokenizer, beats: Beats, dropped: list[LeftOut], skip_unreadable: bool
) -> Iterator[Lead]:
    try:
        for lead in usable_leads(source, tokenizer, beats):
            if isinstance(lead, Unusable):
                dropped.append({"record": source.name, "reason": lead.reason})
            else:
                yield lead
    except HeartlmError as error:
        if not skip_unreadable:
            raise
        dropped.append({"record": source.name, "reason": str(error)})


def _fit(tokenizer: Tokenizer, sources: Sequence[Source], beats: Beats, seed: int, skip_unreadable: bool) -> None:
    random = np.random.Generator(np.random.Philox(seed))
    chosen: list[Source] = []
    for name in sorted({source.recording.database for source in sources}):
        training = [s for s in sources if s.recording.database == name and s.split == "train"]
        pick = np.sort(random.permutation(len(training))[:FIT_RECORDINGS])
        chosen += [training[index] for index in pick]
    if not chosen:
        raise HeartlmError("no recording is in the training split, so there is nothing to fit the tokenizer on")
    tokenizer.fit(_leads_to_fit(chosen, tokenizer, beats, skip_unreadable), seed)
    counts = Counter(source.recording.database for source in chosen)
    tokenizer.fitted_on = {"split": "train", "recordings": dict(counts), "seed": seed}


def _leads_to_fit(
    sources: Sequence[Source], tokenizer: Tokenizer, beats: Beats, skip_unreadable: bool
) -> Iterator[Lead]:
    left_out, num_leads = list[LeftOut](), 0
    for source in track(sources, len(sources), f"fit the {tokenizer.kind} tokenizer"):
        for lead in _readable(source, tokenizer, beats, left_out, skip_unreadable):
            num_leads += 1
            yield lead
    if not num_leads:
        raise HeartlmError(f"no recording of the training split can be fitted on: {_reasons(left_out)}")


def _finish(writer: _Writer, tokenizer: Tokenizer, command: str | None) -> dict[str, Any]:
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


def _database(name: str, writer: _Writer) -> dict[str, Any]:
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


def _split(name: str, split: str, rows: list[Row], writer: _Writer) -> dict[str, Any]:
    inside = [row for row in rows if row.split == split]
    return {
        "records": len({row.record_id for row in inside}),
        "patients": len({row.patient_id for row in inside}),
        "leads": len(inside),
        "tokens": sum(row.num_tokens for row in inside),
        "beats_per_class": dict(writer.beats.get((name, split), {})),
        "rhythms": dict(writer.rhythms.get((name, split), {})),
    }


def _reasons(dropped: list[LeftOut]) -> str:
    counts = Counter(str(entry["reason"]) for entry in dropped)
    return "; ".join(f"{reason} ({count})" for reason, count in counts.most_common(3)) or "no recordings"
