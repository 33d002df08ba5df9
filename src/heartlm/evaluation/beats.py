"""Beat scores after ANSI/AAMI EC57: sensitivity, positive predictivity, F1 and specificity of each class.

What flows through: class indices of beats, reference and predicted, become one confusion matrix per recording; every
score is a ratio of sums of those matrices, over all recordings, over one patient, or over a bootstrap resample of
patients. Beats whose reference is outside the scored classes (EC57's Q, or unlabelled) are left out and counted, as de
Chazal 2004 does. Stricter than EC57 and de Chazal, every confusion counts: a fusion beat called V is an error of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.beats import BEAT_CLASSES
from heartlm.errors import HeartlmError
from heartlm.evaluation.bootstrap import THOUSAND, Counts, Estimate, Floats, Resampling, estimate, ratio, sum_by
from heartlm.evaluation.matching import BeatMatch

SCORED_CLASSES: tuple[str, ...] = ("N", "S", "V", "F")
"""Classes that are scored unless the caller says otherwise: all but Q."""

NO_BEAT = -2
"""Stands for the missing partner: as reference of an extra detection, as prediction of a missed beat (EC57's O)."""

Classes = NDArray[np.int8]


@dataclass(frozen=True)
class ClassScores:
    """How well one class was found.

    Attributes:
        se: sensitivity (recall), tp / (tp + fn).
        ppv: positive predictivity (+P, precision), tp / (tp + fp).
        f1: 2 tp / (2 tp + fp + fn).
        sp: specificity, tn / (tn + fp), over beats of the other classes; an extra detection is no true negative.
        tp: beats of the class that were called so.
        fp: beats of other classes, or no beats, that were called so.
        fn: beats of the class that were called otherwise or missed.
        support: reference beats of the class, tp + fn.
    """

    se: Estimate
    ppv: Estimate
    f1: Estimate
    sp: Estimate
    tp: int
    fp: int
    fn: int
    support: int

    def to_json(self) -> dict[str, Any]:
        """Return the scores as plain values."""
        ratios = {name: getattr(self, name).to_json() for name in ("se", "ppv", "f1", "sp")}
        return ratios | {"tp": self.tp, "fp": self.fp, "fn": self.fn, "support": self.support}


@dataclass(frozen=True)
class BeatScores:
    """All scores of a set of recordings, and the counts that they come from.

    Attributes:
        classes: the scored classes.
        labels: names of the rows and columns of every confusion matrix: `classes`, then, where they occur, `"other"`
            (a prediction outside of the classes) and `"none"` (missed beats as column, extra detections as row).
        record: the recordings, `[num_records]`.
        patient: whose each recording is, `[num_records]`.
        counts: confusion matrix of each recording, int64 `[num_records, num_labels, num_labels]`, rows reference.
        left_out: beats of each recording that are not scored, int64 `[num_records]`.
        accuracy: share of scored beats, and extra detections, that were called rightly.
        macro_f1: mean F1 of the classes that occur in reference or prediction.
        per_class: scores by class name.
        resampling: how the confidence intervals were made.
    """

    classes: tuple[str, ...]
    labels: tuple[str, ...]
    record: tuple[str, ...]
    patient: tuple[str, ...]
    counts: Counts
    left_out: Counts
    accuracy: Estimate
    macro_f1: Estimate
    per_class: dict[str, ClassScores]
    resampling: Resampling

    @property
    def confusion(self) -> Counts:
        """Confusion matrix of all recordings, int64 `[num_labels, num_labels]`, rows reference."""
        confusion: Counts = self.counts.sum(axis=0)
        return confusion

    @property
    def num_beats(self) -> int:
        """Reference beats scored (extra detections are not among them)."""
        return int(self.confusion[: len(self.classes)].sum())

    @property
    def num_left_out(self) -> int:
        """Beats not scored because their reference is unlabelled or outside of the classes."""
        return int(self.left_out.sum())

    def without(self, names: Sequence[str]) -> BeatScores:
        """Score again, leaving out the patients and recordings called `names`.

        Raises:
            HeartlmError: a name is neither a patient nor a recording here.
        """
        for name in names:
            if name not in self.record and name not in self.patient:
                raise HeartlmError(f"cannot score without {name!r}: no such patient or recording was scored")
        kept = [not {record, patient} & set(names) for record, patient in zip(self.record, self.patient, strict=True)]
        return _scores(
            self.classes,
            self.labels,
            tuple(record for record, keep in zip(self.record, kept, strict=True) if keep),
            tuple(patient for patient, keep in zip(self.patient, kept, strict=True) if keep),
            self.counts[kept],
            self.left_out[kept],
            self.resampling,
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values; undefined scores are None."""
        patients, confusions = sum_by(self.patient, self.counts)
        per_patient = []
        for patient, confusion in zip(patients, confusions, strict=True):
            f1 = _ratios(confusion, len(self.classes))["f1"].tolist()
            num_beats = int(confusion[: len(self.classes)].sum())
            by_class = {name: None if np.isnan(value) else value for name, value in zip(self.classes, f1, strict=True)}
            per_patient.append(
                {"patient": patient, "num_beats": num_beats, "confusion": confusion.tolist(), "f1": by_class}
            )
        return {
            "classes": list(self.classes),
            "num_beats": self.num_beats,
            "num_patients": len(patients),
            "num_left_out": self.num_left_out,
            "accuracy": self.accuracy.to_json(),
            "macro_f1": self.macro_f1.to_json(),
            "per_class": {name: scores.to_json() for name, scores in self.per_class.items()},
            "confusion": self.confusion.tolist(),
            "confusion_labels": list(self.labels),
            "per_patient": per_patient,
        }


def score_beats(
    reference: Classes,
    predicted: Classes,
    patient: NDArray[np.str_],
    record: NDArray[np.str_] | None = None,
    *,
    classes: Sequence[str] = SCORED_CLASSES,
    resampling: Resampling = THOUSAND,
) -> BeatScores:
    """Score predicted beat classes against the reference, with confidence intervals over patients.

    Args:
        reference: index into `BEAT_CLASSES` of each beat, or `UNLABELLED`, or `NO_BEAT` for an extra detection;
            int8 `[num_beats]`.
        predicted: the same, `NO_BEAT` for a missed beat; anything outside of `classes` on a scored beat is an error.
        patient: whose beat it is, `[num_beats]`.
        record: the recording it is in, `[num_beats]`; the patient where not given.
        classes: AAMI classes to score; beats of other classes are left out and counted.
        resampling: how the intervals are made.
    """
    record = patient if record is None else record
    if not len(reference) == len(predicted) == len(patient) == len(record):
        raise ValueError("reference, predicted, patient and record must have the same length")
    if np.any((reference == NO_BEAT) & (predicted == NO_BEAT)):
        raise ValueError("a beat has neither reference nor prediction")

    other, none = len(classes), len(classes) + 1
    row, column = _label_places(reference, classes, other, none), _label_places(predicted, classes, other, none)
    scored = row != other
    present = [
        *range(other),
        *(place for place in (other, none) if np.any(scored & ((column == place) | (row == place)))),
    ]

    keys, index = np.unique(np.stack([patient, record]).astype(np.str_), axis=1, return_inverse=True)
    index = index.reshape(-1)
    counts = np.zeros((keys.shape[1], none + 1, none + 1), np.int64)
    np.add.at(counts, (index[scored], row[scored], column[scored]), 1)
    return _scores(
        tuple(classes),
        tuple([*classes, "other", "none"][place] for place in present),
        tuple(keys[1].tolist()),
        tuple(keys[0].tolist()),
        counts[:, present][:, :, present],
        np.bincount(index[~scored], minlength=keys.shape[1]),
        resampling,
    )


def pair_classes(reference: Classes, detected: Classes, match: BeatMatch) -> tuple[Classes, Classes]:
    """Lay matched, missed and extra beats side by side for `score_beats`.

    Args:
        reference: class of each annotated beat, int8 `[n]`.
        detected: class given to each detection, int8 `[m]`.
        match: who belongs to whom, from `match_beats`.

    Returns:
        Reference and predicted classes, both int8 `[num_matched + num_missed + num_extra]`.
    """
    missed, extra = np.full(len(match.missed), NO_BEAT, np.int8), np.full(len(match.extra), NO_BEAT, np.int8)
    return (
        np.concatenate([reference[match.reference], reference[match.missed], extra]),
        np.concatenate([detected[match.detected], missed, detected[match.extra]]),
    )


def _label_places(classes_of_beats: Classes, classes: Sequence[str], other: int, none: int) -> NDArray[np.int64]:
    """Row or column of each beat in the confusion matrix."""
    places = np.full(len(classes_of_beats), other, np.int64)
    for place, name in enumerate(classes):
        places[classes_of_beats == BEAT_CLASSES.index(name)] = place
    places[classes_of_beats == NO_BEAT] = none
    return places


def _scores(
    classes: tuple[str, ...],
    labels: tuple[str, ...],
    record: tuple[str, ...],
    patient: tuple[str, ...],
    counts: Counts,
    left_out: Counts,
    resampling: Resampling,
) -> BeatScores:
    patients, confusions = sum_by(patient, counts)
    confusion = counts.sum(axis=0)
    point = _ratios(confusion, len(classes))
    drawn = _ratios(resampling.resample(confusions), len(classes))
    intervals = {
        name: [
            estimate(value, resampled, len(patients), resampling)
            for value, resampled in zip(np.atleast_1d(point[name]), np.atleast_2d(drawn[name].T), strict=True)
        ]
        for name in point
    }
    per_class = {
        name: ClassScores(
            se=intervals["se"][place],
            ppv=intervals["ppv"][place],
            f1=intervals["f1"][place],
            sp=intervals["sp"][place],
            tp=int(confusion[place, place]),
            fp=int(confusion[:, place].sum() - confusion[place, place]),
            fn=int(confusion[place].sum() - confusion[place, place]),
            support=int(confusion[place].sum()),
        )
        for place, name in enumerate(classes)
    }
    accuracy, macro_f1 = intervals["accuracy"][0], intervals["macro_f1"][0]
    return BeatScores(classes, labels, record, patient, counts, left_out, accuracy, macro_f1, per_class, resampling)


def _ratios(confusion: Counts, num_classes: int) -> dict[str, Floats]:
    """Scores of confusion matrices `[..., num_labels, num_labels]`; `[..., num_classes]`, overall ones `[...]`."""
    tp = np.diagonal(confusion, axis1=-2, axis2=-1)[..., :num_classes]
    support = confusion.sum(axis=-1)[..., :num_classes]
    called = confusion.sum(axis=-2)[..., :num_classes]
    called_beats = confusion[..., :num_classes, :].sum(axis=-2)[..., :num_classes]
    other_beats = support.sum(axis=-1, keepdims=True) - support
    tn = other_beats - (called_beats - tp)
    f1 = ratio(2 * tp, support + called)
    defined = ~np.isnan(f1)
    return {
        "se": ratio(tp, support),
        "ppv": ratio(tp, called),
        "f1": f1,
        "sp": ratio(tn, tn + called - tp),
        "accuracy": ratio(tp.sum(axis=-1), confusion.sum(axis=(-2, -1))),
        "macro_f1": ratio(np.where(defined, f1, 0).sum(axis=-1), defined.sum(axis=-1)),
    }
