"""Windows of beats, their labels, and binary classification scores of windows.

Windows do not overlap. A recording shorter than a window gives one short window, so that every recording is scored. The
beats after the last whole window of a longer recording are excluded and counted. A window has the rhythm label of the
majority of its beats. Predictions give counts of correct and wrong windows per patient. Confidence intervals are
bootstrapped over patients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import UNLABELLED
from heartlm.errors import HeartlmError
from heartlm.evaluation.bootstrap import THOUSAND, Counts, Floats, Resampling, estimate, ratio, sum_by
from heartlm.inference.leads import ScoredLead
from heartlm.labels.tokens import rhythm_labels
from heartlm.tokenizers.rr import rr_intervals_s

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class RhythmWindows:
    """Windows of one width over several recordings; windows of short recordings are padded.

    Attributes:
        codes: codes of the beats, uint16 `[num_windows, width, num_facets]`, padded with 0.
        rr_s: interval before each beat in seconds, float64 `[num_windows, width]`, padded with 0. The first beat of a
            recording has no interval and takes that of the next beat.
        rhythm: rhythm index of each beat, padded with `UNLABELLED`, int8 `[num_windows, width]`.
        sample: position of the first beat, int64 `[num_windows]`.
        lead: index of the recording, int64 `[num_windows]`.
        length: number of beats in each window, int64 `[num_windows]`.
        num_left_over: number of beats outside of all windows.
    """

    codes: NDArray[np.uint16]
    rr_s: Floats
    rhythm: NDArray[np.int8]
    sample: NDArray[np.int64]
    lead: NDArray[np.int64]
    length: NDArray[np.int64]
    num_left_over: int

    @classmethod
    def of(cls, leads: Sequence[ScoredLead], width: int) -> RhythmWindows:
        """Split `leads` into windows.

        Raises:
            HeartlmError: no recording has a beat.
        """
        num_tokens = np.array([lead.tokens.num_tokens for lead in leads], np.int64)
        num_windows = np.maximum(num_tokens // width, num_tokens > 0)
        if not num_windows.any():
            raise HeartlmError("no recording has a beat: there are no windows to score")

        def windows(arrays: Sequence[NDArray[Any]], padding: int = 0) -> NDArray[Any]:
            parts = []
            for each, count in zip(arrays, num_windows.tolist(), strict=True):
                short = max(0, count * width - len(each))
                part = np.pad(each[: count * width], [(0, short)] + [(0, 0)] * (each.ndim - 1), constant_values=padding)
                parts.append(part.reshape(-1, width, *part.shape[1:]))
            return np.concatenate(parts)

        return cls(
            codes=windows([np.asarray(lead.tokens.codes) for lead in leads]),
            rr_s=windows([rr_of(lead) for lead in leads]),
            rhythm=windows([np.asarray(lead.tokens.rhythm) for lead in leads], UNLABELLED),
            sample=windows([np.asarray(lead.tokens.sample) for lead in leads])[:, 0],
            lead=np.repeat(np.arange(len(leads)), num_windows),
            length=np.repeat(np.minimum(num_tokens, width), num_windows),
            num_left_over=int(np.maximum(num_tokens - num_windows * width, 0).sum()),
        )

    def __len__(self) -> int:
        return len(self.codes)

    def chosen(self, rows: NDArray[np.int64]) -> RhythmWindows:
        """Return the windows with the indices `rows`."""
        kept = {name: getattr(self, name)[rows] for name in ("codes", "rr_s", "rhythm", "sample", "lead", "length")}
        return replace(self, **kept)

    def judged(self, array: NDArray[Any], judge: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
        """Apply `judge` to the rows of `array`, `[num_windows, width, ...]`, without padding, grouped by length."""
        answers: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
        for length in np.unique(self.length).tolist():
            rows = np.flatnonzero(self.length == length)
            answers.append((rows, judge(array[rows, :length])))
        out = np.empty((len(self), *answers[0][1].shape[1:]), answers[0][1].dtype)
        for rows, answer in answers:
            out[rows] = answer
        return out


def rr_of(lead: ScoredLead) -> Floats:
    """Return the interval before each beat in seconds, float64 `[num_tokens]`; the first one repeats the second."""
    rr_s = rr_intervals_s(np.asarray(lead.tokens.sample), lead.rate_hz)
    if len(rr_s) > 1:
        rr_s[0] = rr_s[1]
    return np.nan_to_num(rr_s)


def window_labels(
    rhythm: NDArray[np.int8], positive: str = "AFIB", flutter: str = "negative", length: NDArray[np.int64] | None = None
) -> NDArray[np.int8]:
    """Return the label of each window: 1 or 0 if more than half of its beats have it (`rhythm_labels`), else −1.

    Args:
        rhythm: index into `RHYTHMS` of each beat, or `UNLABELLED`; int8 `[num_windows, width]`.
        positive: see `rhythm_labels`.
        flutter: see `rhythm_labels`.
        length: number of beats in each window, `[num_windows]`; by default `width`.

    Returns:
        Labels, int8 `[num_windows]`; windows with −1 are not scored.
    """
    labels = rhythm_labels(rhythm, positive, flutter)
    width = rhythm.shape[1] if length is None else length
    most = [2 * (labels == each).sum(axis=1) > width for each in (1, 0)]
    return np.select(most, [1, 0], -1).astype(np.int8)


@dataclass(frozen=True)
class Verdicts:
    """Scores of every window, float64 `[num_windows]`.

    A window is positive if `positive` says so, or without it if `score` is at least `threshold`.
    """

    score: Floats
    threshold: float = 0.5
    positive: Flags | None = None

    @property
    def is_positive(self) -> Flags:
        """Whether each window is positive, `[num_windows]`."""
        return self.score >= self.threshold if self.positive is None else self.positive

    def scores(
        self, labels: NDArray[np.int8], patient: NDArray[np.str_], resampling: Resampling = THOUSAND
    ) -> dict[str, Any]:
        """Score the windows that have a label.

        Args:
            labels: 1, 0, or −1 for no label, `[num_windows]`.
            patient: patient of each window, `[num_windows]`.
            resampling: bootstrap settings of the intervals.

        Returns:
            JSON values, None where a score is undefined: numbers of windows, and `se`, `sp`, `ppv`, `f1`, `accuracy`,
            `auroc`.
        """
        scored = labels >= 0
        reference, score, patient = labels[scored] == 1, self.score[scored], patient[scored]
        positive = self.is_positive[scored]
        cells = np.stack([reference & positive, ~reference & positive, reference & ~positive, ~reference & ~positive])
        patients, counts = sum_by(patient.tolist(), cells.T.astype(np.int64))
        point, drawn = _window_ratios(counts.sum(axis=0)), _window_ratios(resampling.resample(counts))
        patient_index = np.searchsorted(patients, patient)
        point["auroc"] = auroc(reference, score, patient_index, np.ones((1, len(patients)), np.int64))[0]
        drawn["auroc"] = auroc(reference, score, patient_index, resampling.weights(len(patients)))
        about = {"num_windows": len(reference), "num_patients": len(patients), "threshold": self.threshold}
        numbers = dict(zip(("tp", "fp", "fn", "tn"), counts.sum(axis=0).tolist(), strict=True))
        return about | numbers | {name: estimate(point[name], drawn[name], len(patients)) for name in point}


def _window_ratios(counts: Counts) -> dict[str, Any]:
    """Return scores from tp, fp, fn, tn in the last axis, `[..., 4]`."""
    tp, fp, fn, tn = np.moveaxis(counts, -1, 0)
    return {
        "se": ratio(tp, tp + fn),
        "sp": ratio(tn, tn + fp),
        "ppv": ratio(tp, tp + fp),
        "f1": ratio(2 * tp, 2 * tp + fp + fn),
        "accuracy": ratio(tp + tn, tp + fp + fn + tn),
    }


def auroc(reference: Flags, score: Floats, patient_index: NDArray[np.int64], weights: Counts) -> Floats:
    """Return the area under the ROC curve with weighted patients; float64 `[num_bootstrap]`.

    It is the fraction of pairs (positive window, negative window) in which the positive one has the higher score. Ties
    count half.
    """
    _, level = np.unique(score, return_inverse=True)  # [num_windows], rank of the score; equal scores share one
    areas = np.empty(len(weights))
    for index, weight in enumerate(weights):
        window_weight = weight[patient_index].astype(np.float64)
        positives = np.bincount(level, window_weight * reference)
        negatives = np.bincount(level, window_weight * ~reference)
        won = positives @ (np.cumsum(negatives) - negatives / 2)
        areas[index] = ratio(won, positives.sum() * negatives.sum())
    return areas
