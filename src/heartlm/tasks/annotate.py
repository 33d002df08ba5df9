"""Annotation of one recording with a fine-tuned model.

recording ─► one lead, its beats ─► tokens ─► class probabilities ─► beat codes, or rhythm spans
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from heartlm.corpus.encode import SelectedLeads, Unusable, beats_for, usable_leads
from heartlm.corpus.plan import Beats
from heartlm.databases.database import Database
from heartlm.ecg.leads import ecg_lead
from heartlm.ecg.recording import Annotations, Recording
from heartlm.ecg.spans import joined_spans
from heartlm.errors import HeartlmError
from heartlm.inference.load import chosen_device
from heartlm.tasks.load import load_finetuned
from heartlm.tasks.task import Answer, task_of
from heartlm.tokenizers.base import Lead, Tokenizer, Tokens

SOURCE = "heartlm"


@dataclass(frozen=True, kw_only=True)
class Annotated(Answer):
    """Answers of a model for one recording; the fields of `Answer`, and where they come from.

    Attributes:
        database: name of the database.
        record: name of the recording in the database.
        task: name of the task.
        lead_name: name of the analysed lead; empty if the model uses no signal.
        known: input beats, annotated or detected.
        faults: signs of damage in the recording, one line each.
    """

    database: str
    record: str
    task: str
    lead_name: str
    known: Annotations
    faults: tuple[str, ...] = ()


def annotate(
    run: Path,
    database: Database,
    record_id: str,
    *,
    beats: Beats = "auto",
    lead: str | None = None,
    checkpoint: str = "best",
    device: str = "auto",
) -> Annotated:
    """Annotate a recording with the model of a fine-tuned run.

    Args:
        run: run folder.
        database: database of the recording.
        record_id: name of the recording in the database.
        beats: source of the beat positions: annotated, detected, or auto, which detects them if none are annotated.
        lead: lead to analyse; by default the one that tokenizing selects.
        checkpoint: `"best"` model by validation loss, or `"last"`.
        device: device of the model, `"cpu"` or `"cuda"`; `"auto"` uses a GPU if there is one.

    Raises:
        HeartlmError: the run is not fine-tuned, the recording cannot be used, or there is no GPU.
    """
    fine_tuned = load_finetuned(run, checkpoint, chosen_device(device))
    tokenizer, task = fine_tuned.tokenizer, task_of(str(fine_tuned.info.task))
    recording, ready = ready_lead(tokenizer, database, record_id, beats, lead)
    tokens = tokenizer.encode(ready)
    if not tokens.num_tokens:
        raise HeartlmError(f"{recording.path}: too short for a single token, so there is nothing to annotate")
    answer = task.annotate(fine_tuned, recording, ready, tokens)
    lead_name = ",".join(ready.names) or recording.lead_names[ready.index] if _reads(tokenizer, recording) else ""
    return Annotated(
        **vars(answer),
        database=database.name,
        record=record_id,
        task=task.name,
        lead_name=lead_name,
        known=ready.annotations,
        faults=tuple(recording.faults),
    )


def spans_found(recording: Recording, lead: Lead, tokens: Tokens, names: Sequence[str], stride: int = 1) -> Annotations:
    """Return rhythms as annotations: the i-th of `names` begins at token i × `stride` and lasts until the next one."""
    end = recording.num_samples or int(tokens.sample[-1]) + 1
    spans = joined_spans(names, tokens.sample[::stride][: len(names)], end)
    none = np.empty(0, np.int64), np.empty(0, "<U1")
    return Annotations(lead.annotations.rate_hz, *none, spans, source=SOURCE)


def ready_lead(
    tokenizer: Tokenizer, database: Database, record_id: str, beats: Beats, lead: str | None
) -> tuple[Recording, Lead]:
    """Return the recording, and the lead to tokenise with the beats to label.

    Raises:
        HeartlmError: the record or lead does not exist, a file cannot be read, the lead is flat, or has fewer than two
            beats.
    """
    recording = database.recording(record_id)
    index = ecg_lead(recording, lead) if _reads(tokenizer, recording) else 0
    source = SelectedLeads(recording, database.split_of(record_id), (index,))
    ready = next(iter(usable_leads(source, tokenizer, beats, "warn")))
    recording.warn_if_damaged()
    if isinstance(ready, Unusable):
        raise HeartlmError(f"{recording.path}: {ready.reason}, so the model cannot read it")
    if tokenizer.needs_beats:
        return recording, ready
    known = beats_for(recording, recording.annotations, beats, index, ready.signal_mv)
    return recording, replace(ready, annotations=known)


def _reads(tokenizer: Tokenizer, recording: Recording) -> bool:
    return tokenizer.needs_signal or (tokenizer.reads_signal and recording.has_signal)
