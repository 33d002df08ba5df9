"""What goes into a corpus: which leads of which recordings, with which beats.

Training recordings may give every ECG lead, each a text of its own about the same beats; validation and test
recordings give one, so that scores are single-lead scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.database import Database, open_database
from heartlm.ecg.detect import detect_beats
from heartlm.ecg.recording import Annotations, Damaged, Recording
from heartlm.ecg.splits import Split
from heartlm.errors import HeartlmError
from heartlm.tokenizers.base import Lead, Tokenizer

PREFERRED_LEADS: tuple[str, ...] = ("mlii", "ii", "ecg1", "ecg", "i")
"""The lead taken where one is taken: the first of these that is there, else the first ECG lead of the file."""

NO_ECG_LEAD = "no ECG lead (none measured in mV)"

Beats = Literal["auto", "annotated", "detected"]
TrainingLeads = Literal["first", "all"]


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


def find_sources(
    databases: Sequence[Database], tokenizer: Tokenizer, training_leads: TrainingLeads, skip_unreadable: bool = False
) -> tuple[list[Source], list[dict[str, str]]]:
    """List the recordings of `databases` that are in a split, and those that are left out.

    Raises:
        HeartlmError: a header is unreadable and none are to be skipped, or a recording without signal meets a
            tokenizer that needs one.
    """
    sources: list[Source] = []
    dropped: list[dict[str, str]] = []
    for database in databases:
        for record_id in database.record_ids:
            found = find_source(database, record_id, tokenizer, training_leads, skip_unreadable)
            if isinstance(found, Source):
                sources.append(found)
            else:
                dropped.append({"record": f"{database.name}/{record_id}", "reason": found.reason})
    return sources, dropped


def find_source(
    database: Database,
    record_id: str,
    tokenizer: Tokenizer,
    training_leads: TrainingLeads,
    skip_unreadable: bool = False,
) -> Source | Unusable:
    """Open one recording, or say why it is left out.

    Raises:
        HeartlmError: as `find_sources`.
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


def open_sources(folders: Sequence[Path]) -> list[Database]:
    """Open every database folder, names unique.

    Raises:
        HeartlmError: a folder is no database, or two have one name.
    """
    databases = [open_database(folder) for folder in folders]
    names = [database.name for database in databases]
    for name in names:
        if names.count(name) > 1:
            raise HeartlmError(f"two folders hold a database called {name!r}: rename one, or name it in database.json")
    return databases
