"""Signal quality of leads, per piece.

The quality of a piece of a lead is the product of three factors: the fraction of samples that are valid and not flat;
the agreement of the offline and the causal beat detector (bSQI: Li, Mark and Clifford, Physiol. Meas. 29:15, 2008); and
the similarity of its beats, because noise detected as beats has no repeating shape. Over pieces of 10 s the median
similarity of beats is 0.52 in the noise of nstdb, 0.88 in the noisy recordings of cinc2017, 0.99 in its others and 1.00
in svdb (2026-11-23). A piece can be good although its electrode is off for some seconds of it: `_swings`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import QUALITY_S
from heartlm.ecg.detect import detect_beats
from heartlm.ecg.matching import MATCH_WINDOW_S, match_beats
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

LOST_S = 0.15
"""Shortest stretch of invalid samples in seconds that may hide a QRS complex."""
NO_SIGNAL, SWINGS = 1, 2
"""Values of `LeadQuality.off`: samples that are invalid or flat, and those of an electrode that came off."""
LONG_INTERVAL, SHOWN_LIKENESS, SHOWN_HEIGHT = 1.5, 0.5, (0.25, 2.5)
"""An electrode is off between two beats of at least this likeness and of this range of heights, relative to the median,
that are this number of median intervals apart, and between such a beat and an end."""
BIN_S, FAR_S, T_WAVE_S, QUIET, QUIET_SHARE = 0.1, 0.3, 0.5, 0.15, 0.5
"""The baseline, in bins of the first length in seconds, is there farther from its usual level than a beat is high, for
the second time or longer, later than the T wave of the first beat; and this fraction of the bins has a range below
`QUIET` heights, as the return of an amplifier to its level is smooth and fibrillation is not (docs/log/signals.md)."""
LEVEL_S = 30.0
"""The usual level is the median from this time in seconds before the interval to this time after it."""


@dataclass(frozen=True)
class LeadQuality:
    """Beats and signal quality of one lead in one stretch.

    Attributes:
        sample: beats of the offline detector, relative to the start of the stretch, int64 `[num_beats]`.
        likeness: largest correlation of each beat with a neighbour, 0 to 1, float64 `[num_beats]`.
        quality: quality of each piece of `QUALITY_S`, 0 to 1, float32 `[num_pieces]`.
        off: whether the lead can show no beat at each sample: 0, `NO_SIGNAL` or `SWINGS`, uint8 `[num_samples]`.
    """

    sample: NDArray[np.int64]
    likeness: NDArray[np.float64]
    quality: Floats
    off: NDArray[np.uint8]

    def quality_at(self, sample: NDArray[np.int64], rate_hz: float) -> Floats:
        """Return the quality at each sample, 0 where the lead is off, float32 `[num_at]`."""
        piece = np.minimum(sample // round(QUALITY_S * rate_hz), len(self.quality) - 1)
        return np.where(self.off[sample] == 0, self.quality[piece], np.float32(0))

    def readable(self, rate_hz: float) -> Floats:
        """Return the readable fraction of each piece: nothing can be read while the electrode is off."""
        starts = np.arange(0, len(self.off), round(QUALITY_S * rate_hz))
        # `quality` counts samples without a signal, but an electrode that came off gives one.
        on, swings = (np.add.reduceat(self.off == each, starts, dtype=np.int64) for each in (0, SWINGS))
        share: Floats = (on / np.maximum(on + swings, 1)).astype(np.float32)
        return self.quality * share


def lead_quality(signal_mv: Floats, rate_hz: float) -> LeadQuality:
    """Detect the beats of a lead and compute the quality of every piece.

    Args:
        signal_mv: signal in millivolts, float32 `[num_samples]`, NaN where invalid.
        rate_hz: sampling rate in Hz.

    Raises:
        ValueError: the rate is too low for the detectors.
    """
    offline, causal = detect_beats(signal_mv, rate_hz), detect_beats(signal_mv, rate_hz, "causal")
    piece = round(QUALITY_S * rate_hz)
    num_pieces = max(1, -(-len(signal_mv) // piece))
    match = match_beats(offline, causal, rate_hz)

    def count(sample: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(sample // piece, minlength=num_pieces)

    total = count(offline) + count(causal)
    agreement = np.where(total > 0, 2 * count(offline[match.reference]) / np.maximum(total, 1), 1)
    invalid, flat = ~np.isfinite(signal_mv), flat_steps(signal_mv, rate_hz)
    around = around_beats(signal_mv, offline, round(QRS_S * rate_hz))
    alike = _likeness(around)
    off = _swings(signal_mv, offline, around, alike, rate_hz)
    for first, stop in runs(invalid):
        if stop - first >= LOST_S * rate_hz:
            off[first:stop] = NO_SIGNAL
    off[: len(flat)][flat] = NO_SIGNAL
    usable = ~invalid
    usable[: len(flat)] &= ~flat
    # the last piece may be shorter: divided by its own length; reduceat accepts no empty signal
    starts = np.arange(0, max(1, len(signal_mv)), piece)
    valid = np.add.reduceat(usable, starts) / np.diff([*starts, max(1, len(signal_mv))]) if len(usable) else np.zeros(1)
    piece_of_beat = offline // piece
    alike_by_piece = [alike[piece_of_beat == each] for each in range(num_pieces)]
    shape = np.array([np.median(part) if len(part) > 1 else 1 for part in alike_by_piece])
    return LeadQuality(offline, alike, (agreement * valid * shape).astype(np.float32), off)


def around_beats(signal: Floats, sample: NDArray[np.int64], reach: int) -> Floats:
    """Return the samples of a lead around each beat, float32 `[num_beats, 2 reach + 1]`; 0 where invalid."""
    around = np.clip(sample[:, None] + np.arange(-reach, reach + 1), 0, len(signal) - 1)
    return np.asarray(np.nan_to_num(signal[around]))


def _likeness(around: Floats) -> NDArray[np.float64]:
    """Return the largest correlation of each beat with its neighbours, at least 0, float64 `[num_beats]`.

    Args:
        around: see `around_beats`.
    """
    window = around - around.mean(axis=1, keepdims=True)
    window /= np.maximum(np.linalg.norm(window, axis=1, keepdims=True), 1e-9)
    best = np.zeros(len(window))
    for back in range(1, min(_BEATS_BACK + 1, len(window))):
        alike = np.einsum("ij,ij->i", window[back:], window[:-back])
        best[back:] = np.maximum(best[back:], alike)
        best[:-back] = np.maximum(best[:-back], alike)
    return best


def _swings(
    signal_mv: Floats, sample: NDArray[np.int64], around: Floats, likeness: NDArray[np.float64], rate_hz: float
) -> NDArray[np.uint8]:
    """Return `SWINGS` where the electrode of a lead is off, 0 elsewhere, uint8 `[num_samples]`.

    An electrode that comes off moves the signal to the end of the amplifier's range, from which it returns in seconds
    without QRS complexes. A drifting baseline has beats on it, and a pause keeps the usual level.

    Args:
        signal_mv: signal in millivolts, float32 `[num_samples]`, NaN where invalid.
        sample: detected beats, int64 `[num_beats]`; `around` them, see `around_beats`; and their `likeness`.
        rate_hz: sampling rate in Hz.
    """
    off, size = np.zeros(len(signal_mv), np.uint8), round(BIN_S * rate_hz)
    num_bins = len(signal_mv) // size
    if len(sample) < 2:
        return off
    # less the line through the ends, so that a slope has no height
    slope = np.linspace(0, 1, around.shape[1], dtype=np.float32) * (around[:, -1:] - around[:, :1])
    height = np.ptp(around - slope, axis=1)
    usual_height = np.median(height)
    least, most = (each * usual_height for each in SHOWN_HEIGHT)
    shown = sample[(likeness >= SHOWN_LIKENESS) & (height >= least) & (height <= most)]
    edges = np.concatenate([[0], shown, [len(signal_mv)]]) // size
    longest = LONG_INTERVAL * np.median(np.diff(sample)) / size
    edges = np.stack([edges[:-1], edges[1:]])[:, np.diff(edges) >= longest]  # [2, num_intervals], in bins
    bins = signal_mv[: num_bins * size].reshape(num_bins, size)
    t_wave, around_level, apart = round(T_WAVE_S / BIN_S), round(LEVEL_S / BIN_S), round(MATCH_WINDOW_S * rate_hz)
    for first, stop in edges.T.tolist():
        part = bins[first:stop]
        # for speed: the baseline moves to its far level and back
        if len(part) <= t_wave or np.ptp(part[t_wave:, 0]) < usual_height:
            continue
        if np.mean(np.ptp(part, axis=1) < QUIET * usual_height) < QUIET_SHARE:
            continue
        level = np.nanmedian(bins[max(0, first - around_level) : stop + around_level].mean(axis=1))
        is_far = np.abs(part[t_wave:].mean(axis=1) - level) > usual_height
        if is_far.sum() * BIN_S >= FAR_S:
            # without the beats at both ends, wherever another lead marks them
            off[first * size + apart * (first > 0) : stop * size - apart * (stop < num_bins)] = SWINGS
    return off


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
