"""Encode recordings as tokens: select leads and beats, and encode the recordings part by part.

Every ECG lead of a training recording can be encoded, each as a token sequence of its own. Of validation and test
recordings only one lead is encoded, so that scores are single-lead scores.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.plan import Beats, Statements, TrainingLeads
from heartlm.corpus.schema import FILES
from heartlm.databases.database import Database
from heartlm.databases.splits import Split
from heartlm.ecg.detect import detect_beats
from heartlm.ecg.leads import channels_without_ecg, ecg_leads, no_ecg_lead
from heartlm.ecg.recording import BEAT_CLASSES, RHYTHMS, Annotations, Damaged, Recording
from heartlm.errors import HeartlmError
from heartlm.system.processes import within_limit
from heartlm.tokenizers.base import Lead, Tokenizer, Tokens

# Minimum number of tokens in a row for its digest to identify a recording.
_TELLING_TOKENS = 16


@dataclass(frozen=True)
class SelectedLeads:
    """One recording to encode."""

    recording: Recording
    split: Split
    leads: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the recording in messages, `database/record`."""
        return f"{self.recording.database}/{self.recording.record_id}"


@dataclass(frozen=True)
class Unusable:
    """A lead or recording that is left out, with the reason. It is counted and listed; it is not an error."""

    reason: str
    unreadable: bool = False


def find_source(
    database: Database,
    record_id: str,
    tokenizer: Tokenizer,
    training_leads: TrainingLeads,
    skip_unreadable: bool = False,
) -> SelectedLeads | Unusable:
    """Open one recording, or return the reason why it is left out.

    Raises:
        HeartlmError: a header is unreadable and unreadable recordings are not skipped, or the recording has no signal
            and the tokenizer needs one.
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
) -> SelectedLeads | Unusable:
    """Select the leads of an open recording to encode, or return the reason why there is none.

    Raises:
        HeartlmError: the recording has no signal, and the tokenizer needs one.
    """
    if tokenizer.needs_signal and not recording.has_signal:
        raise HeartlmError(
            f"{recording.path}: annotations only, and the {tokenizer.kind} tokenizer reads the signal: "
            "use --tokenizer rhythm"
        )
    leads = chosen_leads(recording, split, training_leads) if tokenizer.reads_signal else (0,)
    leads = leads or (() if tokenizer.needs_signal else (0,))
    leads = leads[:1] if tokenizer.joins_leads else leads
    return SelectedLeads(recording, split, leads) if leads else Unusable(no_ecg_lead(recording))


def chosen_leads(recording: Recording, split: Split, training_leads: TrainingLeads) -> tuple[int, ...]:
    """Return the leads to encode: with `all` every ECG lead of a training recording, else the preferred lead if any."""
    leads = ecg_leads(recording)
    return tuple(sorted(leads)) if training_leads == "all" and split == "train" else leads[:1]


def usable_leads(
    source: SelectedLeads, tokenizer: Tokenizer, beats: Beats, damaged: Damaged
) -> Iterator[Lead | Unusable]:
    """Yield each lead of `source` to encode, or the reason why it is unusable: flat, or fewer than two beats.

    Signs of damage are added to `source.recording.faults`.

    Raises:
        HeartlmError: a file is unreadable, or it is damaged and `damaged` is refuse, or beats must be detected and
            cannot be.
    """
    recording = source.recording
    for index in source.leads:
        ready = (
            _joined_leads(recording, beats, index)
            if tokenizer.joins_leads
            else _usable_lead(recording, tokenizer, beats, index)
        )
        if damaged == "refuse":
            recording.refuse_if_damaged()
        yield ready


def _joined_leads(recording: Recording, beats: Beats, index: int) -> Lead | Unusable:
    """Return all ECG leads as one, with the beats of the lead `index`, of which there may be none.

    Beats are detected where none are annotated, also with `annotated`: recordings with statements rarely have any.
    """
    leads = sorted(ecg_leads(recording))
    signals = recording.signal(leads=leads)
    if np.isnan(signals).all() or not recording.num_samples:
        return Unusable("no valid sample")
    source: Beats = "auto" if beats == "annotated" else beats
    ready = beats_for(recording, recording.annotations, source, index, signals[leads.index(index)])
    return Lead(ready, signals, index, tuple(recording.lead_names[lead] for lead in leads))


def _usable_lead(recording: Recording, tokenizer: Tokenizer, beats: Beats, index: int) -> Lead | Unusable:
    signal = np.empty(0, np.float32)
    if tokenizer.reads_signal and recording.has_signal:
        try:
            signal = recording.signal(leads=[index])[0]
        except HeartlmError:  # annotations often come without the signal that their header names
            if tokenizer.needs_signal:
                raise
        # fmin and fmax leave gaps out; both are NaN where there is no valid sample
        low, high = (float(extreme.reduce(signal)) if len(signal) else np.nan for extreme in (np.fmin, np.fmax))
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
    """Return the beats to use: annotated beats, or detected beats with the annotated rhythms.

    `signal_mv` holds the samples of `lead` if they were already read. If it is empty, they are read.

    Raises:
        HeartlmError: beats must be detected, and there is no signal or its rate is too low.
    """
    none = Annotations(recording.rate_hz, np.empty(0, np.int64), np.empty(0, "<U1"), beats_labelled=False)
    known = annotations or none
    if beats == "annotated" or (beats == "auto" and known.num_beats):
        return known
    try:
        if signal_mv is None or not signal_mv.size:
            signal_mv = recording.signal(leads=[lead])[0]
        beat_samples = detect_beats(signal_mv, recording.rate_hz)
    except ValueError as error:
        raise HeartlmError(f"{recording.path}: {error}: give beat annotations") from error
    symbols = np.full(len(beat_samples), "Q", "<U1")
    return replace(known, sample=beat_samples, symbol=symbols, beats_labelled=False, source="detected")


@dataclass
class Part:
    """Tokens of the recordings of one part. The journal records all fields but the last two.

    Attributes:
        database: name of the database.
        num_records: number of recordings, including those left out.
        rows: fields of each row except `first_token`.
        digests: digest of the tokens of each row; empty if the row has too few tokens to identify a recording.
        dropped: leads and recordings left out: `record`, `reason` and, for several of a kind, their `count`.
        num_unreadable: number of dropped entries that could not be read.
        damaged: `record` and `fault` of each damaged or repaired recording that was used.
        beats: number of beats of each class, by split. A beat in several leads is counted once.
        rhythms: number of tokens of each rhythm, by split.
        tokens: bytes to append to each file of the corpus.
        num_samples: number of samples of the encoded leads.
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
        """Add an entry to `dropped`."""
        self.dropped.append({"record": record, "reason": reason})
        self.num_unreadable += unreadable


def joined_parts(parts: Sequence[Part]) -> Part:
    """Return the part of the recordings of several parts of one database, in their order."""
    whole = parts[0]
    for part in parts[1:]:
        for field_name, value in vars(part).items():
            own = getattr(whole, field_name)
            if field_name in ("beats", "rhythms"):
                for split, counts in value.items():
                    total = own.setdefault(split, {})
                    total |= {name: total.get(name, 0) + count for name, count in counts.items()}
            elif field_name == "tokens":
                whole.tokens = {name: own[name] + content for name, content in value.items()}
            elif field_name != "database":
                setattr(whole, field_name, own + value)
    return whole


def readable_leads(source: SelectedLeads, tokenizer: Tokenizer, config: TokenizeConfig, part: Part) -> Iterator[Lead]:
    """Yield the usable leads of `source`, and add the others with the reason to `part.dropped`.

    Raises:
        HeartlmError: the recording is unreadable or refused, and unreadable recordings are not skipped.
    """
    try:
        for lead in usable_leads(source, tokenizer, config.beats, config.damaged):
            if isinstance(lead, Unusable):
                part.drop(source.name, lead.reason)
            else:
                yield lead
    except HeartlmError as error:
        if not config.skip_unreadable:
            raise
        part.drop(source.name, str(error), unreadable=True)


def encode_part(
    database: Database,
    record_ids: Sequence[str],
    tokenizer: Tokenizer,
    config: TokenizeConfig,
    statements: Statements,
) -> Part:
    """Encode every usable lead of the recordings of a part."""
    part, tokens = Part(database.name, len(record_ids)), list[Tokens]()
    for record_id in record_ids:
        with within_limit():
            source = find_source(database, record_id, tokenizer, config.training_leads, config.skip_unreadable)
            if isinstance(source, Unusable):
                part.drop(f"{database.name}/{record_id}", source.reason, unreadable=source.unreadable)
                continue
            for lead, reason in channels_without_ecg(source.recording).items():
                part.drop(source.name, f"channel {source.recording.lead_names[lead]}: no ECG ({reason})")
            tokens += _encode_source(source, tokenizer, config, part, statements.get(source.name, {}))
    for name, (kind, field_name) in FILES.items():
        arrays = [
            np.stack([each.beat_class, each.rhythm], axis=1) if name == "labels.bin" else getattr(each, field_name)
            for each in tokens
        ]
        part.tokens[name] = b"".join(np.ascontiguousarray(array, kind).tobytes() for array in arrays)
    return part


def _encode_source(
    source: SelectedLeads, tokenizer: Tokenizer, config: TokenizeConfig, part: Part, stated: Mapping[str, bool]
) -> Iterator[Tokens]:
    recording, ignored, first = source.recording, dict[str, int](), True
    path = str(recording.path.parent.resolve() / recording.path.name)
    for lead in readable_leads(source, tokenizer, config, part):
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
                "lead": ",".join(lead.names) or (recording.lead_names[lead.index] if recording.lead_names else ""),
                "lead_index": lead.index,
                "rate_hz": float(recording.rate_hz),
                "num_samples": int(recording.num_samples),
                "num_tokens": tokens.num_tokens,
                "source": path,
                "statements": json.dumps(stated),
            }
        )
        part.digests.append("")
        if tokens.num_tokens >= _TELLING_TOKENS:
            # Positions of the first tokens suffice: reading the others costs more than they add.
            content = np.ascontiguousarray(tokens.codes).tobytes() + tokens.sample[:_TELLING_TOKENS].tobytes()
            part.digests[-1] = hashlib.blake2b(content, digest_size=16).hexdigest()
        del lead  # frees up to a day of samples before the next lead is read
        yield tokens
    for reason, count in ignored.items():
        part.dropped.append({"record": source.name, "reason": f"annotation: {reason}", "count": count})
    if not first:
        part.damaged += [{"record": source.name, "fault": f"repaired: {repair}"} for repair in recording.repairs]
    if not first and config.damaged == "warn":
        recording.warn_if_damaged()
        part.damaged += [{"record": source.name, "fault": fault} for fault in recording.faults]


def _count(counts: dict[str, dict[str, int]], split: str, index: np.ndarray[Any, Any], names: Sequence[str]) -> None:
    """Add the number of occurrences of each of `names` in `index`; −1 is unlabelled."""
    counted = counts.setdefault(split, {})
    for place, count in enumerate(np.bincount(index + 1).tolist()):
        if count:
            name = names[place - 1] if place else "unlabelled"
            counted[name] = counted.get(name, 0) + count
