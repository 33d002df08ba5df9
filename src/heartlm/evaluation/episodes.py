"""Scores of episodes: episode and duration statistics, and the onset delay.

Spans of reference and prediction are intersected as in ANSI/AAMI EC57 for episodes of fibrillation, and summed over
recordings. Confidence intervals are bootstrapped over patients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from heartlm.evaluation.bootstrap import THOUSAND, Floats, Resampling, estimate, ratio


class Episodes(NamedTuple):
    """Overlap of reference and prediction in one recording, in seconds and in episodes.

    A reference episode is found if any part of it is predicted. A predicted episode is confirmed if any part of it is
    true (EC57).

    Attributes:
        delay_s: onset delay of each found episode in seconds: from its onset to the start of the first predicted span
            in it, 0 if that span starts earlier. The delay of an alarm is longer by the method's look-ahead.
    """

    reference_s: float
    predicted_s: float
    both_s: float
    total_s: float
    num_reference: int
    num_found: int
    num_predicted: int
    num_confirmed: int
    delay_s: tuple[float, ...] = ()


NUM_COUNTS = 8
"""Number of fields of `Episodes` that are summed: all except the delays."""


def compare_spans(
    reference: ArrayLike, predicted: ArrayLike, stop: float, *, start: float = 0, ticks_hz: float = 1
) -> Episodes:
    """Compare spans of one recording, clipped to `start` and `stop`.

    Args:
        reference: starts and ends of reference spans, `[num_spans, 2]`, ascending, not overlapping.
        predicted: starts and ends of predicted spans, likewise.
        stop: end of the comparison.
        start: start of the comparison.
        ticks_hz: time units per second of all of these; by default they are in seconds.

    Raises:
        ValueError: spans overlap or are not ascending.
    """
    true_spans, predicted_spans = _cut(reference, start, stop), _cut(predicted, start, stop)
    shared = _shared(true_spans, predicted_spans)
    is_found = shared > 0
    # The first predicted span that ends after the onset defines the delay.
    first = predicted_spans[np.searchsorted(predicted_spans[:, 1], true_spans[is_found, 0], side="right"), 0]
    return Episodes(
        reference_s=float(np.diff(true_spans).sum() / ticks_hz),
        predicted_s=float(np.diff(predicted_spans).sum() / ticks_hz),
        both_s=float(shared.sum() / ticks_hz),
        total_s=float((stop - start) / ticks_hz),
        num_reference=len(true_spans),
        num_found=int(is_found.sum()),
        num_predicted=len(predicted_spans),
        num_confirmed=int(np.count_nonzero(_shared(predicted_spans, true_spans))),
        delay_s=tuple((np.maximum(first - true_spans[is_found, 0], 0) / ticks_hz).tolist()),
    )


def _cut(spans: ArrayLike, start: float, stop: float) -> Floats:
    """Return the spans that intersect `[start, stop)`, clipped to it; float64 `[num_spans, 2]`."""
    whole = np.asarray(spans, np.float64).reshape(-1, 2)
    if (np.diff(whole.ravel()) < 0).any():
        raise ValueError("spans must ascend and not overlap")
    return whole[(whole[:, 1] >= start) & (whole[:, 0] < stop)].clip(start, stop)


def _shared(spans: Floats, others: Floats) -> Floats:
    """Return the length of each span that is covered by `others`; float64 `[num_spans]`."""
    stops = np.cumsum(np.diff(others)[:, 0])
    covered = np.stack([np.concatenate([[0.0], stops[:-1]]), stops], axis=1) if len(others) else others
    # Seconds of `others` before a time grow within its spans and stay between them, so they interpolate linearly.
    covered_until: Floats = np.interp(spans, np.append(0.0, others), np.append(0.0, covered))
    return covered_until[:, 1] - covered_until[:, 0]


DELAYS = {"delay_median_s": 0.5, "delay_p90_s": 0.9, "delay_worst_s": 1.0}
"""Scores of the onset delay and their quantiles."""


def score_episodes(
    episodes: Sequence[Episodes],
    patient: Sequence[str],
    *,
    resampling: Resampling = THOUSAND,
) -> dict[str, Any]:
    """Sum recordings (gross statistics of EC57) and score them, with intervals over patients.

    Args:
        episodes: one entry per recording.
        patient: patient of each recording.
        resampling: bootstrap settings of the intervals.

    Returns:
        JSON values, None where a score is undefined: sums of the counts; `se`, `sp`, `ppv`, `f1`, `accuracy` of
        durations; `episode_se`, `episode_ppv` of episodes; `delay_median_s`, `delay_p90_s`, `delay_worst_s` of the
        onset delays of found episodes.
    """
    table = np.array([each[:NUM_COUNTS] for each in episodes], np.float64).reshape(-1, NUM_COUNTS)
    patients, patient_index = np.unique(np.asarray(patient, np.str_), return_inverse=True)
    sums = np.zeros((len(patients), NUM_COUNTS))
    np.add.at(sums, patient_index, table)
    weights = resampling.weights(len(patients))
    point = episode_ratios(sums.sum(axis=0))
    drawn = episode_ratios(weights @ sums)

    delays = np.array([delay for each in episodes for delay in each.delay_s])
    owner = np.repeat(patient_index, [len(each.delay_s) for each in episodes])
    point |= dict(zip(DELAYS, _quantiles(delays), strict=True))
    resampled = np.array([_quantiles(np.repeat(delays, weight[owner])) for weight in weights])
    drawn |= dict(zip(DELAYS, resampled.T, strict=True))

    totals = sums.sum(axis=0)
    values = [*totals[:4].tolist(), *totals[4:].astype(int).tolist()]  # four durations in s, four counts
    total = dict(zip(Episodes._fields[:NUM_COUNTS], values, strict=True))
    scores = {name: estimate(float(point[name]), drawn[name], len(patients)) for name in point}
    return {"num_patients": len(patients)} | total | scores


def _quantiles(delays: Floats) -> Floats:
    return np.quantile(delays, list(DELAYS.values())) if len(delays) else np.full(len(DELAYS), np.nan)


def episode_ratios(sums: Floats) -> dict[str, Any]:
    """Return scores from the counts of `Episodes` in the last axis, `[..., 8]`."""
    reference, predicted, shared, total, num_reference, num_found, num_predicted, num_confirmed = np.moveaxis(
        sums, -1, 0
    )
    neither = total - reference - predicted + shared
    return {
        "se": ratio(shared, reference),
        "sp": ratio(neither, total - reference),
        "ppv": ratio(shared, predicted),
        "f1": ratio(2 * shared, reference + predicted),
        "accuracy": ratio(shared + neither, total),
        "episode_se": ratio(num_found, num_reference),
        "episode_ppv": ratio(num_confirmed, num_predicted),
    }
