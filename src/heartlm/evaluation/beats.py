"""Beat scores after ANSI/AAMI EC57: sensitivity, positive predictivity, F1 and specificity of each class.

Reference and predicted class indices of beats give one confusion matrix per patient. Every score is a ratio of sums of
those matrices, over all patients, over one, or over a bootstrap resample of patients. Beats with a reference outside
the scored classes (Q of EC57, or unlabelled) are excluded and counted, as in de Chazal 2004. Unlike in EC57 and de
Chazal, every confusion counts: a fusion beat predicted as V is an error of both classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import BEAT_CLASSES
from heartlm.evaluation.bootstrap import THOUSAND, Counts, Floats, Resampling, estimate, ratio

SCORED_CLASSES = BEAT_CLASSES[:4]
"""Classes to score: the first of `BEAT_CLASSES`, all except Q."""

NO_BEAT = -2
"""Class of a missing partner: reference of an extra detection, or prediction of a missed beat (O of EC57)."""

Classes = NDArray[np.int8]


def score_beats(
    reference: Classes,
    predicted: Classes,
    patient: NDArray[np.str_],
    *,
    resampling: Resampling = THOUSAND,
) -> dict[str, Any]:
    """Score predicted beat classes against the reference, with confidence intervals over patients.

    Args:
        reference: index into `BEAT_CLASSES` of each beat, or `UNLABELLED`, or `NO_BEAT` for an extra detection;
            int8 `[num_beats]`.
        predicted: predicted index of each beat, `NO_BEAT` for a missed beat; int8 `[num_beats]`. On a scored beat, a
            prediction outside of the scored classes is an error.
        patient: patient of each beat, `[num_beats]`.
        resampling: bootstrap settings of the intervals.

    Returns:
        JSON values, None where a score is undefined: `num_beats`, the scored beats without extra detections;
        `num_patients`; `num_left_out`; `accuracy` over scored beats and extra detections; `macro_f1`, the mean over
        the classes that occur; `per_class`; and `confusion`, with reference classes as rows. `per_class` has for each
        class the sensitivity `se`, the positive predictivity `ppv`, `f1`, the specificity `sp` over beats of the other
        classes, and counts (an extra detection is not a true negative). `confusion_labels` are the classes and, if
        they occur, `"other"` (a prediction outside of the classes) and `"none"` (missed beats as column, extra
        detections as row).
    """
    # Rows and columns: the scored classes, then one for all other labels, then one for no beat. A reference of another
    # label is not scored; a prediction of one is an error.
    num = other = len(SCORED_CLASSES)
    none = num + 1
    row, column = (
        np.select([each == NO_BEAT, (each >= 0) & (each < num)], [none, each], other) for each in (reference, predicted)
    )
    scored = row != other
    extra = [label for label in (other, none) if np.any(scored & ((column == label) | (row == label)))]
    labels = [*range(num), *extra]
    patients, patient_index = np.unique(patient.astype(np.str_), return_inverse=True)
    by_patient = np.zeros((len(patients), none + 1, none + 1), np.int64)
    np.add.at(by_patient, (patient_index[scored], row[scored], column[scored]), 1)
    by_patient = by_patient[:, labels][:, :, labels]
    confusion = by_patient.sum(axis=0)
    point, drawn = _ratios(confusion), _ratios(resampling.resample(by_patient))
    scores = {
        name: [
            estimate(value, resampled, len(patients))
            for value, resampled in zip(np.atleast_1d(point[name]), np.atleast_2d(drawn[name].T), strict=True)
        ]
        for name in point
    }
    counts = {
        "tp": np.diagonal(confusion)[:num],
        "fp": (confusion.sum(axis=0) - np.diagonal(confusion))[:num],
        "fn": (confusion.sum(axis=1) - np.diagonal(confusion))[:num],
        "support": confusion.sum(axis=1)[:num],
    }
    return {
        "classes": list(SCORED_CLASSES),
        "num_beats": int(confusion[:num].sum()),
        "num_patients": len(patients),
        "num_left_out": int(np.count_nonzero(~scored)),
        "accuracy": scores["accuracy"][0],
        "macro_f1": scores["macro_f1"][0],
        "per_class": {
            name: {score: scores[score][label] for score in ("se", "ppv", "f1", "sp")}
            | {each: int(values[label]) for each, values in counts.items()}
            for label, name in enumerate(SCORED_CLASSES)
        },
        "confusion": confusion.tolist(),
        "confusion_labels": [[*SCORED_CLASSES, "other", "none"][label] for label in labels],
        "per_patient": [
            {
                "patient": name,
                "num_beats": int(own[:num].sum()),
                "confusion": own.tolist(),
                "f1": {
                    each: None if np.isnan(f1) else f1
                    for each, f1 in zip(SCORED_CLASSES, _ratios(own)["f1"].tolist(), strict=True)
                },
            }
            for name, own in zip(patients.tolist(), by_patient, strict=True)
        ],
    }


def _ratios(confusion: Counts) -> dict[str, Floats]:
    """Return scores of confusion matrices `[..., num_labels, num_labels]`: `[..., 4]`, overall `[...]`."""
    num_classes = len(SCORED_CLASSES)
    tp = np.diagonal(confusion, axis1=-2, axis2=-1)[..., :num_classes]
    support = confusion.sum(axis=-1)[..., :num_classes]
    predicted = confusion.sum(axis=-2)[..., :num_classes]
    predicted_beats = confusion[..., :num_classes, :].sum(axis=-2)[..., :num_classes]
    other_beats = support.sum(axis=-1, keepdims=True) - support
    tn = other_beats - (predicted_beats - tp)
    f1 = ratio(2 * tp, support + predicted)
    defined = ~np.isnan(f1)
    return {
        "se": ratio(tp, support),
        "ppv": ratio(tp, predicted),
        "f1": f1,
        "sp": ratio(tn, tn + predicted - tp),
        "accuracy": ratio(tp.sum(axis=-1), confusion.sum(axis=(-2, -1))),
        "macro_f1": ratio(np.where(defined, f1, 0).sum(axis=-1), defined.sum(axis=-1)),
    }
