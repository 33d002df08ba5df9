"""Which leads can be read, and where.

The quality of a piece of a lead is a product of three: the share of samples that are valid and not flat; how far the
offline and the causal detector agree on its beats (bSQI: Li, Mark and Clifford, Physiol. Meas. 29:15, 2008); and how
alike its beats are, since noise that is taken for beats has no shape that comes again. Over pieces of 10 s the likeness
of beats alone is 0.52 in the noise of nstdb, 0.88 in the noisy recordings of cinc2017 and 0.99 in its others, 1.00 in
svdb (medians, 2026-11-23).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import QUALITY_S
from heartlm.ecg.detect import detect_beats
from heartlm.ecg.recording import Recording
from heartlm.ecg.spans import runs
from heartlm.evaluation.matching import match_beats

Floats = NDArray[np.float32]

MOST_LEADS = 3
"""Leads that vote: more cost time and add little."""
_TRIED, _TRIAL_S = 8, 30.0
"""Stretches of a long recording, evenly spread, from which leads are chosen, and their length."""
_QRS_S, _BEATS_BACK = 0.1, 3
"""Reach of the comparison on both sides of a beat; and with how many beats before and after each is compared, so that
ectopic beats find their like."""
_FLAT_S = 0.5
"""A signal that does not change for so long is flat."""


@dataclass(frozen=True)
class LeadQuality:
    """Beats of one lead in one stretch, and how well it can be read there.

    Attributes:
        sample: beats that the offline detector finds, from the start of the stretch, int64 `[num_beats]`.
        quality: of each piece of `QUALITY_S`, 0 to 1, float32 `[num_pieces]`.
    """

    sample: NDArray[np.int64]
    quality: Floats


def lead_quality(signal_mv: Floats, rate_hz: float) -> LeadQuality:
    """Find the beats of a lead and judge every piece of it.

    Args:
        signal_mv: float32 `[num_samples]`, NaN where invalid.
        rate_hz: samples a second.

    Raises:
        ValueError: the rate is too low for the detectors.
    """
    piece = round(QUALITY_S * rate_hz)
    num_pieces = max(1, -(-len(signal_mv) // piece))
    found, causal = detect_beats(signal_mv, rate_hz), detect_beats(signal_mv, rate_hz, "causal")
    match = match_beats(found, causal, rate_hz)

    def count(sample: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(sample // piece, minlength=num_pieces)

    total = count(found) + count(causal)
    agreement = np.where(total > 0, 2 * count(found[match.reference]) / np.maximum(total, 1), 1)
    usable = np.isfinite(signal_mv)
    usable[: len(signal_mv) - 1] &= ~_flat(signal_mv, round(_FLAT_S * rate_hz))
    starts = np.arange(0, max(1, len(signal_mv)), piece)
    valid = np.add.reduceat(usable, starts) / np.diff([*starts, max(1, len(signal_mv))]) if len(usable) else np.zeros(1)
    alike, place = _likeness(signal_mv, found, round(_QRS_S * rate_hz)), found // piece
    shape = np.array(
        [np.median(alike[place == each]) if np.sum(place == each) > 1 else 1 for each in range(num_pieces)]
    )
    return LeadQuality(found, (agreement * valid * shape).astype(np.float32))


def _likeness(signal: Floats, sample: NDArray[np.int64], reach: int) -> NDArray[np.float64]:
    """Correlation of each beat with the most alike of its neighbours, at least 0, float64 `[num_beats]`."""
    around = np.clip(sample[:, None] + np.arange(-reach, reach + 1), 0, len(signal) - 1)
    window = np.nan_to_num(signal[around])
    window -= window.mean(axis=1, keepdims=True)
    window /= np.maximum(np.linalg.norm(window, axis=1, keepdims=True), 1e-9)
    best = np.zeros(len(sample))
    for back in range(1, min(_BEATS_BACK + 1, len(sample))):
        alike = np.einsum("ij,ij->i", window[back:], window[:-back])
        best[back:] = np.maximum(best[back:], alike)
        best[:-back] = np.maximum(best[:-back], alike)
    return best


def _flat(signal: Floats, shortest: int) -> NDArray[np.bool_]:
    """Whether each step from sample to sample is part of a flat run of `shortest` steps, bool `[num_samples - 1]`."""
    same = runs(np.diff(signal) == 0)
    flat = np.zeros(max(0, len(signal) - 1), dtype=bool)
    for begin, end in same[same[:, 1] - same[:, 0] >= shortest]:
        flat[begin:end] = True
    return flat


def best_leads(recording: Recording, candidates: tuple[int, ...]) -> tuple[int, ...]:
    """The leads that vote, at most `MOST_LEADS`, the one with the best signal first; the earlier one of equals.

    Args:
        recording: where.
        candidates: its ECG leads, the usual one first.

    Raises:
        HeartlmError: the signal cannot be read.
        ValueError: the rate is too low for the detectors.
    """
    if len(candidates) == 1:
        return candidates
    length = min(recording.num_samples, round(_TRIAL_S * recording.rate_hz))
    last = recording.num_samples - length
    starts = sorted({round(place) for place in np.linspace(0, last, _TRIED if last > length else 1 + (last > 0))})
    quality = np.zeros(len(candidates))
    for start in starts:
        signals = recording.signal(start, start + length, candidates)
        quality += [lead_quality(signal, recording.rate_hz).quality.mean() for signal in signals]
    quality = np.round(quality / len(starts), 2)
    order = sorted(range(len(candidates)), key=lambda place: (-quality[place], place))
    kept = [place for place in order if quality[place] >= 0.8 * quality[order[0]]]
    return tuple(candidates[place] for place in kept[:MOST_LEADS])
