"""Rhythm scores by duration: how many seconds, and how many episodes, were found.

Reference and predicted spans are intersected in seconds, as ANSI/AAMI EC57 does for episodes of fibrillation, and
summed over recordings; the confidence intervals come from patients drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heartlm.evaluation.bootstrap import Estimate, Floats, Resampling, estimate, ratio


@dataclass(frozen=True)
class Durations:
    """What reference and prediction share in one recording, in seconds and in episodes.

    An episode is found when any part of it is predicted, and confirmed when any part of it is true (EC57).
    """

    reference_s: float
    predicted_s: float
    both_s: float
    total_s: float
    num_reference: int
    num_found: int
    num_predicted: int
    num_confirmed: int


def measure_durations(reference_s: Floats, predicted_s: Floats, total_s: float) -> Durations:
    """Compare spans of one recording.

    Args:
        reference_s: starts and ends in seconds, float `[num_spans, 2]`, in any order; overlapping ones are merged.
        predicted_s: the same for the prediction.
        total_s: length of the recording; spans are cut there.
    """
    reference, predicted = _merged(reference_s, total_s), _merged(predicted_s, total_s)
    shared = _shared_s(reference, predicted)
    return Durations(
        reference_s=float(np.diff(reference).sum()),
        predicted_s=float(np.diff(predicted).sum()),
        both_s=float(shared.sum()),
        total_s=float(total_s),
        num_reference=len(reference),
        num_found=int(np.count_nonzero(shared)),
        num_predicted=len(predicted),
        num_confirmed=int(np.count_nonzero(_shared_s(predicted, reference))),
    )


@dataclass(frozen=True)
class DurationScores:
    """Scores of seconds and of episodes over several recordings.

    Attributes:
        scores: by name: `se`, `sp`, `ppv`, `f1`, `accuracy` of seconds; `episode_se`, `episode_ppv` of episodes.
        total: the summed `Durations`.
        num_patients: how many hearts they come from.
    """

    scores: dict[str, Estimate]
    total: Durations
    num_patients: int

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values; undefined scores are None."""
        scores = {name: score.to_json() for name, score in self.scores.items()}
        return {"num_patients": self.num_patients} | vars(self.total) | scores


def score_durations(
    durations: Sequence[Durations],
    patient: Sequence[str],
    *,
    num_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> DurationScores:
    """Sum recordings (gross statistics of EC57) and score them, with intervals over patients.

    Args:
        durations: one a recording.
        patient: whose recording it is, one each.
        num_bootstrap: how many resamples the intervals come from.
        seed: of the resampling.
        confidence: coverage of the intervals.
    """
    resampling = Resampling(num_bootstrap, seed, confidence)
    names = list(Durations.__dataclass_fields__)
    table = np.array([[getattr(each, name) for name in names] for each in durations], np.float64).reshape(
        -1, len(names)
    )
    patients, place = np.unique(np.asarray(patient, np.str_), return_inverse=True)
    sums = np.zeros((len(patients), len(names)))
    np.add.at(sums, place, table)

    point = _duration_ratios(sums.sum(axis=0))
    drawn = _duration_ratios(resampling.weights(len(patients)) @ sums)
    scores = {name: estimate(float(point[name]), drawn[name], len(patients), resampling) for name in point}
    seconds, episodes = sums.sum(axis=0)[:4].tolist(), sums.sum(axis=0)[4:].astype(int).tolist()
    return DurationScores(scores, Durations(*seconds, *episodes), len(patients))


def _duration_ratios(sums: Floats) -> dict[str, Any]:
    """Scores from the fields of `Durations` in the last axis, `[..., 8]`."""
    reference, predicted, both, total, num_reference, num_found, num_predicted, num_confirmed = np.moveaxis(sums, -1, 0)
    neither = total - reference - predicted + both
    return {
        "se": ratio(both, reference),
        "sp": ratio(neither, total - reference),
        "ppv": ratio(both, predicted),
        "f1": ratio(2 * both, reference + predicted),
        "accuracy": ratio(both + neither, total),
        "episode_se": ratio(num_found, num_reference),
        "episode_ppv": ratio(num_confirmed, num_predicted),
    }


def _merged(spans_s: Floats, total_s: float) -> Floats:
    """Cut spans to `[0, total_s]`, sort them, merge those that touch; float64 `[num_spans, 2]`."""
    merged: list[list[float]] = []
    cut = np.clip(np.asarray(spans_s, np.float64).reshape(-1, 2), 0, total_s)
    for start, stop in sorted(cut[cut[:, 0] < cut[:, 1]].tolist()):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return np.array(merged, np.float64).reshape(-1, 2)


def _shared_s(spans: Floats, others: Floats) -> Floats:
    """Seconds of each span that lie in `others`; both merged; float64 `[num_spans]`."""
    stops = np.cumsum(np.diff(others)[:, 0])
    covered = np.stack([np.concatenate([[0.0], stops[:-1]]), stops], axis=1) if len(others) else others
    covered_until: Floats = np.interp(spans, np.append(0.0, others), np.append(0.0, covered))
    return covered_until[:, 1] - covered_until[:, 0]
