"""Encoding the recordings of a part: bytes to append to a corpus, and rows to note."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.corpus.plan import BuildPlan, BuildSettings
from heartlm.corpus.schema import FILES, ROW_FIELDS
from heartlm.corpus.sources import Source, Unusable, find_source, usable_leads
from heartlm.ecg.beats import BEAT_CLASSES
from heartlm.ecg.rhythms import RHYTHMS
from heartlm.errors import HeartlmError
from heartlm.tokenizers.base import Lead, Tokenizer, Tokens

_TELLING_TOKENS = 16


@dataclass
class LeftOut:
    """What is not in the corpus.

    Attributes:
        entries: `record`, `reason` and, where several of a kind are left out, their `count`.
        num_unreadable: how many of them because they could not be read.
    """

    entries: list[dict[str, str | int]] = field(default_factory=list)
    num_unreadable: int = 0

    def add(self, record: str, reason: str, *, unreadable: bool = False) -> None:
        """List one."""
        self.entries.append({"record": record, "reason": reason})
        self.num_unreadable += unreadable


@dataclass
class Part:
    """The recordings of one part as tokens.

    Attributes:
        database: where they are from.
        num_records: recordings, those left out included.
        num_samples: samples of the leads that were encoded.
        tokens: what to append to each file of the corpus.
        rows: for each field of a row, `first_token` apart, its values.
        digests: of the tokens of each row; empty where these are too few to tell recordings apart.
        left_out: what was left out.
        damaged: `record` and `fault` of each recording that is damaged and was used.
        beats: beats of each class, by split; a beat that several leads show is counted once.
        rhythms: tokens of each rhythm, by split.
    """

    database: str
    num_records: int = 0
    num_samples: int = 0
    tokens: dict[str, bytes] = field(default_factory=dict)
    rows: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in ROW_FIELDS if name != "first_token"}
    )
    digests: list[str] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    damaged: list[dict[str, str]] = field(default_factory=list)
    beats: dict[str, dict[str, int]] = field(default_factory=dict)
    rhythms: dict[str, dict[str, int]] = field(default_factory=dict)

    def entry(self) -> dict[str, Any]:
        """What the journal notes of the part, next to its tokens."""
        names = ("database", "num_records", "rows", "digests", "damaged", "beats", "rhythms")
        left_out = {"dropped": self.left_out.entries, "num_unreadable": self.left_out.num_unreadable}
        return {name: getattr(self, name) for name in names} | left_out


@dataclass(frozen=True)
class PartEncoder:
    """What a process needs to encode any part."""

    plan: BuildPlan
    tokenizer: Tokenizer
    choice: BuildSettings

    def encode(self, number: int) -> Part:
        """Encode every usable lead of the recordings of part `number`."""
        database, record_ids = self.plan.records(number)
        part, tokens = Part(database.name, len(record_ids)), list[Tokens]()
        for record_id in record_ids:
            source = find_source(
                database, record_id, self.tokenizer, self.choice.training_leads, self.choice.skip_unreadable
            )
            if isinstance(source, Unusable):
                part.left_out.add(f"{database.name}/{record_id}", source.reason, unreadable=source.unreadable)
            else:
                tokens += self._encode_source(source, part)
        for name, (kind, field_name) in FILES.items():
            arrays = [
                np.stack([each.beat_class, each.rhythm], axis=1) if name == "labels.bin" else getattr(each, field_name)
                for each in tokens
            ]
            part.tokens[name] = b"".join(np.ascontiguousarray(array, kind).tobytes() for array in arrays)
        return part

    def _encode_source(self, source: Source, part: Part) -> Iterator[Tokens]:
        ignored, first = dict[str, int](), True
        for lead in readable_leads(source, self.tokenizer, self.choice, part.left_out):
            tokens = self.tokenizer.encode(lead)
            if first:
                _count(part.beats, source.split, lead.annotations.beat_classes(), BEAT_CLASSES)
                _count(part.rhythms, source.split, tokens.rhythm, RHYTHMS)
            ignored, first = lead.annotations.ignored, False
            part.num_samples += source.recording.num_samples
            _add_row(part.rows, source, lead.index, tokens.num_tokens)
            part.digests.append("")
            if tokens.num_tokens >= _TELLING_TOKENS:
                # Positions of the first tokens are enough: those of the others cost more to read than they add.
                content = np.ascontiguousarray(tokens.codes).tobytes() + tokens.sample[:_TELLING_TOKENS].tobytes()
                part.digests[-1] = hashlib.blake2b(content, digest_size=16).hexdigest()
            del lead  # a day of samples, which the next lead needs the memory of
            yield tokens
        for reason, count in ignored.items():
            part.left_out.entries.append({"record": source.name, "reason": f"annotation: {reason}", "count": count})
        if not first and self.choice.damaged == "warn":
            source.recording.warn_if_damaged()
            part.damaged += [{"record": source.name, "fault": fault} for fault in source.recording.faults]


def _add_row(rows: dict[str, list[Any]], source: Source, lead: int, num_tokens: int) -> None:
    recording = source.recording
    values = {
        "database": recording.database,
        "record_id": recording.record_id,
        "patient_id": recording.patient_id,
        "split": source.split,
        "lead": recording.lead_names[lead] if recording.lead_names else "",
        "lead_index": lead,
        "rate_hz": float(recording.rate_hz),
        "num_samples": int(recording.num_samples),
        "num_tokens": num_tokens,
        "source": f"{_real_folder(recording.path.parent)}/{recording.path.name}",
    }
    for name, value in values.items():
        rows[name].append(value)


@lru_cache
def _real_folder(folder: Path) -> Path:
    return folder.resolve()


def _count(counts: dict[str, dict[str, int]], split: str, index: np.ndarray[Any, Any], names: Sequence[str]) -> None:
    """Add how often each of `names` is in `index`, −1 being the unlabelled."""
    counted = counts.setdefault(split, {})
    for place, count in enumerate(np.bincount(index + 1).tolist()):
        if count:
            name = names[place - 1] if place else "unlabelled"
            counted[name] = counted.get(name, 0) + count


def readable_leads(source: Source, tokenizer: Tokenizer, choice: BuildSettings, left_out: LeftOut) -> Iterator[Lead]:
    """Yield the usable leads of `source` and add the others, with the reason, to `left_out`.

    Raises:
        HeartlmError: the recording is unreadable or refused, and such are not to be skipped.
    """
    try:
        for lead in usable_leads(source, tokenizer, choice.beats, choice.damaged):
            if isinstance(lead, Unusable):
                left_out.add(source.name, lead.reason)
            else:
                yield lead
    except HeartlmError as error:
        if not choice.skip_unreadable:
            raise
        left_out.add(source.name, str(error), unreadable=True)
