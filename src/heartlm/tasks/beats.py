"""The beats task: the AAMI class of every beat, or that a detection is no heartbeat.

    leads ─► class of every token, by each method ─► paired with the annotated beats ─► scores
                                                 └► predictions table (of the model)

The features of gradient boosting are computed from the waveforms decoded by the tokenizer and from RR intervals, so
only the corpus is needed. It is fitted on every lead of the training split, like the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.ecg.matching import BeatMatch, match_beats, nearest
from heartlm.ecg.recording import ARTEFACT, BEAT_CLASSES, RHYTHM_INDEX, UNLABELLED, Annotations, Recording
from heartlm.errors import HeartlmError
from heartlm.evaluation.beats import NO_BEAT, Classes, score_beats
from heartlm.evaluation.bootstrap import Resampling
from heartlm.evaluation.config import EvaluationConfig
from heartlm.evaluation.features import beat_features, boosting
from heartlm.evaluation.results import Predictions, ScoreSet, attempt, prediction_columns
from heartlm.inference.finetuned import FineTuned
from heartlm.inference.leads import ScoredLead, lead_of_row
from heartlm.labels.tokens import BEAT_TASK_CLASSES, beat_classes_in, beat_labels
from heartlm.system.progress import track
from heartlm.tasks.task import Answer, FinetuneConfig, Leads, Task
from heartlm.tokenizers.base import Lead, Tokens
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.rr import rr_intervals_s
from heartlm.training.job import TrainingTask

FIBRILLATION = (RHYTHM_INDEX["VFIB"], RHYTHM_INDEX["VFL"])
"""Rhythms without beats, in which detections are not scored."""

CLASS_NAMES: dict[int, str | None] = {**dict(enumerate(BEAT_CLASSES)), UNLABELLED: None, NO_BEAT: "none"}
"""Names of classes in prediction tables. `"none"` is the missing partner of a missed or extra beat."""


class Beats(Task):
    """A head for tokens; scores of beats by class."""

    name = "beats"
    scored = "single beats"
    heading = ("{num_beats:,} beats{detection}", "{num_left_out:,} beats")
    classes = (BEAT_TASK_CLASSES, (*BEAT_TASK_CLASSES, ARTEFACT))
    needs_classified_beats = True

    def learning(self, config: FinetuneConfig, corpus: Corpus, validates: bool = True) -> TrainingTask:
        """Label every beat with its class."""
        from heartlm.tasks.finetune import on_foundation

        return on_foundation(config, corpus, beat_classes_in(corpus), beat_labels(corpus.beat_class), validates)

    def score(self, leads: Leads, tuned: FineTuned, rival: FineTuned | None, config: EvaluationConfig) -> ScoreSet:
        """Score the model and its baselines on the beats of `leads`."""
        paired = [PairedLead.of(lead, tuned.tokens_are_beats) for lead in leads]
        if not any((beat_labels(each.reference) >= 0).any() for each in paired):
            raise HeartlmError(f"on: no beat of the {config.split} split has a label to score")

        def most_frequent() -> list[LeadAnswers]:
            counts = tuned.training_counts("beats_per_class")
            beat_class = BEAT_CLASSES.index(max(BEAT_TASK_CLASSES, key=lambda name: counts[name]))
            return [each.answers(np.full(each.lead.tokens.num_tokens, beat_class, np.int8)) for each in paired]

        methods: dict[str, Callable[[], list[LeadAnswers]]] = {}
        if config.baselines:
            methods["majority class"] = most_frequent
            methods["gradient boosting"] = lambda: boosted_answers(paired, tuned, config.seed)
        if rival is not None:
            methods["random initialisation"] = lambda: model_answers(paired, rival)
        answers = model_answers(paired, tuned)
        notes = list[str]()
        baselines = attempt(methods, notes)
        return ScoreSet(
            about={"beats": config.beats},
            scores=_score(answers, config),
            baselines={method: each and _score(each, config) for method, each in baselines.items()},
            notes=notes,
            columns=columns_of(answers),
            classes=tuned.info.classes,
        )

    def score_predictions(
        self, predictions: Predictions, evaluations: Sequence[Mapping[str, Any]], resampling: Resampling
    ) -> dict[str, Any]:
        """Score beats by class."""
        indices = {name: index for index, name in CLASS_NAMES.items()}
        reference, predicted = (predictions.indices(name, indices) for name in ("reference", "predicted"))
        return score_beats(reference, predicted, predictions.patients, resampling=resampling)

    def scored_how(self, tuned: FineTuned, config: EvaluationConfig) -> str:
        """Annotated or detected."""
        super().scored_how(tuned, config)
        return config.beats

    def annotate(self, tuned: FineTuned, recording: Recording, lead: Lead, tokens: Tokens) -> Answer:
        """Classify the beats; detections that are artefacts are left out."""
        from heartlm.inference.predictions import token_probabilities, without_artefacts
        from heartlm.tasks.annotate import SOURCE

        info, tokenizer, known = tuned.info, tuned.tokenizer, lead.annotations
        detected = known.source == "detected" and tokenizer.needs_beats

        def classify(kept: NDArray[np.bool_]) -> NDArray[np.float32]:
            if kept.sum() < 2:  # a single beat has no interval and is classified as N
                return np.eye(1, len(info.classes), dtype=np.float32).repeat(int(kept.sum()), axis=0)
            chosen = replace(known, sample=known.sample[kept], symbol=known.symbol[kept])
            kept_tokens = tokens if kept.all() else tokenizer.encode(replace(lead, annotations=chosen))
            answer = token_probabilities(tuned.model, kept_tokens.codes, info.window)
            answer = answer[nearest(chosen.sample, kept_tokens.sample)]
            if not detected and ARTEFACT in info.classes:
                answer[:, info.classes.index(ARTEFACT)] = 0  # annotated beats are beats
            return answer

        probability, no_beat = without_artefacts(classify, known.num_beats, info.classes)
        # the name of an AAMI class is also the code of its most common beat
        names = np.array([name for name in info.classes if name != ARTEFACT])[probability.argmax(axis=1)]
        return Answer(Annotations(known.rate_hz, known.sample[~no_beat], names[~no_beat], source=SOURCE))


@dataclass(frozen=True)
class LeadAnswers:
    """Annotated and extra beats of one lead in order of time.

    Attributes:
        lead: lead of the beats.
        sample: sample positions, int64 `[num_beats]`.
        reference: index into `BEAT_CLASSES`, `UNLABELLED` or `NO_BEAT`, int8 `[num_beats]`.
        predicted: index into `BEAT_CLASSES` or `NO_BEAT`, int8 `[num_beats]`.
        probabilities: probabilities of the task's classes, NaN for missed beats, float32 `[num_beats, num_classes]`.
    """

    lead: ScoredLead
    sample: NDArray[np.int64]
    reference: Classes
    predicted: Classes
    probabilities: NDArray[np.float32]


@dataclass(frozen=True)
class PairedLead:
    """A lead with its tokens matched to the annotated beats.

    Attributes:
        lead: lead with its tokens.
        sample: positions of the annotated beats, int64 `[num_annotated]`.
        reference: classes of the annotated beats, int8 `[num_annotated]`.
        match: matched pairs of annotated beats and tokens.
    """

    lead: ScoredLead
    sample: NDArray[np.int64]
    reference: Classes
    match: BeatMatch

    @classmethod
    def of(cls, lead: ScoredLead, tokens_are_beats: bool = True) -> PairedLead:
        """Match by index if the tokens are of annotated beats, else within 150 ms.

        If tokens are not beats, the tokens with a beat label represent the beats.
        """
        tokens = lead.tokens
        if lead.annotations is not None:
            beats = lead.annotations
            match = match_beats(beats.sample, tokens.sample, lead.rate_hz)
            return cls(lead, beats.sample, beats.beat_classes(), match)
        is_beat = np.full(tokens.num_tokens, tokens_are_beats) | (tokens.beat_class != UNLABELLED)
        beat_index, none = np.flatnonzero(is_beat), np.empty(0, np.int64)
        match = BeatMatch(np.arange(len(beat_index)), beat_index, none, none)
        return cls(lead, tokens.sample[beat_index], tokens.beat_class[beat_index], match)

    def answers(self, classes: Classes, probabilities: NDArray[np.float32] | None = None) -> LeadAnswers:
        """Pair predicted classes of the tokens with the reference, in order of time.

        Detections in ventricular flutter and fibrillation, which have no beats, are not scored (EC57).

        Args:
            classes: index into `BEAT_CLASSES` of each token, int8 `[num_tokens]`.
            probabilities: probabilities of the task's classes, `[num_tokens, num_classes]`.
        """
        match, tokens = self.match, self.lead.tokens
        # indices of annotated beats and of tokens: matched, missed, extra; -1, an added last entry, has no partner
        beat = np.concatenate([match.reference, match.missed, np.full(len(match.extra), -1)])
        token = np.concatenate([match.detected, np.full(len(match.missed), -1), match.extra])
        reference = np.pad(self.reference, (0, 1), constant_values=NO_BEAT)[beat]
        reference[(beat < 0) & np.isin(np.append(tokens.rhythm, UNLABELLED)[token], FIBRILLATION)] = UNLABELLED
        predicted = np.pad(classes, (0, 1), constant_values=NO_BEAT)[token]
        sample = np.where(beat < 0, np.append(tokens.sample, 0)[token], np.append(self.sample, 0)[beat])
        if probabilities is None:
            probabilities = np.empty((tokens.num_tokens, 0), np.float32)
        beat_probabilities = np.pad(probabilities, ((0, 1), (0, 0)), constant_values=np.nan)[token]
        # What is no beat has no partner: it misses the annotated beat, and is no error on an extra detection.
        reference[reference == BEAT_CLASSES.index(ARTEFACT)] = NO_BEAT
        predicted[predicted == BEAT_CLASSES.index(ARTEFACT)] = NO_BEAT
        order = np.argsort(sample, kind="stable")
        return LeadAnswers(self.lead, sample[order], reference[order], predicted[order], beat_probabilities[order])


def model_answers(paired: Sequence[PairedLead], tuned: FineTuned) -> list[LeadAnswers]:
    """Return the model's predictions for each lead."""
    from heartlm.inference.predictions import recording_probabilities

    class_index = np.array([BEAT_CLASSES.index(name) for name in tuned.info.classes], np.int8)
    answers = []
    codes = (each.lead.tokens.codes for each in paired)
    by_lead = recording_probabilities(tuned.model, codes, tuned.info.window)
    for each, probabilities in zip(paired, track(by_lead, len(paired), "predict"), strict=True):
        answers.append(each.answers(class_index[probabilities.argmax(axis=1)], probabilities))
    return answers


def boosted_answers(paired: Sequence[PairedLead], tuned: FineTuned, seed: int) -> list[LeadAnswers]:
    """Return the predictions of gradient boosting, fitted on the training split of the run's corpus, for each lead.

    Raises:
        HeartlmError: the training corpus is missing, its tokens hold no waveforms, or scikit-learn is not installed.
    """
    tokenizer = tuned.tokenizer
    if not isinstance(tokenizer, BeatTokenizer):
        raise HeartlmError(f"tokens of the {tokenizer.kind} tokenizer hold no waveforms of beats")
    corpus = tuned.training_corpus()
    training = [lead_of_row(corpus, int(row)) for row in corpus.records.select("train")]
    beat_class = np.concatenate([lead.tokens.beat_class for lead in training])
    # Not the labels of the task: its number of artefacts is that of Q in `BEAT_CLASSES`, by which `answers` reads.
    labels = np.where(beat_labels(beat_class) >= 0, beat_class, np.int8(UNLABELLED))
    features = np.concatenate([features_of(lead, tokenizer) for lead in training])
    boosted = boosting(features, labels, seed)
    return [each.answers(boosted.predict(features_of(each.lead, tokenizer))) for each in paired]


def features_of(lead: ScoredLead, tokenizer: BeatTokenizer) -> NDArray[np.float64]:
    """Return features of every beat of a lead, computed from its tokens; `[num_tokens, num_features]`."""
    tokens = lead.tokens
    codes = np.asarray(tokens.codes)
    waveforms = tokenizer.decode(codes, np.asarray(tokens.scale_mv))
    features = beat_features(waveforms, rr_intervals_s(np.asarray(tokens.sample), lead.rate_hz))
    return np.concatenate([features, tokenizer.decode_comparisons(codes)], axis=1)


def columns_of(answers: Sequence[LeadAnswers]) -> dict[str, Any]:
    """Return the columns of the prediction table, one row per beat."""
    return prediction_columns(
        [each.lead for each in answers],
        np.repeat(np.arange(len(answers)), [len(each.sample) for each in answers]),
        np.concatenate([each.sample for each in answers]),
        reference=[CLASS_NAMES[index] for each in answers for index in each.reference.tolist()],
        predicted=[CLASS_NAMES[index] for each in answers for index in each.predicted.tolist()],
        probabilities=np.concatenate([each.probabilities for each in answers]),
    )


def _score(answers: Sequence[LeadAnswers], config: EvaluationConfig) -> dict[str, Any]:
    return score_beats(
        np.concatenate([each.reference for each in answers]),
        np.concatenate([each.predicted for each in answers]),
        np.repeat([each.lead.patient_id for each in answers], [len(each.sample) for each in answers]),
        resampling=config.resampling,
    )


TASK = Beats()
