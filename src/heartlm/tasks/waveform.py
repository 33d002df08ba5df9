"""The waveform task: VF, VT, asystole, noise or other for windows of four seconds, by a small network of its own.

    leads ─► windows, one per second ─► probability of VF ─► scores of windows with one label throughout
                                     └► per second        ─► scores of durations and of episodes

Specificity is over windows of other rhythms and asystole. Ventricular tachycardia, which is partly shockable, and noise
are reported separately, as the fraction predicted as VF. If only fibrillation is annotated in a recording, the rest
counts as other rhythms, except the ten seconds before fibrillation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.ecg.recording import Recording
from heartlm.ecg.spans import runs
from heartlm.errors import HeartlmError, needs, require
from heartlm.evaluation.bootstrap import Resampling, estimate, ratio, sum_by
from heartlm.evaluation.config import EvaluationConfig
from heartlm.evaluation.episodes import compare_spans, score_episodes
from heartlm.evaluation.results import Predictions, ScoreSet, attempt, prediction_columns
from heartlm.evaluation.rhythm import Verdicts
from heartlm.evaluation.waveform_features import waveform_features
from heartlm.inference.finetuned import FineTuned
from heartlm.inference.leads import ScoredLead
from heartlm.inference.waveform import (
    over_seconds,
    predicted_classes,
    second_probabilities,
    smoothed,
    window_answers,
    window_starts,
    windows_at,
)
from heartlm.labels.tokens import IGNORE
from heartlm.labels.waveform import (
    ASYSTOLE,
    CLASSES,
    NOISE,
    NOT_VF,
    OTHER,
    STRIDE,
    VF,
    VT,
    WINDOW,
    WINDOW_S,
    corpus_classes,
    token_classes,
)
from heartlm.models.info import ModelInfo
from heartlm.tasks.task import Answer, FinetuneConfig, Leads, Task
from heartlm.tokenizers.base import Lead, Tokens
from heartlm.tokenizers.millivolts import MillivoltTokenizer, dequantize
from heartlm.tokenizers.sample import GRID_HZ
from heartlm.training.job import TrainingTask

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

NUM_TREES, MOST_OF_CLASS = 200, 8000
"""Number of trees of the forest, and the largest number of training windows per class."""

BATCH, THRESHOLD = 128, 0.2
"""Windows per batch, and probability threshold for VF, unless they are set.

The threshold is close to the one selected by patient-wise cross-validation (`studies/waveform.py`).
"""

RHYTHM_OF_CLASS = ("OTHER", "VT", "VFIB", "ASYS", "NOISE")
"""Rhythm name of each class in annotation files."""


class Waveform(Task):
    """A small network from random weights, which normalises over whole batches; scores of VF."""

    name = "waveform"
    scored = f"windows of {WINDOW_S:g} s"
    heading = (
        "{num_windows:,} windows of {window:g} s, labelled by one rhythm throughout",
        "{num_left_out:,} windows without such a label",
    )
    classes = (CLASSES,)
    heads = (True,)
    continues = False

    def check(self, config: FinetuneConfig) -> None:
        """Refuse what a network of its own and balanced windows leave no choice of."""
        if config.patients:
            raise HeartlmError("patients: names found, none expected by the task waveform")
        if config.run is not None:
            raise HeartlmError(f"run: {config.run} found, none expected: the task waveform learns from random weights")
        if config.window not in (FinetuneConfig.window, WINDOW):
            raise HeartlmError(f"window: {config.window} found, {WINDOW} expected by the task waveform (4 s)")
        if config.weights or config.order != "random":
            raise HeartlmError("order: random without weights expected by the task waveform, which draws classes alike")

    def learning(self, config: FinetuneConfig, corpus: Corpus, validates: bool = True) -> TrainingTask:
        """Draw windows balanced over classes and patients, and augment them."""
        kind = corpus.manifest["tokenizer"]["kind"]
        if kind != MillivoltTokenizer.kind:
            raise HeartlmError(
                f"{corpus.folder}: tokens of the {kind} tokenizer found, the task waveform reads millivolts: tokenize "
                "with  --tokenizer millivolts"
            )
        import torch

        from heartlm.models.config import ModelConfig
        from heartlm.models.store import build_model
        from heartlm.training.waveform import WaveformLoss, balanced_windows
        from heartlm.training.waveform_batches import WaveformBatches

        torch.manual_seed(config.seed)
        geometry = [torch.from_numpy(coordinates) for coordinates in corpus.tokenizer().geometry()]
        shape = ModelConfig((len(geometry[0]),), 4, 48, dropout=config.dropout, network="waveform").resolve()
        batch_size = config.batch_size or BATCH
        threshold = config.threshold or THRESHOLD
        info = ModelInfo(
            shape, corpus.tokenizer_hash, kind, "labels", WINDOW, self.name, CLASSES, pooled=True, threshold=threshold
        )
        labels, rows = corpus_classes(corpus), corpus.records.select("train")
        return TrainingTask(
            replace(config, window=WINDOW, batch_size=batch_size).sized(shape),
            build_model(shape, geometry, len(CLASSES), pooled=True),
            info,
            WaveformLoss(),
            rows,
            lambda seed: WaveformBatches(corpus, labels, rows, seed),
            held_out=rows[:0],  # few validation patients have VF, so their loss is too noisy to select a model
            sampler=balanced_windows(corpus, rows, labels, batch_size, config.seed),
        )

    def check_model(self, info: ModelInfo) -> None:
        """Check the window too."""
        super().check_model(info)
        require(info, lambda value: value == WINDOW, f"{WINDOW}, the tokens of {WINDOW_S:g} s,", "window")

    def score(self, leads: Leads, tuned: FineTuned, rival: FineTuned | None, config: EvaluationConfig) -> ScoreSet:
        """Score the network and its baselines on windows of `leads`."""
        if rival is not None:
            raise HeartlmError("random_init: a run found, none expected: the task waveform learns from random weights")
        windows = WaveformWindows.of(leads)
        labels, threshold = windows.labels, tuned.info.threshold
        if (labels == IGNORE).all():
            raise HeartlmError(f"on: no window of the {config.split} split has a rhythm label to score")
        alone = window_answers(tuned.model, windows.codes)
        probabilities = smoothed(alone, windows.lead)
        answers = predicted_classes(probabilities, threshold)
        patient = np.array([lead.patient_id for lead in leads])[windows.lead]
        names = np.array([*CLASSES, "not VF", None], object)  # NOT_VF, and IGNORE = −1 for the last
        methods = {
            "majority class": lambda: Verdicts(np.zeros(len(labels))),
            "forest on 12 features": lambda: forest_verdicts(windows, tuned, config.seed),
        }
        notes = list[str]()
        baselines = attempt(methods if config.baselines else {}, notes)
        return ScoreSet(
            {"window": WINDOW_S, "positive": "VF", "labels": "pure", "beats": None}
            | _episode_scores(leads, alone, windows.lead, threshold, config),
            scores=score_vf(
                Verdicts(probabilities[:, VF], threshold, answers == VF), labels, patient, config.resampling
            )
            | {"num_left_out": int((labels == IGNORE).sum()), "num_beats_left_over": 0}
            | _confusion(labels, answers),
            baselines={
                method: verdicts and score_vf(verdicts, labels, patient, config.resampling)
                for method, verdicts in baselines.items()
            },
            notes=notes,
            columns=prediction_columns(
                leads, windows.lead, windows.sample, names[labels], names[answers], probabilities.astype(np.float32)
            ),
            classes=CLASSES,
        )

    def score_predictions(
        self, predictions: Predictions, evaluations: Sequence[Mapping[str, Any]], resampling: Resampling
    ) -> dict[str, Any]:
        """Score windows."""
        indices = {name: index for index, name in enumerate((*CLASSES, "not VF"))} | {None: IGNORE}
        labels, answers = (predictions.indices(name, indices).astype(np.int64) for name in ("reference", "predicted"))
        threshold = evaluations[0]["scores"]["threshold"]
        verdicts = Verdicts(predictions.probabilities[:, VF].astype(np.float64), threshold, answers == VF)
        return (
            score_vf(verdicts, labels, predictions.patients, resampling)
            | {"num_left_out": int((labels == IGNORE).sum())}
            | _confusion(labels, answers)
        )

    def annotate(self, tuned: FineTuned, recording: Recording, lead: Lead, tokens: Tokens) -> Answer:
        """Return spans of one class, and the probability of each class in every second."""
        from heartlm.tasks.annotate import spans_found

        if tokens.num_tokens < WINDOW:
            found_s = tokens.num_tokens / GRID_HZ
            raise HeartlmError(f"{recording.path}: {found_s:.1f} s of signal found, at least {WINDOW_S:g} s expected")
        seconds = second_probabilities(tuned.model, tokens.codes)
        names = [RHYTHM_OF_CLASS[each] for each in predicted_classes(seconds, tuned.info.threshold).tolist()]
        return Answer(spans_found(recording, lead, tokens, names, STRIDE), seconds)


@dataclass(frozen=True)
class WaveformWindows:
    """Windows of `WINDOW` tokens, `STRIDE` apart, over several leads.

    Attributes:
        codes: codes of the tokens, uint16 `[num_windows, WINDOW, 1]`.
        labels: common class of all tokens of a window, or `NOT_VF`; −1 if there are several, int64 `[num_windows]`.
        sample: position of the first token, int64 `[num_windows]`.
        lead: index of the lead, int64 `[num_windows]`.
    """

    codes: NDArray[np.uint16]
    labels: Labels
    sample: Labels
    lead: Labels

    @classmethod
    def of(cls, leads: Sequence[ScoredLead]) -> WaveformWindows:
        """Split `leads` into windows.

        Raises:
            HeartlmError: every recording is shorter than a window.
        """
        starts_by_lead = [window_starts(lead.tokens.num_tokens) for lead in leads]
        if not any(map(len, starts_by_lead)):
            raise HeartlmError(f"no recording is as long as a window of {WINDOW_S:g} s: nothing to score")
        labels = []
        for lead, starts in zip(leads, starts_by_lead, strict=True):
            classes = token_classes(lead.database, lead.tokens.beat_class, lead.tokens.rhythm)
            window_classes = classes[starts[:, None] + np.arange(WINDOW)].astype(np.int64)
            labels.append(np.where((window_classes == window_classes[:, :1]).all(axis=1), window_classes[:, 0], IGNORE))
        return cls(
            np.concatenate([windows_at(lead.tokens.codes, at) for lead, at in zip(leads, starts_by_lead, strict=True)]),
            np.concatenate(labels),
            np.concatenate([lead.tokens.sample[starts] for lead, starts in zip(leads, starts_by_lead, strict=True)]),
            np.repeat(np.arange(len(leads)), list(map(len, starts_by_lead))),
        )


def _episode_scores(
    leads: Sequence[ScoredLead], alone: Floats, lead_of: Labels, threshold: float, config: EvaluationConfig
) -> dict[str, Any]:
    """Return duration and episode scores of VF, and of VF and VT combined where VT is annotated.

    Unlabelled time is excluded. The spans are those that `heartlm predict` writes.
    """
    scores = {}
    by_lead = np.split(alone, np.searchsorted(lead_of, np.arange(1, len(leads))))  # windows are in the order of leads
    for name, rhythms, unlabelled in (("", (VF,), (IGNORE,)), (" of VF and VT", (VF, VT), (IGNORE, NOT_VF))):
        episodes, patients = [], []
        for lead, windows in zip(leads, by_lead, strict=True):
            classes = token_classes(lead.database, lead.tokens.beat_class, lead.tokens.rhythm)
            # Each window counts as a lead of its own, so none is smoothed: a second averages the windows that cover it.
            seconds = over_seconds(smoothed(windows, np.arange(len(windows))))
            answers = predicted_classes(seconds, threshold).repeat(STRIDE)
            shared = min(len(answers), len(classes))
            labelled = ~np.isin(classes[:shared], unlabelled)
            if labelled.any():
                true, predicted = (np.isin(each[:shared][labelled], rhythms) for each in (classes, answers))
                episodes.append(compare_spans(runs(true), runs(predicted), len(true), ticks_hz=GRID_HZ))
                patients.append(lead.patient_id)
        if episodes:
            scores[f"durations{name}"] = score_episodes(episodes, patients, resampling=config.resampling)
    return scores


def score_vf(method: Verdicts, labels: Labels, patient: NDArray[np.str_], resampling: Resampling) -> dict[str, Any]:
    """Return scores of VF against other rhythms and asystole, and the fractions of VT and noise predicted as VF."""
    negative, positive = np.isin(labels, (OTHER, ASYSTOLE, NOT_VF)), method.is_positive
    block = method.scores(np.select([labels == VF, negative], [1, 0], -1).astype(np.int8), patient, resampling)
    for index in (VT, NOISE):
        own = labels == index
        patients, counts = sum_by(
            patient[own].tolist(), np.stack([positive[own], np.ones(own.sum())], 1).astype(np.int64)
        )
        total, drawn = counts.sum(axis=0), resampling.resample(counts)
        share = estimate(float(ratio(total[0], total[1])), ratio(drawn[:, 0], drawn[:, 1]), len(patients))
        block[f"{CLASSES[index].lower()}_called_vf"] = share | {"num_windows": int(total[1])}
    return block


def _confusion(labels: Labels, answers: Labels) -> dict[str, Any]:
    known = (labels != IGNORE) & (labels != NOT_VF)
    confusion = np.zeros((len(CLASSES), len(CLASSES)), np.int64)
    np.add.at(confusion, (labels[known], answers[known]), 1)
    return {"confusion": confusion.tolist(), "confusion_labels": list(CLASSES)}


def forest_verdicts(windows: WaveformWindows, tuned: FineTuned, seed: int) -> Verdicts:
    """Classify windows by a random forest on twelve published features.

    The training data and smoothing are those of `tuned`.

    Raises:
        HeartlmError: scikit-learn is not installed, or the training corpus is missing.
    """
    with needs("score"):
        from sklearn.ensemble import RandomForestClassifier
    training = WaveformWindows.of(tuned.training_leads())
    labels, random = training.labels, np.random.default_rng(seed)
    chosen = np.concatenate(
        [random.permutation(np.flatnonzero(labels == each))[:MOST_OF_CLASS] for each in range(NOT_VF + 1)]
    )
    is_vf = labels[chosen] == VF
    if is_vf.all() or not is_vf.any():
        raise HeartlmError("the training windows are not of two classes, VF and another one: add recordings")
    forest = RandomForestClassifier(
        NUM_TREES, min_samples_leaf=5, class_weight="balanced_subsample", random_state=seed, n_jobs=1
    )
    forest.fit(waveform_features(dequantize(training.codes[chosen, :, 0])), is_vf)
    probabilities = forest.predict_proba(waveform_features(dequantize(windows.codes[:, :, 0])))
    return Verdicts(smoothed(probabilities, windows.lead)[:, 1])


TASK = Waveform()
