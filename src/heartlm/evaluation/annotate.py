"""Annotating one recording with a fine-tuned model.

recording ─► one lead, its beats ─► tokens ─► class probabilities ─► beat codes, or rhythm spans
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.encode import Source, Unusable, beats_for, ecg_lead, usable_leads
from heartlm.corpus.plan import Beats
from heartlm.ecg.database import Database
from heartlm.ecg.recording import Annotations, Recording, RhythmSpan
from heartlm.ecg.spans import joined_spans
from heartlm.errors import HeartlmError
from heartlm.evaluation.finetuned import load_finetuned
from heartlm.evaluation.matching import nearest
from heartlm.evaluation.predictions import token_probabilities
from heartlm.evaluation.waveform_task import called, class_probabilities, over_seconds, window_starts, windows_at
from heartlm.models.heart import HeartModel
from heartlm.tokenizers.base import Lead, Tokenizer
from heartlm.tokenizers.sample import GRID_HZ
from heartlm.training import waveform

SOURCE = "heartlm"

RHYTHM_OF_CLASS = ("OTHER", "VT", "VFIB", "ASYS", "NOISE")
"""The rhythm that an annotation file names for each class of the task waveform."""

_NO_BEATS = np.empty(0, np.int64), np.empty(0, "<U1")

USUAL_WINDOW = 128
"""Beats judged together by models that take windows of several widths, or the nearest width that they have learnt."""


@dataclass(frozen=True)
class Annotated:
    """What the model says of a recording.

    Attributes:
        database: its database.
        record: its name there.
        task: beats, rhythm or waveform.
        lead_name: the lead it looked at; empty where it reads no signal.
        known: the beats it was given, annotated or detected.
        found: beats with the model's codes (task beats), or spans of its rhythms (tasks rhythm and waveform).
        faults: signs that the recording is damaged, one line each.
        seconds: of the task waveform, the probability of each class in every second, float64 `[num_seconds, 5]`.
    """

    database: str
    record: str
    task: str
    lead_name: str
    known: Annotations
    found: Annotations
    faults: tuple[str, ...] = ()
    seconds: NDArray[np.float64] | None = None


def annotate(
    run: Path,
    database: Database,
    record_id: str,
    *,
    beats: Beats = "auto",
    lead: str | None = None,
    checkpoint: str = "best",
) -> Annotated:
    """Annotate a recording with the model of a fine-tuned run.

    Args:
        run: the run folder.
        database: where the recording is.
        record_id: its name there.
        beats: use annotated beat positions, detect them, or detect them where none are annotated.
        lead: the lead to look at; by default the one a corpus would take.
        checkpoint: the `"best"` model by validation loss, or the `"last"`.

    Raises:
        HeartlmError: the run is not fine-tuned, or the recording cannot be used.
    """
    fine_tuned = load_finetuned(run, checkpoint)
    model, info, tokenizer = fine_tuned.model, fine_tuned.info, fine_tuned.tokenizer()
    assert info.task is not None, "a fine-tuned model has a task"
    recording, ready = ready_lead(tokenizer, database, record_id, beats, lead)
    tokens = tokenizer.encode(ready)
    if not tokens.num_tokens:
        raise HeartlmError(f"{recording.path}: too short for a single token, so there is nothing to annotate")
    known, seconds = ready.annotations, None
    end = recording.num_samples or int(tokens.sample[-1]) + 1
    if info.task == "waveform":
        seconds = second_probabilities(model, tokens.codes)
        starts = tokens.sample[:: waveform.STRIDE][: len(seconds)]
        names = [RHYTHM_OF_CLASS[each] for each in called(seconds, info.threshold).tolist()]
        found = Annotations(known.rate_hz, *_NO_BEATS, joined_spans(names, starts, end), source=SOURCE)
    elif info.task == "beats":
        answer = token_probabilities(model, tokens.codes, info.window).argmax(axis=1)
        # an AAMI class is also the code of its plainest beat
        names_of_beats = np.array(info.classes)[answer[nearest(known.sample, tokens.sample)]]
        found = Annotations(known.rate_hz, known.sample, names_of_beats, source=SOURCE)
    else:
        shortest = info.shortest if info.pooled and info.shortest else info.window
        width = min(max(USUAL_WINDOW, shortest), info.window)
        positive = token_probabilities(model, tokens.codes, width)[:, 1] >= info.threshold
        spans = rhythm_spans(positive, tokens.sample, end, info.positive[0])
        found = Annotations(known.rate_hz, *_NO_BEATS, spans, source=SOURCE)
    lead_name = recording.lead_names[ready.index] if _reads(tokenizer, recording) else ""
    faults = tuple(recording.faults)
    return Annotated(database.name, record_id, info.task, lead_name, known, found, faults, seconds)


def rhythm_spans(
    positive: NDArray[np.bool_], sample: NDArray[np.int64], end: int, rhythm: str
) -> tuple[RhythmSpan, ...]:
    """Join tokens of one answer to spans: the rhythm looked for, and N (OTHER, where that is N itself) for all else.

    Args:
        positive: whether each token is in the rhythm, `[num_tokens]`.
        sample: where each token stands, `[num_tokens]`; a span begins at its first token.
        end: where the last span ends.
        rhythm: the name of the rhythm looked for.
    """
    other = "N" if rhythm != "N" else "OTHER"
    return joined_spans([rhythm if each else other for each in positive.tolist()], sample, end)


def second_probabilities(model: HeartModel, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Probability of each class of the task waveform in every second: the mean of the windows that cover it.

    Raises:
        HeartlmError: the recording is shorter than a window.
    """
    starts = window_starts(len(codes))
    if len(starts) == 0:
        raise HeartlmError(f"{len(codes) / GRID_HZ:.1f} s of signal found, at least {waveform.WINDOW_S:g} s expected")
    return over_seconds(class_probabilities(model, windows_at(codes, starts), np.arange(len(starts))))


def ready_lead(
    tokenizer: Tokenizer, database: Database, record_id: str, beats: Beats, lead: str | None
) -> tuple[Recording, Lead]:
    """The recording, and its lead to tokenise with the beats that are to be labelled.

    Raises:
        HeartlmError: no such record or lead, an unreadable file, a flat lead, or fewer than two beats.
    """
    recording = database.recording(record_id)
    index = ecg_lead(recording, lead) if _reads(tokenizer, recording) else 0
    source = Source(recording, database.split_of(record_id), (index,))
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
