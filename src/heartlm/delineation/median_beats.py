"""The median of some beats in each lead, with the edges of its waves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.delineation.delineate import OFFSET, ONSET, QRS, Delineation, P, T

BEFORE_S, AFTER_S = 0.35, 0.6
"""Time before and after the beat."""
MOST_BEATS = 100
"""Maximum number of beats of a median, evenly chosen."""


@dataclass(frozen=True)
class MedianBeat:
    """The median of the beats of a lead.

    Attributes:
        lead: name of the lead.
        values_mv: relative to the 20 ms before the QRS complex, float64 `[num_points]`.
        marks_s: onset and offset of P, QRS and T relative to the beat in seconds; NaN where absent, `[3, 2]`.
    """

    lead: str
    values_mv: NDArray[np.float64]
    marks_s: NDArray[np.float64]


def median_beats(delineation: Delineation, chosen: NDArray[np.bool_]) -> list[MedianBeat]:
    """Return the median of the chosen beats in each lead that shows their QRS complexes, in the order of the recording.

    Args:
        delineation: the waves.
        chosen: which beats, bool `[num_beats]`.

    Raises:
        HeartlmError: the signal cannot be read.
    """
    recording, rate_hz = delineation.recording, delineation.recording.rate_hz
    before, after = round(BEFORE_S * rate_hz), round(AFTER_S * rate_hz)
    inside = (delineation.beats >= before) & (delineation.beats + after <= recording.num_samples)
    beat_index = np.flatnonzero(chosen & inside)
    if not len(beat_index):
        return []
    beat_index = beat_index[np.unique(np.linspace(0, len(beat_index) - 1, MOST_BEATS).round().astype(np.int64))]
    beats = delineation.beats[beat_index]
    # [num_beats, num_leads, num_points]
    cut = np.stack([recording.signal(beat - before, beat + after, delineation.leads) for beat in beats.tolist()])
    result = []
    for number in np.argsort(delineation.leads).tolist():
        waves = delineation.waves[beat_index, number]
        whole = (waves[:, QRS] >= 0).all(axis=1)
        if not whole.any():
            continue
        marks = np.where(waves >= 0, waves - beats[:, None, None], np.nan)[whole][:, :, [ONSET, OFFSET]]
        usual = np.mean(~np.isnan(marks).any(axis=2), axis=0) >= 0.5  # of waves that most beats have
        marks_s = np.full((3, 2), np.nan)
        for wave in (P, QRS, T):
            if usual[wave]:
                marks_s[wave] = np.nanmedian(marks[:, wave], axis=0) / rate_hz
        onset = before + round(float(marks_s[QRS, 0]) * rate_hz)
        values = cut[whole, number].astype(np.float64)
        values -= np.nanmean(values[:, max(0, onset - round(0.02 * rate_hz)) : onset], axis=1, keepdims=True)
        median = np.full(values.shape[1], np.nan)
        known = ~np.isnan(values).all(axis=0)
        median[known] = np.nanmedian(values[:, known], axis=0)
        if known.mean() > 0.5:
            result.append(MedianBeat(delineation.lead_names[number], median, marks_s))
    return result
