"""Annotation of one recording with a fine-tuned model.

recording ─► one lead, its beats ─► tokens ─► class probabilities ─► beat codes, or rhythm spans
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.encode import SelectedLeads, Unusable, beats_for, usable_leads
from heartlm.corpus.plan import Beats
from heartlm.databases.database import Database
from heartlm.distributed.device import device_and_precision
from heartlm.ecg.leads import ecg_lead
from heartlm.ecg.matching import nearest
from heartlm.ecg.recording import ARTEFACT, Annotations, Recording, RhythmSpan
from heartlm.ecg.spans import joined_spans
from heartlm.errors import HeartlmError
from heartlm.inference.finetuned import load_finetuned
from heartlm.inference.predictions import token_probabilities, without_artefacts
from heartlm.inference.waveform import class_probabilities, over_seconds, predicted_classes, window_starts, windows_at
from heartlm.models.heart import HeartModel
from heartlm.tasks.waveform import STRIDE, WINDOW, WINDOW_S
from heartlm.tokenizers.base import Lead, Tokenizer
from heartlm.tokenizers.sample import GRID_HZ

SOURCE = "heartlm"

RHYTHM_OF_CLASS = ("OTHER", "VT", "VFIB", "ASYS", "NOISE")
"""Rhythm name in annotation files of each class of the waveform task."""

_NO_BEATS = np.empty(0, np.int64), np.empty(0, "<U1")

USUAL_WINDOW = 128
"""Beats per window for models trained with several window widths; limited to their trained range."""


@dataclass(frozen=True)
class Annotated:
    """Predictions of a model for one recording.

    Attributes:
        database: name of the database.
        record: name of the recording in the database.
        task: beats, rhythm or waveform.
        lead_name: name of the analysed lead; empty if the model uses no signal.
        known: input beats, annotated or detected.
        found: beats with predicted codes (beats task), or spans of predicted rhythms (rhythm and waveform tasks).
        faults: signs of damage in the recording, one line each.
        seconds: probability of each class in every second (waveform task), float64 `[num_seconds, 5]`.
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
    fine_tuned = load_finetuned(run, checkpoint, device_and_precision(device, "fp32")[0])
    model, info, tokenizer = fine_tuned.model, fine_tuned.info, fine_tuned.tokenizer
    assert info.task is not None, "a fine-tuned model has a task"
    recording, ready = ready_lead(tokenizer, database, record_id, beats, lead)
    tokens = tokenizer.encode(ready)
    if not tokens.num_tokens:
        raise HeartlmError(f"{recording.path}: too short for a single token, so there is nothing to annotate")
    known, seconds = ready.annotations, None
    end = recording.num_samples or int(tokens.sample[-1]) + 1
    if info.task == "waveform":
        if tokens.num_tokens < WINDOW:
            found_s = tokens.num_tokens / GRID_HZ
            raise HeartlmError(f"{recording.path}: {found_s:.1f} s of signal found, at least {WINDOW_S:g} s expected")
        seconds = second_probabilities(model, tokens.codes)
        starts = tokens.sample[::STRIDE][: len(seconds)]
        names = [RHYTHM_OF_CLASS[each] for each in predicted_classes(seconds, info.threshold).tolist()]
        predicted = Annotations(known.rate_hz, *_NO_BEATS, joined_spans(names, starts, end), source=SOURCE)
    elif info.task == "beats":

        def classify(kept: NDArray[np.bool_]) -> NDArray[np.float32]:
            if kept.sum() < 2:  # a single beat has no interval and is classified as N
                return np.eye(1, len(info.classes), dtype=np.float32).repeat(int(kept.sum()), axis=0)
            chosen = replace(known, sample=known.sample[kept], symbol=known.symbol[kept])
            kept_tokens = tokens if kept.all() else tokenizer.encode(replace(ready, annotations=chosen))
            answer = token_probabilities(model, kept_tokens.codes, info.window)
            answer = answer[nearest(chosen.sample, kept_tokens.sample)]
            if not detected and ARTEFACT in info.classes:
                answer[:, info.classes.index(ARTEFACT)] = 0  # annotated beats are beats
            return answer

        detected = known.source == "detected" and tokenizer.needs_beats
        probability, no_beat = without_artefacts(classify, known.num_beats, info.classes)
        # the name of an AAMI class is also the code of its most common beat
        names = np.array([name for name in info.classes if name != ARTEFACT])[probability.argmax(axis=1)]
        predicted = Annotations(known.rate_hz, known.sample[~no_beat], names[~no_beat], source=SOURCE)
    else:
        shortest = info.shortest if info.pooled and info.shortest else info.window
        width = min(max(USUAL_WINDOW, shortest), info.window)
        positive = token_probabilities(model, tokens.codes, width)[:, 1] >= info.threshold
        spans = rhythm_spans(positive, tokens.sample, end, info.positive[0])
        predicted = Annotations(known.rate_hz, *_NO_BEATS, spans, source=SOURCE)
    lead_name = recording.lead_names[ready.index] if _reads(tokenizer, recording) else ""
    faults = tuple(recording.faults)
    return Annotated(database.name, record_id, info.task, lead_name, known, predicted, faults, seconds)


def rhythm_spans(
    positive: NDArray[np.bool_], sample: NDArray[np.int64], end: int, rhythm: str
) -> tuple[RhythmSpan, ...]:
    """Join consecutive tokens of the same class to spans, named `rhythm` or N (OTHER if `rhythm` is N).

    Args:
        positive: whether each token is in the rhythm, `[num_tokens]`.
        sample: sample position of each token, `[num_tokens]`; a span starts at its first token.
        end: sample position of the end of the last span.
        rhythm: name of the positive rhythm.
    """
    other = "N" if rhythm != "N" else "OTHER"
    return joined_spans([rhythm if each else other for each in positive.tolist()], sample, end)


def second_probabilities(model: HeartModel, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Return the probability of each class of the waveform task per second: the mean over the windows that cover it.

    Args:
        model: network of the task.
        codes: codes of the lead, at least one window, uint16 `[num_tokens, 1]`.
    """
    starts = window_starts(len(codes))
    # Each window counts as a lead of its own, so none is smoothed: a second averages the windows that cover it.
    return over_seconds(class_probabilities(model, windows_at(codes, starts), np.arange(len(starts))))


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
