"""Signal quality of leads, per piece.

The quality of a piece of a lead is the product of three factors: the fraction of samples that are valid and not flat;
the agreement of the offline and the causal beat detector (bSQI: Li, Mark and Clifford, Physiol. Meas. 29:15, 2008); and
the similarity of its beats, because noise detected as beats has no repeating shape. Over pieces of 10 s the median
similarity of beats is 0.52 in the noise of nstdb, 0.88 in the noisy recordings of cinc2017, 0.99 in its others and 1.00
in svdb (2026-11-23).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import QUALITY_S
from heartlm.ecg.detect import detect_beats
from heartlm.ecg.matching import match_beats
from heartlm.ecg.recording import Recording
from heartlm.ecg.spans import runs

Floats = NDArray[np.float32]

MOST_LEADS = 3
"""Maximum number of leads to analyse: more are slower and add little."""
# Number of evenly spaced stretches of a long recording for the choice of leads, and their length in seconds.
_TRIED, _TRIAL_S = 8, 30.0
QRS_S, _BEATS_BACK = 0.1, 3
"""Half-width in seconds of the compared window around a beat, and the number of neighbours on each side to compare it
with, so that ectopic beats match similar ones."""
FLAT_S = 0.5
"""Minimum duration in seconds without change of a flat signal."""


@dataclass(frozen=True)
class LeadQuality:
    """Beats and signal quality of one lead in one stretch.

    Attributes:
        sample: beats of the offline detector, relative to the start of the stretch, int64 `[num_beats]`.
        likeness: largest correlation of each beat with a neighbour, 0 to 1, float64 `[num_beats]`.
        quality: quality of each piece of `QUALITY_S`, 0 to 1, float32 `[num_pieces]`.
    """

    sample: NDArray[np.int64]
    likeness: NDArray[np.float64]
    quality: Floats


def lead_quality(signal_mv: Floats, rate_hz: float) -> LeadQuality:
    """Detect the beats of a lead and compute the quality of every piece.

    Args:
        signal_mv: signal in millivolts, float32 `[num_samples]`, NaN where invalid.
        rate_hz: sampling rate in Hz.

    Raises:
        ValueError: the rate is too low for the detectors.
    """
    piece = round(QUALITY_S * rate_hz)
    num_pieces = max(1, -(-len(signal_mv) // piece))
    offline, causal = detect_beats(signal_mv, rate_hz), detect_beats(signal_mv, rate_hz, "causal")
    match = match_beats(offline, causal, rate_hz)

    def count(sample: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(sample // piece, minlength=num_pieces)

    total = count(offline) + count(causal)
    agreement = np.where(total > 0, 2 * count(offline[match.reference]) / np.maximum(total, 1), 1)
    usable = np.isfinite(signal_mv)
    usable[: len(signal_mv) - 1] &= ~flat_steps(signal_mv, rate_hz)
    starts = np.arange(0, max(1, len(signal_mv)), piece)
    valid = np.add.reduceat(usable, starts) / np.diff([*starts, max(1, len(signal_mv))]) if len(usable) else np.zeros(1)
    alike, piece_of_beat = _likeness(signal_mv, offline, round(QRS_S * rate_hz)), offline // piece
    alike_by_piece = [alike[piece_of_beat == each] for each in range(num_pieces)]
    shape = np.array([np.median(part) if len(part) > 1 else 1 for part in alike_by_piece])
    return LeadQuality(offline, alike, (agreement * valid * shape).astype(np.float32))


def around_beats(signal: Floats, sample: NDArray[np.int64], reach: int) -> Floats:
    """Return the samples of a lead around each beat, float32 `[num_beats, 2 reach + 1]`; 0 where invalid."""
    around = np.clip(sample[:, None] + np.arange(-reach, reach + 1), 0, len(signal) - 1)
    return np.asarray(np.nan_to_num(signal[around]))


def _likeness(signal: Floats, sample: NDArray[np.int64], reach: int) -> NDArray[np.float64]:
    """Return the largest correlation of each beat with its neighbours, at least 0, float64 `[num_beats]`."""
    window = around_beats(signal, sample, reach)
    window -= window.mean(axis=1, keepdims=True)
    window /= np.maximum(np.linalg.norm(window, axis=1, keepdims=True), 1e-9)
    best = np.zeros(len(sample))
    for back in range(1, min(_BEATS_BACK + 1, len(sample))):
        alike = np.einsum("ij,ij->i", window[back:], window[:-back])
        best[back:] = np.maximum(best[back:], alike)
        best[:-back] = np.maximum(best[:-back], alike)
    return best


def flat_steps(signal: Floats, rate_hz: float) -> NDArray[np.bool_]:
    """Return whether each step between samples is in a flat run of 0.5 s or more, bool `[num_samples - 1]`."""
    same = runs(np.diff(signal) == 0)
    flat = np.zeros(max(0, len(signal) - 1), dtype=bool)
    for begin, end in same[same[:, 1] - same[:, 0] >= round(FLAT_S * rate_hz)]:
        flat[begin:end] = True
    return flat


def best_leads(recording: Recording, candidates: tuple[int, ...]) -> tuple[int, ...]:
    """Return the leads to analyse, at most `MOST_LEADS`, the best signal first; ties keep the order of `candidates`.

    Args:
        recording: recording of the leads.
        candidates: ECG leads of the recording, the default one first.

    Raises:
        HeartlmError: the signal cannot be read.
        ValueError: the rate is too low for the detectors.
    """
    if len(candidates) == 1:
        return candidates
    length = min(recording.num_samples, round(_TRIAL_S * recording.rate_hz))
    last = recording.num_samples - length
    starts = sorted({round(index) for index in np.linspace(0, last, _TRIED if last > length else 1 + (last > 0))})
    quality = np.zeros(len(candidates))
    for start in starts:
        signals = recording.signal(start, start + length, candidates)
        quality += [lead_quality(signal, recording.rate_hz).quality.mean() for signal in signals]
    quality = np.round(quality / len(starts), 2)  # so that leads that are about as good keep their order
    order = sorted(range(len(candidates)), key=lambda index: (-quality[index], index))
    kept = [index for index in order if quality[index] >= 0.8 * quality[order[0]]]
    return tuple(candidates[index] for index in kept[:MOST_LEADS])
