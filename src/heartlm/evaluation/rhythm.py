"""Yes-or-no scores of windows, and the labels of windows of beats.

The rhythm labels of a window's beats become one label, that of most of them; predictions become counts of right and
wrong windows per patient, and the confidence intervals come from patients drawn with replacement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.evaluation.bootstrap import THOUSAND, Counts, Floats, Resampling, estimate, ratio, sum_by
from heartlm.training.batches import rhythm_labels

Flags = NDArray[np.bool_]


def window_labels(
    rhythm: NDArray[np.int8], wanted: str = "AFIB", flutter: str = "negative", length: NDArray[np.int64] | None = None
) -> NDArray[np.int8]:
    """Label of each window: 1 or 0, the `rhythm_labels` of more than half of its beats, or −1 where there is neither.

    Args:
        rhythm: index into `RHYTHMS` of each beat, or `UNLABELLED`; int8 `[num_windows, width]`.
        wanted: see `rhythm_labels`.
        flutter: see `rhythm_labels`.
        length: beats of each window, `[num_windows]`; by default all have `width`.

    Returns:
        int8 `[num_windows]`; windows of −1 are not scored.
    """
    labels = rhythm_labels(rhythm, wanted, flutter)
    width = rhythm.shape[1] if length is None else length
    most = [2 * (labels == each).sum(axis=1) > width for each in (1, 0)]
    return np.select(most, [1, 0], -1).astype(np.int8)


@dataclass(frozen=True)
class Verdicts:
    """What a method says of every window: positive where `score`, float64 `[num_windows]`, reaches `threshold`."""

    score: Floats
    threshold: float = 0.5

    def scores(
        self, labels: NDArray[np.int8], patient: NDArray[np.str_], resampling: Resampling = THOUSAND
    ) -> dict[str, Any]:
        """Score the windows that have a label.

        Args:
            labels: 1, 0, or −1 where there is none, `[num_windows]`.
            patient: whose window it is, `[num_windows]`.
            resampling: how the intervals are made.

        Returns:
            Plain values, None where a score is undefined: numbers of windows, and `se`, `sp`, `ppv`, `f1`, `accuracy`,
            `auroc`.
        """
        scored = labels >= 0
        reference, score, patient = labels[scored] == 1, self.score[scored], patient[scored]
        called = score >= self.threshold
        cells = np.stack([reference & called, ~reference & called, reference & ~called, ~reference & ~called])
        patients, counts = sum_by(patient.tolist(), cells.T.astype(np.int64))
        point, drawn = _window_ratios(counts.sum(axis=0)), _window_ratios(resampling.resample(counts))
        place = np.searchsorted(patients, patient)
        point["auroc"] = _auroc(reference, score, place, np.ones((1, len(patients)), np.int64))[0]
        drawn["auroc"] = _auroc(reference, score, place, resampling.weights(len(patients)))
        about = {"num_windows": len(reference), "num_patients": len(patients), "threshold": self.threshold}
        numbers = dict(zip(("tp", "fp", "fn", "tn"), counts.sum(axis=0).tolist(), strict=True))
        return about | numbers | {name: estimate(point[name], drawn[name], len(patients)).to_json() for name in point}


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
