"""Hidden states of a model as vectors of beats, windows or recordings, for use in other classifiers.

    recording, database or corpus ─► tokens of a lead ─► windows ─► hidden states ─► vectors of beats or windows
                                         └─ of all leads ─────────────► means of leads ─► vectors of recordings
                            └► tokens of all leads together ─► windows ─► features ─► vectors of windows or recordings

Windows overlap by half. The vector of a token is from the window in which the token is furthest from both ends. A model
that reads all leads together, as `statements`, has no vectors of tokens; its windows begin a third of one apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.embeddings import Embeddings, Vectors
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.encode import Unusable, beats_for, source_of, usable_leads
from heartlm.databases.database import open_database, opened
from heartlm.databases.index import holds_recordings
from heartlm.ecg.leads import canonical_lead, ecg_leads
from heartlm.ecg.recording import BEAT_CLASSES, RHYTHMS, Annotations, Recording
from heartlm.errors import HeartlmError
from heartlm.inference.leads import ScoredLead, lead_of, lead_of_row, scored_lead
from heartlm.inference.network import InferenceNetwork
from heartlm.inference.predictions import chunks_of_recordings, over_windows
from heartlm.inference.statements import means_over_windows
from heartlm.models.info import ModelInfo
from heartlm.sources.address import source_path
from heartlm.tokenizers.base import Tokenizer

Level = Literal["beat", "window", "recording"]
EmbeddedLead = dict[str, Any]
"""Vectors of one lead, or of several with the same level, and their metadata: the arrays of `Embeddings`."""


def leads_of_recordings(
    recordings: Iterable[Recording], tokenizer: Tokenizer, left_out: list[str], level: Level = "beat"
) -> Iterator[ScoredLead]:
    """Yield one lead of each recording: MLII or II if present, else the first lead in millivolts.

    For vectors of recordings, all ECG leads. Beats that are not annotated are detected in the preferred lead, for all
    leads. Skipped recordings and leads are added to `left_out` with the reason.
    """
    for recording in recordings:
        name = f"{recording.database}/{recording.record_id}"
        try:
            if level != "recording":
                ready = scored_lead(recording, tokenizer, "auto")
                if isinstance(ready, Unusable):
                    left_out.append(f"{name}: {ready.reason}")
                else:
                    yield ready
                continue
            source = source_of(recording, "train", tokenizer, "all")
            if isinstance(source, Unusable):
                left_out.append(f"{name}: {source.reason}")
                continue
            if tokenizer.needs_beats:
                beats = beats_for(recording, recording.annotations, "auto", ecg_leads(recording)[0])
                source = replace(source, recording=replace(recording, read_annotations=partial(_given, beats)))
            for lead in usable_leads(source, tokenizer, "auto", "warn"):
                if isinstance(lead, Unusable):
                    left_out.append(f"{name}: {lead.reason}")
                else:
                    yield lead_of(recording, lead, tokenizer)
        except HeartlmError as error:
            left_out.append(str(error))
        finally:
            recording.warn_if_damaged()


def _given(beats: Annotations, _: Recording) -> Annotations:
    return beats


def embed(
    model: InferenceNetwork, window: int, leads: Iterable[ScoredLead], level: Level, layer: int, left_out: list[str]
) -> Embeddings:
    """Return embeddings of leads.

    Args:
        model: transformer, or network over all leads.
        window: tokens per window of the model.
        leads: leads with any sampling rate.
        level: one vector per token; or per window of `window` tokens, the mean over its tokens; or per recording, the
            mean over the tokens of each lead and the logarithm of its amplitude, of all leads that the first recording
            has. The leads of a recording follow each other.
        layer: index of the block that gives the hidden states, 0 for the first; -1 for the model's output.
        left_out: list to which a line is added for each lead without a vector.

    Raises:
        HeartlmError: no lead gives a vector, the model has no such layer, or it has no such vectors.
    """
    parts = list(embedded_leads(model, window, leads, level, layer, left_out))
    return joined(parts, level, left_out)


def embedded_leads(
    model: InferenceNetwork, window: int, leads: Iterable[ScoredLead], level: Level, layer: int, left_out: list[str]
) -> Iterator[EmbeddedLead]:
    """Yield the vectors of each lead that has tokens, with their metadata; arguments and errors as of `embed`."""
    check_level(model, level, layer)
    joins_leads = model.config.joins_leads
    classes, rhythms = np.array([*BEAT_CLASSES, ""]), np.array([*RHYTHMS, ""])  # -1, unlabelled, is the last
    # The model reads some leads ahead, to compute their windows together; `tee` keeps those until their states come.
    ahead, leads = itertools.tee(_with_tokens(leads, left_out))

    def length_of(lead: ScoredLead) -> int:
        return {"beat": 1, "window": window, "recording": lead.tokens.num_tokens}[level]

    if joins_leads:
        states_by_lead = _features(model, ahead, window, layer, length_of)
    else:
        states_by_lead = hidden_states(model, (lead.tokens.codes for lead in ahead), window, layer)
    for lead, states in zip(leads, states_by_lead, strict=True):
        tokens, length = lead.tokens, length_of(lead)
        first_token = np.arange(0, tokens.num_tokens, length)
        beat_class, rhythm = tokens.beat_class, tokens.rhythm
        if level != "beat":
            if not joins_leads:
                num = np.diff([*first_token, tokens.num_tokens])
                states = np.asarray(np.add.reduceat(states, first_token, axis=0) / num[:, None], np.float32)
            beat_class, rhythm = (
                np.array([_most_frequent(each[at : at + length]) for at in first_token.tolist()])
                for each in (beat_class, rhythm)
            )
        if level == "recording" and not joins_leads:
            amplitude = tokens.scale_mv[tokens.scale_mv > 0]
            log_mv = float(np.log(np.median(amplitude))) if len(amplitude) else 0.0
            states = np.concatenate([states, np.full((1, 1), log_mv, np.float32)], axis=1)
        whose = {"database": lead.database, "record": lead.record_id, "patient": lead.patient_id}
        whose["lead"] = lead.lead.replace(",", "+") if joins_leads else lead.lead
        sample = tokens.sample[first_token]
        yield (
            {"vectors": states, "sample": sample, "time_s": sample / lead.rate_hz}
            | {"beat_class": classes[beat_class], "rhythm": rhythms[rhythm]}
            | {name: np.full(len(first_token), value) for name, value in whose.items()}
        )


def finest_level(tokenizer: Tokenizer) -> Level:
    """Return the level of vectors that a model of this tokenizer gives by default."""
    return "recording" if tokenizer.joins_leads else "beat"


def check_level(model: InferenceNetwork, level: Level, layer: int) -> None:
    """Raise a HeartlmError if the model has no vectors of this level, or no such layer."""
    if model.config.joins_leads and level == "beat":
        raise HeartlmError("level: beat found, window or recording expected: the model reads all leads together")
    if not model.config.joins_leads and model.config.network != "transformer":
        raise HeartlmError(
            f"a network of the kind {model.config.network} has no vectors of beats: embed with another model"
        )
    if not -1 <= layer < model.config.depth:
        raise HeartlmError(f"layer: {layer} found, -1 to {model.config.depth - 1} expected")


def joined(parts: list[EmbeddedLead], level: Level, left_out: list[str]) -> Embeddings:
    """Return embeddings of the vectors of all leads; of recordings, those of its leads one after the other.

    Raises:
        HeartlmError: there are no vectors.
    """
    if not parts:
        raise HeartlmError(f"no recording gives a vector: {'; '.join(left_out[:3]) or 'there are none'}")
    if level == "recording":
        parts = _joined_leads(parts, left_out)
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Embeddings(**whole, left_out=tuple(left_out))


def _features(
    model: InferenceNetwork,
    leads: Iterable[ScoredLead],
    window: int,
    layer: int,
    length_of: Callable[[ScoredLead], int],
) -> Iterator[Vectors]:
    """Iterate over the features of each recording, one row for each piece of as many tokens as `length_of` tells."""
    ahead, leads = itertools.tee(leads)
    pieces = (
        lead.tokens.codes[first : first + length_of(lead)]
        for lead in ahead
        for first in range(0, lead.tokens.num_tokens, length_of(lead))
    )
    answers = means_over_windows(model, pieces, window, partial(model.hidden, layer=layer))
    for lead in leads:
        num = -(-lead.tokens.num_tokens // length_of(lead))
        yield np.stack([mean for _, mean in itertools.islice(answers, num)]).astype(np.float32)


def _joined_leads(parts: list[EmbeddedLead], left_out: list[str]) -> list[EmbeddedLead]:
    """Return one part per recording: the vectors of its leads one after the other, in the order of the first recording.

    Recordings without one of these leads are added to `left_out`. Where every recording has one lead, its name does not
    matter.
    """
    recordings = dict[tuple[str, str], dict[str, EmbeddedLead]]()
    for part in parts:
        leads = recordings.setdefault((part["database"][0], part["record"][0]), {})
        name = canonical_lead(part["lead"][0])
        leads[f"{name} ({len(leads) + 1})" if name in leads else name] = part  # both leads of vfdb are called ECG
    if all(len(leads) == 1 for leads in recordings.values()):
        return parts
    names = list(next(iter(recordings.values())))
    together = list[EmbeddedLead]()
    for key, leads in recordings.items():
        if missing := [name for name in names if name not in leads]:
            left_out.append(f"{'/'.join(key)}: no lead {', '.join(missing)}, which the first recording has")
            continue
        chosen = [leads[name] for name in names]
        vectors = np.concatenate([part["vectors"] for part in chosen], axis=1)
        together.append(
            chosen[0] | {"vectors": vectors, "lead": np.array(["+".join(part["lead"][0] for part in chosen)])}
        )
    return together


def _with_tokens(leads: Iterable[ScoredLead], left_out: list[str]) -> Iterator[ScoredLead]:
    for lead in leads:
        if lead.tokens.num_tokens:
            yield lead
        else:
            left_out.append(f"{lead.name}: too short for a single token")


def hidden_states(
    model: InferenceNetwork, recordings: Iterable[NDArray[np.uint16]], window: int, layer: int = -1
) -> Iterator[Vectors]:
    """Iterate over the hidden states of all tokens of each recording, float32 `[num_tokens, width]`.

    Windows overlap by half. The state of a token is from the window in which it is furthest from both ends. Its context
    is thus at least a quarter of a window on each side, except at the ends of the recording.
    """
    assert model.config.width is not None, "a loaded model is resolved"
    compute = partial(model.hidden, layer=layer)
    for chunk in chunks_of_recordings(model, recordings):
        states = [np.empty((len(codes), model.config.width), np.float32) for codes in chunk]
        for index, tokens, state in over_windows(model, chunk, window, [max(1, window // 2)] * len(chunk), compute):
            # the first quarter of each later window has more context in the window before it
            skipped = window // 4 if tokens.start else 0
            states[index][tokens.start + skipped : tokens.stop] = state[skipped:]
        yield from states


def _most_frequent(labels: NDArray[np.int8]) -> int:
    """Return the most frequent label, -1 if no token has one."""
    known = labels[labels >= 0]
    return int(np.bincount(known).argmax()) if len(known) else -1


def is_corpus(source: Path) -> bool:
    """Return whether a path is the folder of a corpus."""
    return (source / "manifest.json").is_file()


def leads_of(
    source: Recording | Corpus | str | Path | Any,
    info: ModelInfo,
    tokenizer: Tokenizer,
    level: Level,
    split: str | None,
    left_out: list[str],
    rate_hz: float | None = None,
) -> Iterable[ScoredLead]:
    """Return the leads of a recording, a corpus or a folder of recordings; see `heartlm.Model.embed`.

    Raises:
        HeartlmError: there is no such recording or level, a single recording is to have a split, or the corpus has
            another tokenizer than the model.
    """
    if level not in get_args(Level):
        raise HeartlmError(f"level: {level!r} found, {', '.join(get_args(Level))} expected")
    if isinstance(source, str | Path):
        source = source_path(source)
        if is_corpus(source):
            source = open_corpus(source)
    if isinstance(source, Corpus):
        if source.tokenizer_hash != info.tokenizer_hash:
            raise HeartlmError(
                f"{source.folder}: tokens of another tokenizer ({source.tokenizer_hash[:12]}) than the model's "
                f"({info.tokenizer_hash[:12]}): tokenize with  --tokenizer-from"
            )
        rows = range(len(source.records)) if split is None else source.records.select(split).tolist()
        return (lead_of_row(source, row) for row in rows)
    if isinstance(source, Path) and holds_recordings(source):
        database = open_database(source)
        chosen = [each for each in database.record_ids if split in (None, database.split_of(each))]
        recordings: Iterable[Recording] = map(database.recording, chosen)
    else:
        recordings = [opened(source, rate_hz)]
        if split is not None:
            raise HeartlmError(f"split: {split!r} found, but {recordings[0].path} is one recording: leave split out")
    return leads_of_recordings(recordings, tokenizer, left_out, level)
