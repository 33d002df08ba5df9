"""From recordings to tokens: which leads of which recordings, with which beats, encoded part by part.

Training recordings may give every ECG lead, each a text of its own about the same beats; validation and test
recordings give one, so that scores are single-lead scores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.plan import Beats, BuildPlan, BuildSettings, TrainingLeads
from heartlm.corpus.schema import FILES
from heartlm.ecg.beats import BEAT_CLASSES
from heartlm.ecg.database import Database
from heartlm.ecg.detect import detect_beats
from heartlm.ecg.recording import Annotations, Damaged, Recording
from heartlm.ecg.rhythms import RHYTHMS
from heartlm.ecg.splits import Split
from heartlm.errors import HeartlmError
from heartlm.tokenizers.base import Lead, Tokenizer, Tokens

PREFERRED_LEADS: tuple[str, ...] = ("mlii", "ii", "ecg1", "ecg", "i")
"""The lead taken where one is taken: the first of these that is there, else the first ECG lead of the file."""

NO_ECG_LEAD = "no ECG lead (none measured in mV)"

_TELLING_TOKENS = 16
"""Fewest tokens of a row that tell recordings apart."""


@dataclass(frozen=True)
class Source:
    """One recording on its way into a corpus."""

    recording: Recording
    split: Split
    leads: tuple[int, ...]

    @property
    def name(self) -> str:
        """`database/record`, for messages."""
        return f"{self.recording.database}/{self.recording.record_id}"


@dataclass(frozen=True)
class Unusable:
    """A lead or recording that is left out, and why; it is counted and listed, not an error."""

    reason: str
    unreadable: bool = False


def find_source(
    database: Database,
    record_id: str,
    tokenizer: Tokenizer,
    training_leads: TrainingLeads,
    skip_unreadable: bool = False,
) -> Source | Unusable:
    """Open one recording, or say why it is left out.

    Raises:
        HeartlmError: a header is unreadable and none are to be skipped, or a recording without signal meets a
            tokenizer that needs one.
    """
    try:
        recording, split = database.recording(record_id), database.split_of(record_id)
    except HeartlmError as error:
        if not skip_unreadable:
            raise
        return Unusable(str(error), unreadable=True)
    return source_of(recording, split, tokenizer, training_leads)


def source_of(
    recording: Recording, split: Split, tokenizer: Tokenizer, training_leads: TrainingLeads
) -> Source | Unusable:
    """The leads of an open recording that go into a corpus, or why there is none.

    Raises:
        HeartlmError: the recording has no signal, and the tokenizer needs one.
    """
    if tokenizer.needs_signal and not recording.has_signal:
        raise HeartlmError(
            f"{recording.path}: annotations only, and the {tokenizer.kind} tokenizer reads the signal: "
            "use --tokenizer rhythm"
        )
    leads = chosen_leads(recording, split, training_leads) if tokenizer.reads_signal else (0,)
    if not tokenizer.needs_signal:
        leads = leads or (0,)
    return Source(recording, split, leads) if leads else Unusable(NO_ECG_LEAD)


def ecg_leads(recording: Recording) -> tuple[int, ...]:
    """The leads measured in millivolts, the usual ones first, then in the order of the recording; none if none is."""
    order = {name: place for place, name in enumerate(PREFERRED_LEADS)}
    voltage = (index for index, unit in enumerate(recording.units) if unit == "mV")
    return tuple(sorted(voltage, key=lambda index: order.get(recording.lead_names[index].lower(), len(order))))


def ecg_lead(recording: Recording, lead: int | str | None = None) -> int:
    """Index of a lead, by default of the preferred ECG lead.

    Raises:
        HeartlmError: there is no such lead, or none of an ECG.
    """
    if lead is not None:
        return recording.lead_index(lead)
    leads = ecg_leads(recording)
    if not leads:
        raise HeartlmError(f"{recording.path}: {NO_ECG_LEAD}")
    return leads[0]


def chosen_leads(recording: Recording, split: Split, training_leads: TrainingLeads) -> tuple[int, ...]:
    """The leads to take: every ECG lead of a training recording with `all`, else the preferred one; none if none is."""
    leads = ecg_leads(recording)
    return tuple(sorted(leads)) if training_leads == "all" and split == "train" else leads[:1]


def usable_leads(source: Source, tokenizer: Tokenizer, beats: Beats, damaged: Damaged) -> Iterator[Lead | Unusable]:
    """The leads of `source` ready to encode, or the reason why one is not: it is flat, or has fewer than two beats.

    Damage is gathered in `source.recording.faults`.

    Raises:
        HeartlmError: a file is unreadable, or damaged and such are to be refused, or beats have to be detected where
            that is impossible.
    """
    recording = source.recording
    for index in source.leads:
        ready = _usable_lead(recording, tokenizer, beats, index)
        if damaged == "refuse":
            recording.refuse_if_damaged()
        yield ready


def _usable_lead(recording: Recording, tokenizer: Tokenizer, beats: Beats, index: int) -> Lead | Unusable:
    signal = np.empty(0, np.float32)
    if tokenizer.reads_signal and recording.has_signal:
        try:
            signal = recording.signal(leads=[index])[0]
        except HeartlmError:  # annotations often come without the signal that their header names
            if tokenizer.needs_signal:
                raise
        # fmin and fmax leave gaps out; both are NaN where there is no valid sample
        low, high = (float(of.reduce(signal)) if len(signal) else np.nan for of in (np.fmin, np.fmax))
        if not low < high:
            if tokenizer.needs_signal:
                return Unusable(f"lead {recording.lead_names[index]}: {'flat' if low == high else 'no valid sample'}")
            signal = np.empty(0, np.float32)
    ready = beats_for(recording, recording.annotations, beats if tokenizer.needs_beats else "annotated", index, signal)
    if tokenizer.needs_beats and ready.num_beats < 2:
        return Unusable(f"fewer than two beats {'annotated' if beats == 'annotated' else 'found'}")
    return Lead(ready, signal, index)


def beats_for(
    recording: Recording,
    annotations: Annotations | None,
    beats: Beats,
    lead: int,
    signal_mv: NDArray[np.float32] | None = None,
) -> Annotations:
    """The beats to use: annotated ones, or detected ones with the annotated rhythms kept.

    `signal_mv` holds the samples of `lead` where they were read already; empty, they are read again.

    Raises:
        HeartlmError: beats have to be detected, and there is no signal or its rate is too low for that.
    """
    none = Annotations(recording.rate_hz, np.empty(0, np.int64), np.empty(0, "<U1"), beats_labelled=False)
    known = annotations or none
    if beats == "annotated" or (beats == "auto" and known.num_beats):
        return known
    try:
        if signal_mv is None or not signal_mv.size:
            signal_mv = recording.signal(leads=[lead])[0]
        found = detect_beats(signal_mv, recording.rate_hz)
    except ValueError as error:
        raise HeartlmError(f"{recording.path}: {error}: give beat annotations") from error
    symbols = np.full(len(found), "Q", "<U1")
    return replace(known, sample=found, symbol=symbols, beats_labelled=False, source="detected")


@dataclass
class Part:
    """The recordings of one part as tokens; what the journal notes of it next to its tokens is all but the last two.

    Attributes:
        database: where they are from.
        num_records: recordings, those left out included.
        rows: the fields of each row, `first_token` apart.
        digests: of the tokens of each row; empty where these are too few to tell recordings apart.
        dropped: what was left out: `record`, `reason` and, where several of a kind are left out, their `count`.
        num_unreadable: how many of them because they could not be read.
        damaged: `record` and `fault` of each recording that is damaged and was used.
        beats: beats of each class, by split; a beat that several leads show is counted once.
        rhythms: tokens of each rhythm, by split.
        tokens: what to append to each file of the corpus.
        num_samples: samples of the leads that were encoded.
    """

    database: str
    num_records: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    dropped: list[dict[str, str | int]] = field(default_factory=list)
    num_unreadable: int = 0
    damaged: list[dict[str, str]] = field(default_factory=list)
    beats: dict[str, dict[str, int]] = field(default_factory=dict)
    rhythms: dict[str, dict[str, int]] = field(default_factory=dict)
    tokens: dict[str, bytes] = field(default_factory=dict)
    num_samples: int = 0

    def drop(self, record: str, reason: str, *, unreadable: bool = False) -> None:
        """List what is left out."""
        self.dropped.append({"record": record, "reason": reason})
        self.num_unreadable += unreadable


def readable_leads(source: Source, tokenizer: Tokenizer, choice: BuildSettings, part: Part) -> Iterator[Lead]:
    """Yield the usable leads of `source` and list the others, with the reason, as dropped from `part`.

    Raises:
        HeartlmError: the recording is unreadable or refused, and such are not to be skipped.
    """
    try:
        for lead in usable_leads(source, tokenizer, choice.beats, choice.damaged):
            if isinstance(lead, Unusable):
                part.drop(source.name, lead.reason)
            else:
                yield lead
    except HeartlmError as error:
        if not choice.skip_unreadable:
            raise
        part.drop(source.name, str(error), unreadable=True)


def encode_part(plan: BuildPlan, tokenizer: Tokenizer, choice: BuildSettings, number: int) -> Part:
    """Encode every usable lead of the recordings of part `number`."""
    database, record_ids = plan.parts[number]
    part, tokens = Part(database.name, len(record_ids)), list[Tokens]()
    for record_id in record_ids:
        source = find_source(database, record_id, tokenizer, choice.training_leads, choice.skip_unreadable)
        if isinstance(source, Unusable):
            part.drop(f"{database.name}/{record_id}", source.reason, unreadable=source.unreadable)
        else:
            tokens += _encode_source(source, tokenizer, choice, part)
    for name, (kind, field_name) in FILES.items():
        arrays = [
            np.stack([each.beat_class, each.rhythm], axis=1) if name == "labels.bin" else getattr(each, field_name)
            for each in tokens
        ]
        part.tokens[name] = b"".join(np.ascontiguousarray(array, kind).tobytes() for array in arrays)
    return part


def _encode_source(source: Source, tokenizer: Tokenizer, choice: BuildSettings, part: Part) -> Iterator[Tokens]:
    recording, ignored, first = source.recording, dict[str, int](), True
    for lead in readable_leads(source, tokenizer, choice, part):
        tokens = tokenizer.encode(lead)
        if first:
            _count(part.beats, source.split, lead.annotations.beat_classes(), BEAT_CLASSES)
            _count(part.rhythms, source.split, tokens.rhythm, RHYTHMS)
        ignored, first = lead.annotations.ignored, False
        part.num_samples += recording.num_samples
        part.rows.append(
            {
                "database": recording.database,
                "record_id": recording.record_id,
                "patient_id": recording.patient_id,
                "split": source.split,
                "lead": recording.lead_names[lead.index] if recording.lead_names else "",
                "lead_index": lead.index,
                "rate_hz": float(recording.rate_hz),
                "num_samples": int(recording.num_samples),
                "num_tokens": tokens.num_tokens,
                "source": str(recording.path.parent.resolve() / recording.path.name),
            }
        )
        part.digests.append("")
        if tokens.num_tokens >= _TELLING_TOKENS:
            # Positions of the first tokens are enough: those of the others cost more to read than they add.
            content = np.ascontiguousarray(tokens.codes).tobytes() + tokens.sample[:_TELLING_TOKENS].tobytes()
            part.digests[-1] = hashlib.blake2b(content, digest_size=16).hexdigest()
        del lead  # a day of samples, which the next lead needs the memory of
        yield tokens
    for reason, count in ignored.items():
        part.dropped.append({"record": source.name, "reason": f"annotation: {reason}", "count": count})
    if not first and choice.damaged == "warn":
        recording.warn_if_damaged()
        part.damaged += [{"record": source.name, "fault": fault} for fault in recording.faults]


def _count(counts: dict[str, dict[str, int]], split: str, index: np.ndarray[Any, Any], names: Sequence[str]) -> None:
    """Add how often each of `names` is in `index`, −1 being the unlabelled."""
    counted = counts.setdefault(split, {})
    for place, count in enumerate(np.bincount(index + 1).tolist()):
        if count:
            name = names[place - 1] if place else "unlabelled"
            counted[name] = counted.get(name, 0) + count
