"""The rhythm task: one rhythm against all others, of every beat or of a window of beats.

    leads ─► RhythmWindows ─► score of every window, by each method ─► scores by the label of most of its beats
          └► probability of every beat ─► spans ─► scores of episodes

Every method classifies a window by its own beats only. An interval relative to the past may use a few earlier beats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.ecg.recording import RHYTHM_INDEX, RHYTHMS, Recording
from heartlm.ecg.spans import runs
from heartlm.errors import HeartlmError, require
from heartlm.evaluation import zhou
from heartlm.evaluation.bootstrap import Resampling
from heartlm.evaluation.config import SMALLEST_WINDOW, EvaluationConfig
from heartlm.evaluation.episodes import Episodes, compare_spans, score_episodes
from heartlm.evaluation.features import boosting, rr_window_features
from heartlm.evaluation.results import Predictions, ScoreSet, attempt, prediction_columns
from heartlm.evaluation.rhythm import RhythmWindows, Verdicts, rr_of, window_labels
from heartlm.inference.finetuned import FineTuned
from heartlm.inference.leads import ScoredLead
from heartlm.labels.tokens import IGNORE, Flutter, rhythm_labels
from heartlm.models.info import ModelInfo
from heartlm.system.progress import track
from heartlm.tasks.task import Answer, FinetuneConfig, Leads, Task
from heartlm.tokenizers.base import Lead, Tokens
from heartlm.training.job import TrainingTask

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MOST_WINDOWS = 50_000
"""Largest number of training windows of baselines: long-term recordings have a million, and features are slow."""

USUAL_WINDOW = 128
"""Beats per window for models trained with several window widths; limited to their trained range."""


class Rhythm(Task):
    """A head for tokens or windows; scores of windows and durations."""

    name = "rhythm"
    scored = "windows of beats"
    heading = (
        "{num_windows:,} windows of {window} beats, labelled by majority",
        "{num_left_out:,} windows without such a label and {num_beats_left_over:,} beats",
    )
    heads = (False, True)

    def learning(self, config: FinetuneConfig, corpus: Corpus, validates: bool = True) -> TrainingTask:
        """Label every beat: in the rhythm or not."""
        from heartlm.tasks.finetune import on_foundation

        labels, positive = rhythm_labels(corpus.rhythm, config.rhythm, config.flutter), (config.rhythm, config.flutter)
        return on_foundation(config, corpus, ("other", config.rhythm), labels, validates, positive)

    def check_model(self, info: ModelInfo) -> None:
        """Check the rhythm and the treatment of flutter too."""
        super().check_model(info)
        known = f"a rhythm of {', '.join(RHYTHMS)}, and one of {', '.join(get_args(Flutter))} for flutter"
        require(info, lambda value: value[0] in RHYTHMS and value[1] in get_args(Flutter), known, "positive")

    def score(self, leads: Leads, tuned: FineTuned, rival: FineTuned | None, config: EvaluationConfig) -> ScoreSet:
        """Score the model and its baselines on windows of `leads`."""
        positive, flutter = tuned.info.positive
        windows = RhythmWindows.of(leads, window_of(tuned, config))
        labels = window_labels(windows.rhythm, positive, flutter, windows.length)
        if (labels < 0).all():
            raise HeartlmError(f"on: no window of the {config.split} split has a rhythm label to score")

        def score(verdicts: Verdicts, labels: NDArray[np.int8] = labels) -> dict[str, Any]:
            return verdicts.scores(labels, patient, config.resampling)

        own, notes = model_verdicts(windows, tuned), list[str]()
        baselines = attempt(baseline_methods(windows, tuned, rival, config), notes)
        patient = np.array([lead.patient_id for lead in leads])[windows.lead]
        about = {"beats": config.beats, "window": windows.codes.shape[1], "positive": positive, "flutter": flutter}
        about |= {"labels": "majority"} | _episode_scores(leads, tuned, config)
        unscored = {"num_left_out": int((labels < 0).sum()), "num_beats_left_over": windows.num_left_over}
        names = np.array([*tuned.info.classes, None], object)  # names of labels 0, 1 and −1
        if positive == "AFIB":  # the two other conventions for atrial flutter
            counted = about["flutter_counted"] = {}
            for other in sorted({"negative", "positive", "left out"} - {flutter}):
                relabelled = window_labels(windows.rhythm, positive, other, windows.length)
                if (relabelled >= 0).any():
                    methods = {"model": own} | baselines
                    counted[other] = {name: score(each, relabelled) for name, each in methods.items() if each}
        answers = (own.score >= own.threshold).astype(np.int64)
        probabilities = np.stack([1 - own.score, own.score], axis=1)
        return ScoreSet(
            about,
            scores=score(own) | unscored,
            baselines={name: each and score(each) for name, each in baselines.items()},
            notes=notes,
            columns=prediction_columns(
                leads, windows.lead, windows.sample, names[labels], names[answers], probabilities.astype(np.float32)
            ),
            classes=tuned.info.classes,
        )

    def score_predictions(
        self, predictions: Predictions, evaluations: Sequence[Mapping[str, Any]], resampling: Resampling
    ) -> dict[str, Any]:
        """Score windows."""
        other, positive = predictions.classes
        labels = predictions.indices("reference", {other: 0, positive: 1, None: -1})
        threshold, answers = evaluations[0]["scores"]["threshold"], predictions.columns["predicted"] == positive
        verdicts = Verdicts(predictions.probabilities[:, 1].astype(np.float64), threshold, answers)
        left_out = {"num_left_out": int((labels < 0).sum())}
        return left_out | verdicts.scores(labels, predictions.patients, resampling)

    def scored_how(self, tuned: FineTuned, config: EvaluationConfig) -> str:
        """The width of the windows."""
        return f"w{window_of(tuned, config)}"

    def annotate(self, tuned: FineTuned, recording: Recording, lead: Lead, tokens: Tokens) -> Answer:
        """Return spans in the rhythm and outside of it."""
        from heartlm.inference.predictions import token_probabilities
        from heartlm.tasks.annotate import spans_found

        info = tuned.info
        shortest = info.shortest if info.pooled and info.shortest else info.window
        width = min(max(USUAL_WINDOW, shortest), info.window)
        positive = token_probabilities(tuned.model, tokens.codes, width)[:, 1] >= info.threshold
        return Answer(spans_found(recording, lead, tokens, rhythm_names(positive, info.positive[0])))


def rhythm_names(positive: NDArray[np.bool_], rhythm: str) -> list[str]:
    """Name each token by `rhythm` or N, or OTHER if `rhythm` is N; `positive` is `[num_tokens]`."""
    other = "N" if rhythm != "N" else "OTHER"
    return [rhythm if each else other for each in positive.tolist()]


def window_of(tuned: FineTuned, config: EvaluationConfig) -> int:
    """Return the number of beats per window.

    Raises:
        HeartlmError: the model labels whole windows and was not trained at this width, or the width is too small.
    """
    width, info = config.window or tuned.info.window, tuned.info
    shortest = info.shortest or info.window
    if info.pooled and not shortest <= width <= info.window:
        learnt = f"{shortest} to {info.window}" if info.shortest else info.window
        raise HeartlmError(
            f"window: {width} found, but {tuned.folder.path} labels windows of {learnt} beats as a whole: "
            "leave --window out, or fine-tune at that width"
        )
    if width < SMALLEST_WINDOW:
        raise HeartlmError(f"window: {width} found, at least {SMALLEST_WINDOW} expected: give --window")
    return width


def model_verdicts(windows: RhythmWindows, tuned: FineTuned) -> Verdicts:
    """Return the model's probability of every window: that of the window, or the mean over its beats."""
    from heartlm.inference.predictions import window_probabilities

    probabilities = windows.judged(
        windows.codes, lambda codes: window_probabilities(tuned.model, codes, tuned.info.window)
    )
    return Verdicts(probabilities[:, 1].astype(np.float64), tuned.info.threshold)


def baseline_methods(
    windows: RhythmWindows, tuned: FineTuned, rival: FineTuned | None, config: EvaluationConfig
) -> dict[str, Callable[[], Verdicts]]:
    """Return baselines by name, as functions; each raises a HeartlmError if it cannot be computed."""

    def majority() -> Verdicts:
        counts = tuned.training_counts("rhythms")
        rhythms = np.array([RHYTHM_INDEX.get(rhythm, -1) for rhythm in counts], np.int8)
        labels, weights = rhythm_labels(rhythms, *tuned.info.positive), np.array(list(counts.values()))
        is_mostly_positive = weights[labels == 1].sum() > weights[labels == 0].sum()
        return Verdicts(np.full(len(windows), float(is_mostly_positive)))

    def published_zhou() -> Verdicts:
        _needs_intervals(tuned)
        return Verdicts(entropy_of(windows), zhou.THRESHOLD)

    def boosted() -> Verdicts:
        training, labels = _training_windows(tuned, windows.codes.shape[1])
        fitted = boosting(features_of(training), labels, config.seed)
        return Verdicts(fitted.predict_proba(features_of(windows))[:, 1])

    methods: dict[str, Callable[[], Verdicts]] = {}
    if config.baselines:
        methods["majority class"] = majority
        if tuned.info.positive[0] == "AFIB":
            methods["Zhou 2015"] = published_zhou
        methods["gradient boosting"] = boosted
    if rival is not None:
        methods["random initialisation"] = lambda: model_verdicts(windows, rival)
    return methods


def entropy_of(windows: RhythmWindows) -> Floats:
    """Return Zhou's entropy of every window, 0 for windows with too few beats; float64 `[num_windows]`."""
    return windows.judged(
        windows.rr_s,
        lambda rr_s: zhou.window_entropy(rr_s) if rr_s.shape[1] >= SMALLEST_WINDOW else np.zeros(len(rr_s)),
    )


def features_of(windows: RhythmWindows) -> Floats:
    """Return hand-crafted features of every window, float64 `[num_windows, num_features]`."""
    return windows.judged(windows.rr_s, rr_window_features)


def _training_windows(tuned: FineTuned, width: int) -> tuple[RhythmWindows, NDArray[np.int8]]:
    """Return at most `MOST_WINDOWS` evenly spaced training windows, and their majority labels.

    Raises:
        HeartlmError: the training corpus is missing, or its tokens are not beats.
    """
    _needs_intervals(tuned)
    windows = RhythmWindows.of(tuned.training_leads(), width)
    if len(windows) > MOST_WINDOWS:
        windows = windows.chosen(np.linspace(0, len(windows) - 1, MOST_WINDOWS).astype(np.int64))
    positive, flutter = tuned.info.positive
    return windows, window_labels(windows.rhythm, positive, flutter, windows.length)


def _needs_intervals(tuned: FineTuned) -> None:
    if not tuned.tokens_are_beats:
        raise HeartlmError(f"tokens of the {tuned.info.tokenizer_kind} tokenizer are no beats and have no RR intervals")


def _episode_scores(leads: Sequence[ScoredLead], tuned: FineTuned, config: EvaluationConfig) -> dict[str, Any]:
    """Return duration scores of the model and, if applicable, of Zhou 2015 at its published window."""
    from heartlm.inference.predictions import recording_probabilities

    width = window_of(tuned, config) if tuned.info.pooled else tuned.info.window
    probabilities = recording_probabilities(tuned.model, (lead.tokens.codes for lead in leads), width)
    flags = {"durations": [each[:, 1] >= tuned.info.threshold for each in track(probabilities, len(leads), "predict")]}
    if config.baselines and tuned.info.positive[0] == "AFIB" and tuned.tokens_are_beats:
        flags["durations of Zhou 2015"] = [zhou.detect(rr_of(lead)) for lead in leads]
    patients = [lead.patient_id for lead in leads]
    return {
        name: score_episodes(
            [_episodes(lead, tuned, positive) for lead, positive in zip(leads, by_lead, strict=True)],
            patients,
            resampling=config.resampling,
        )
        for name, by_lead in flags.items()
    }


def _episodes(lead: ScoredLead, tuned: FineTuned, positive: Flags) -> Episodes:
    """Compare durations: each labelled beat represents the time to the next one; unlabelled time is excluded."""
    labels = rhythm_labels(lead.tokens.rhythm, *tuned.info.positive)[:-1]
    labelled = labels != IGNORE
    length_s = (np.diff(lead.tokens.sample) / lead.rate_hz)[labelled]
    edge_s = np.append(0, np.cumsum(length_s))
    reference, predicted = labels[labelled] == 1, positive[:-1][labelled]
    return compare_spans(edge_s[runs(reference)], edge_s[runs(predicted)], float(edge_s[-1]))


TASK = Rhythm()
