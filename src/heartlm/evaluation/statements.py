"""Scores of statements about recordings, with intervals by patient, and baselines that read a summary of the beats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.statements import SUPERCLASSES
from heartlm.errors import HeartlmError, needs
from heartlm.evaluation.bootstrap import Resampling, estimate, ratio
from heartlm.evaluation.rhythm import Verdicts, auroc

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Features = NDArray[np.float32]

CHALLENGE_PLACES = {
    **{"SR": -0.05, "1AVB": 0, "IRBBB": 0, "LPR": 0, "SARRH": 0, "SBRAD": 0, "PAC": 0.0375, "LAFB": 0.05, "IVCD": 0.05},
    **{"PACE": 0.075, "PVC": 0.075, "STACH": 0.075, "CRBBB": 0.1, "LVOLT": 0.125, "LNGQT": 0.15, "CLBBB": 0.175},
    **{"AFIB": 0.2, "AFLT": 0.2, "TAB_": 0.2, "INVT": 0.2, "QWAVE": 0.3},
}
"""Places of statements on the line from normal to grave of the PhysioNet/CinC Challenge 2021.

The credit for a statement instead of another is 0.5 less the distance of their places: so all numbers of `weights.csv`
of github.com/physionetchallenges/evaluation-2021. Its bradycardia and its two axis deviations have no name here.
"""


BINS = 10
"""Groups of the calibration error."""


def score_statements(
    probabilities: Floats,
    labels: Labels,
    names: Sequence[str],
    thresholds: Sequence[float],
    patients: NDArray[np.str_],
    resampling: Resampling,
    called: NDArray[np.bool_] | None = None,
) -> dict[str, Any]:
    """Return the scores of each statement, and their means.

    Args:
        probabilities: of each statement about each recording, `[num_recordings, num_statements]`.
        labels: 1 present, 0 absent, −1 not known, of the same shape.
        names: statements.
        thresholds: probability at which each counts as present.
        patients: patient of each recording.
        resampling: settings of the intervals.
        called: which statements count as present in each recording; by default those that reach their threshold.

    Returns:
        `per_class` with `support`, `se`, `ppv`, `sp`, `f1`, `auroc`, `average_precision`, `brier`, the mean squared
        error of the probability, and `calibration_error` of each statement; `macro_f1`, `macro_auroc`, `macro_brier`
        and `macro_calibration_error`, the means over statements that occur, `superclass_auroc` over superclasses, and
        `challenge_2021`, the metric of that challenge over those of its statements that are among `names`.
    """
    known_patients, patient = np.unique(patients, return_inverse=True)
    called = probabilities >= np.array(thresholds) if called is None else called
    weights = resampling.weights(len(known_patients))
    per_class, areas, drawn = dict[str, Any](), dict[str, float](), dict[str, Floats]()
    for place, (name, threshold) in enumerate(zip(names, thresholds, strict=True)):
        own, probability = labels[:, place], probabilities[:, place]
        known, is_present = own >= 0, own == 1
        if not is_present.any() or not (own == 0).any():
            continue
        block = Verdicts(probability, threshold, called[:, place]).scores(own.astype(np.int8), patients, resampling)
        block |= {
            "support": int(is_present.sum()),
            "average_precision": _average_precision(is_present[known], probability[known]),
            "brier": _value(((probability - is_present)[known] ** 2).mean()),
            "calibration_error": _value(calibration_error(is_present[known], probability[known])),
        }
        per_class[name] = block
        areas[name] = block["auroc"]["value"]
        drawn[name] = auroc(is_present[known], probability[known], patient[known], weights)
    if not per_class:
        raise HeartlmError("no statement of the model is both present and absent in these recordings: nothing to score")
    found = list(per_class)

    def mean(chosen: Sequence[str]) -> dict[str, Any]:
        # A resample without any patient of a statement, or with nothing else, counts the others.
        areas_drawn = np.ma.masked_invalid([drawn[name] for name in chosen]).mean(axis=0).filled(np.nan)
        return estimate(float(np.mean([areas[name] for name in chosen])), areas_drawn, len(known_patients))

    f1 = [per_class[name]["f1"]["value"] or 0.0 for name in found]
    scores = {
        "classes": found,
        "per_class": per_class,
        "num_recordings": len(labels),
        "num_beats": int((labels == 1).any(axis=1).sum()),
        "num_patients": len(known_patients),
        "macro_f1": _value(np.mean(f1)),
        "macro_auroc": mean(found),
        **{
            f"macro_{each}": _value(np.mean([per_class[name][each]["value"] for name in found]))
            for each in ("brier", "calibration_error")
        },
    }
    if challenge := _challenge_scores(called, labels, names):
        terms = np.stack([np.bincount(patient, each, len(known_patients)) for each in challenge], axis=1)
        drawn_terms = weights @ terms
        value = float(terms[:, 0].sum() / terms[:, 1].sum())
        scores["challenge_2021"] = estimate(value, ratio(drawn_terms[:, 0], drawn_terms[:, 1]), len(known_patients))
    superclasses = [name for name in SUPERCLASSES if name in per_class]
    return scores | ({"superclass_auroc": mean(superclasses)} if superclasses else {})


def _challenge_scores(
    is_called: NDArray[np.bool_], labels: Labels, names: Sequence[str]
) -> tuple[Floats, Floats] | None:
    """Return the credit of each recording above calling all sinus rhythm, and that of calling it right.

    None unless some recording can earn credit. Unknown statements count as absent, as in the challenge.
    """
    chosen = [place for place, name in enumerate(names) if name in CHALLENGE_PLACES]
    along = np.array([CHALLENGE_PLACES[names[place]] for place in chosen] + [CHALLENGE_PLACES["SR"]])
    # The last column is sinus rhythm, which a model need not know, so that it can be called.
    credit = 0.5 - np.abs(along[:, None] - along)
    same = [*(names[place] for place in chosen), "SR"]
    credit[np.equal.outer(same, same)] = 1
    none = np.zeros((len(labels), 1), bool)
    stated, called = (np.hstack([each[:, chosen], none]) for each in (labels == 1, is_called))
    sinus = np.zeros_like(stated)
    sinus[:, same.index("SR")] = True

    def credits(calls: NDArray[np.bool_]) -> Floats:
        either = np.maximum((stated | calls).sum(axis=1), 1)
        return np.asarray(((stated.astype(np.float64) @ credit) * calls).sum(axis=1) / either)

    right, nothing = credits(stated), credits(sinus)
    return (credits(called) - nothing, right - nothing) if right.sum() > nothing.sum() else None


def _average_precision(is_present: NDArray[np.bool_], probability: Floats) -> dict[str, Any]:
    order = np.argsort(-probability, kind="stable")
    hits = is_present[order]
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return _value(precision[hits].mean())


def _value(value: float | np.floating[Any]) -> dict[str, Any]:
    return {"value": float(value), "ci": [None, None]}


def calibration_error(is_present: NDArray[np.bool_], probability: Floats) -> float:
    """Return the expected calibration error (Naeini 2015): how far probabilities are from frequencies.

    Cases are sorted by probability into `BINS` groups of equal number; the error is the mean over cases of the
    difference between the mean probability of the group and the fraction of it that is present.
    """
    order = np.argsort(probability, kind="stable")
    groups = np.array_split(order, min(BINS, len(order)))
    return sum(abs(float((probability[own] - is_present[own]).sum())) for own in groups) / len(order)


def best_thresholds(probabilities: Floats, labels: Labels) -> tuple[float, ...]:
    """Return the probability with the highest F1 of each statement, 0.5 where none is present and absent.

    The threshold lies halfway to the next lower probability.
    """
    thresholds = []
    for probability, own in zip(probabilities.T, labels.T, strict=True):
        known = own >= 0
        if not (own == 1).any() or not (own == 0).any():
            thresholds.append(0.5)
            continue
        order = np.argsort(-probability[known], kind="stable")
        ranked, hits = probability[known][order], own[known][order] == 1
        f1 = 2 * np.cumsum(hits) / (np.arange(1, len(hits) + 1) + hits.sum())
        best = int(f1.argmax())
        below = ranked[best + 1] if best + 1 < len(ranked) else 0.0
        thresholds.append(float((ranked[best] + below) / 2))
    return tuple(thresholds)


def logistic_probabilities(features: Features, labels: Labels, others: Features) -> Floats:
    """Fit a logistic regression for each statement on `features` and return the probabilities of `others`.

    Args:
        features: of the training recordings, `[num_recordings, num_features]`.
        labels: statements about them, 1, 0, −1.
        others: features of the recordings to classify.

    Raises:
        HeartlmError: scikit-learn is not installed.
    """
    with needs("score"):
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    probabilities = np.zeros((len(others), labels.shape[1]))
    for place, own in enumerate(labels.T):
        known = own >= 0
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
        model.fit(features[known], own[known])
        probabilities[:, place] = model.predict_proba(others)[:, 1]
    return probabilities
