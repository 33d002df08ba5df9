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
from heartlm.evaluation.bootstrap import THOUSAND, Counts, Floats, Resampling, estimate, ratio, sum_by

Flutter = Literal["negative", "positive", "left out"]
WindowRule = Literal["majority", "pure"]
Flags = NDArray[np.bool_]


def window_labels(
    rhythm: NDArray[np.int8],
    *,
    rule: WindowRule = "majority",
    flutter: Flutter = "negative",
    positive: Sequence[str] = ("AFIB",),
    length: NDArray[np.int64] | None = None,
) -> NDArray[np.int8]:
    """Fold the rhythm labels of each window's beats into one label: 1 in the rhythm sought, 0 in another, or −1.

    `"majority"`: more than half of the beats are positive, or more than half are not; a window with neither (many
    unlabelled beats, or a tie) is not scored. `"pure"`: every beat is positive, or every beat is labelled and none is.

    Args:
        rhythm: index into `RHYTHMS` of each beat, or `UNLABELLED`; int8 `[num_windows, width]`.
        rule: how beats become a window label.
        flutter: whether atrial flutter (AFL) counts as negative, as positive, or as if it were unlabelled.
        positive: the rhythms sought.
        length: beats of each window, `[num_windows]`; by default all have `width`.

    Returns:
        int8 `[num_windows]`; windows of −1 are not scored.
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
    is_rhythm, is_other = num_positive == width, num_negative == width
    if rule == "majority":
        is_rhythm, is_other = 2 * num_positive > width, 2 * num_negative > width
    return np.select([is_rhythm, is_other], [1, 0], -1).astype(np.int8)


def score_windows(
    reference: Flags,
    patient: NDArray[np.str_],
    predicted: Flags,
    *,
    score: Floats | None = None,
    resampling: Resampling = THOUSAND,
) -> dict[str, Any]:
    """Score windows by decisions; a score also gives the area under the ROC curve.

    Args:
        reference: whether each window is positive, bool `[num_windows]`.
        patient: whose window it is, `[num_windows]`.
        predicted: whether it was called so, bool `[num_windows]`.
        score: the higher, the more likely positive, float `[num_windows]`.
        resampling: how the intervals are made.

    Returns:
        Plain values, None where a score is undefined: numbers of windows, and `se`, `sp`, `ppv`, `f1`, `accuracy`,
        `auroc`.
    """
    cells = np.stack([reference & predicted, ~reference & predicted, reference & ~predicted, ~reference & ~predicted])
    patients, counts = sum_by(patient.tolist(), cells.T.astype(np.int64))
    point, drawn = _window_ratios(counts.sum(axis=0)), _window_ratios(resampling.resample(counts))
    if score is not None:
        place = np.searchsorted(patients, patient)
        point["auroc"] = _auroc(reference, score, place, np.ones((1, len(patients)), np.int64))[0]
        drawn["auroc"] = _auroc(reference, score, place, resampling.weights(len(patients)))
    about = {"num_windows": len(reference), "num_patients": len(patients), "threshold": None}
    numbers = dict(zip(("tp", "fp", "fn", "tn"), counts.sum(axis=0).tolist(), strict=True))
    scores = {name: estimate(float(point[name]), drawn[name], len(patients)).to_json() for name in point}
    return about | numbers | scores


@dataclass(frozen=True)
class Verdicts:
    """What a method says of every window: positive where `score`, float64 `[num_windows]`, reaches `threshold`."""

    score: Floats
    threshold: float = 0.5

    def scores(self, labels: NDArray[np.int8], patient: NDArray[np.str_], resampling: Resampling) -> dict[str, Any]:
        """Score the windows with a label, see `window_labels`; `patient` is whose each is, `[num_windows]`."""
        scored = labels >= 0
        score = self.score[scored]
        called = score >= self.threshold
        scores = score_windows(labels[scored] == 1, patient[scored], called, score=score, resampling=resampling)
        return scores | {"threshold": self.threshold}


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
