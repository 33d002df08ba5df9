"""Rhythm scores by window of beats.

The rhythm labels of a window's beats become one label (majority of beats, or pure windows only), predictions become
counts of right and wrong windows per patient, and the confidence intervals come from patients drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.beats import UNLABELLED
from heartlm.ecg.rhythms import RHYTHM_INDEX
from heartlm.evaluation.bootstrap import THOUSAND, Counts, Estimate, Floats, Resampling, estimate, ratio, sum_by
from heartlm.evaluation.config import EvaluationConfig

Flutter = Literal["negative", "positive", "left out"]
WindowRule = Literal["majority", "pure"]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class WindowLabels:
    """Reference labels of windows.

    Attributes:
        positive: whether the window counts as the rhythm sought, bool `[num_windows]`; false where not scored.
        scored: whether the window has a label at all, bool `[num_windows]`.
    """

    positive: Flags
    scored: Flags


def window_labels(
    rhythm: NDArray[np.int8],
    *,
    rule: WindowRule = "majority",
    flutter: Flutter = "negative",
    positive: Sequence[str] = ("AFIB",),
    length: NDArray[np.int64] | None = None,
) -> WindowLabels:
    """Fold the rhythm labels of each window's beats into one label.

    `"majority"`: more than half of the beats are positive, or more than half are not; a window with neither (many
    unlabelled beats, or a tie) is not scored. `"pure"`: every beat is positive, or every beat is labelled and none is.

    Args:
        rhythm: index into `RHYTHMS` of each beat, or `UNLABELLED`; int8 `[num_windows, width]`.
        rule: how beats become a window label.
        flutter: whether atrial flutter (AFL) counts as negative, as positive, or as if it were unlabelled.
        positive: the rhythms sought.
        length: beats of each window, `[num_windows]`; by default all have `width`.
    """
    is_flutter = rhythm == RHYTHM_INDEX["AFL"]
    is_positive = np.isin(rhythm, [RHYTHM_INDEX[name] for name in positive])
    is_labelled = rhythm != UNLABELLED
    if flutter == "positive":
        is_positive = is_positive | is_flutter
    elif flutter == "left out":
        is_positive, is_labelled = is_positive & ~is_flutter, is_labelled & ~is_flutter

    width = rhythm.shape[1] if length is None else length
    num_positive = is_positive.sum(axis=1)
    num_negative = is_labelled.sum(axis=1) - num_positive
    if rule == "pure":
        return WindowLabels(num_positive == width, (num_positive == width) | (num_negative == width))
    return WindowLabels(2 * num_positive > width, (2 * num_positive > width) | (2 * num_negative > width))


@dataclass(frozen=True)
class WindowScores:
    """How well windows of one rhythm were distinguished from the others.

    Attributes:
        scores: by name: `se`, `sp`, `ppv`, `f1`, `accuracy`, and `auroc` where scores were given.
        tp: positive windows called positive (`fp`, `fn`, `tn` likewise).
        fp: negative windows called positive.
        fn: positive windows called negative.
        tn: negative windows called negative.
        num_patients: how many hearts the windows come from.
        threshold: the score from which a window was called positive; None where decisions were given.
    """

    scores: dict[str, Estimate]
    tp: int
    fp: int
    fn: int
    tn: int
    num_patients: int
    threshold: float | None

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values; undefined scores are None."""
        counts = {"tp": self.tp, "fp": self.fp, "fn": self.fn, "tn": self.tn}
        about = {"num_windows": sum(counts.values()), "num_patients": self.num_patients, "threshold": self.threshold}
        return about | counts | {name: score.to_json() for name, score in self.scores.items()}


def score_windows(
    reference: Flags,
    patient: NDArray[np.str_],
    *,
    predicted: Flags | None = None,
    score: Floats | None = None,
    threshold: float = 0.5,
    resampling: Resampling = THOUSAND,
) -> WindowScores:
    """Score windows by decisions, or by a score from `threshold` on; a score also gives the area under the ROC curve.

    Args:
        reference: whether each window is positive, bool `[num_windows]`.
        patient: whose window it is, `[num_windows]`.
        predicted: decisions, bool `[num_windows]`; or else
        score: the higher, the more likely positive, float `[num_windows]`.
        threshold: of the score.
        resampling: how the intervals are made.
    """
    if (predicted is None) == (score is None):
        raise ValueError("give either predicted or score")
    decisions = predicted if score is None else np.asarray(score) >= threshold
    assert decisions is not None

    cells = np.stack([reference & decisions, ~reference & decisions, reference & ~decisions, ~reference & ~decisions])
    patients, counts = sum_by(patient.tolist(), cells.T.astype(np.int64))
    point, drawn = _window_ratios(counts.sum(axis=0)), _window_ratios(resampling.resample(counts))
    if score is not None:
        place = np.searchsorted(patients, patient)
        point["auroc"] = _auroc(reference, score, place, np.ones((1, len(patients)), np.int64))[0]
        drawn["auroc"] = _auroc(reference, score, place, resampling.weights(len(patients)))
    scores = {name: estimate(float(point[name]), drawn[name], len(patients), resampling) for name in point}
    tp, fp, fn, tn = counts.sum(axis=0).tolist()
    return WindowScores(scores, tp, fp, fn, tn, len(patients), None if score is None else threshold)


@dataclass(frozen=True)
class Verdicts:
    """What a method says of every window: positive where `score`, float64 `[num_windows]`, reaches `threshold`."""

    score: Floats
    threshold: float = 0.5

    def scores(self, labels: WindowLabels, patient: NDArray[np.str_], config: EvaluationConfig) -> WindowScores:
        """Score the windows that have a label; `patient` is whose each is, `[num_windows]`."""
        return score_windows(
            labels.positive[labels.scored],
            patient[labels.scored],
            score=self.score[labels.scored],
            threshold=self.threshold,
            resampling=config.resampling,
        )


def _window_ratios(counts: Counts) -> dict[str, Any]:
    """Scores from tp, fp, fn, tn in the last axis, `[..., 4]`."""
    tp, fp, fn, tn = np.moveaxis(counts, -1, 0)
    return {
        "se": ratio(tp, tp + fn),
        "sp": ratio(tn, tn + fp),
        "ppv": ratio(tp, tp + fp),
        "f1": ratio(2 * tp, 2 * tp + fp + fn),
        "accuracy": ratio(tp + tn, tp + fp + fn + tn),
    }


def _auroc(reference: Flags, score: Floats, place: NDArray[np.int64], weights: Counts) -> Floats:
    """Area under the ROC curve with patients weighted; ties count half; float64 `[num_bootstrap]`.

    It is the share of pairs (positive window, negative window) in which the positive one has the higher score.
    """
    _, level = np.unique(score, return_inverse=True)
    areas = np.empty(len(weights))
    for index, weight in enumerate(weights):
        of_window = weight[place].astype(np.float64)
        positives = np.bincount(level, of_window * reference)
        negatives = np.bincount(level, of_window * ~reference)
        won = positives @ (np.cumsum(negatives) - negatives / 2)
        areas[index] = ratio(won, positives.sum() * negatives.sum())
    return areas
