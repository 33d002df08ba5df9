"""Beats that follow a pacing spike.

A spike is a step of a few milliseconds out of a quiet baseline, with a slow wave after it: most of what the signal
does in 30 ms. The onset of a conducted QRS complex is less steep.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

LOWEST_RATE_HZ = 300.0
"""Sampling rate from which on a spike of 1 to 2 ms is looked for: it was not tried below."""
BEFORE_S, AFTER_S = 0.16, 0.04
"""Time before and after a beat in which its spike is looked for: detectors mark the main wave of QRS."""
STEP_S, QUIET_S, WHOLE_S = 0.008, 0.02, 0.03
"""Length of the step, of the baseline before it, and of the part of the complex that the step is a fraction of."""
QUIET_WEIGHT = 3.0
"""The step is counted less this number of ranges of the baseline."""
LEVEL, LEVEL_S = 0.3, 0.06
"""The baseline is at most this fraction of the range away from the signal's median over the first part of the stretch:
the flat top of a QRS complex that an amplifier cut is none, as in 99 of LUDB."""
STEP_MV, STEP_FRACTION = 0.2, 0.5
LEAD_SHARE = 1 / 6
"""Fraction of the leads, and one at least, that must show the spike: of twelve leads one alone does so in 7 % of 341
recordings of PTB-XL (folds 1 to 8) without a pacemaker."""
LEAST_SHARE, BLOCK_S = 0.3, 300.0
"""A stretch of this length is paced if this fraction of its beats have a step of `STEP_MV` and `STEP_FRACTION` in a
lead. So are 102, 104 and 107 of mitdb, not 217, none of DS1, and in folds 1 to 8 of PTB-XL 21 of 25 with a pacemaker
and 1 of 300 others (docs/log/runs.md)."""
PACED_MV, PACED_FRACTION = 0.15, 0.35
"""Least step of a paced beat in such a stretch."""


def pacing_spikes(sample: NDArray[np.int64], signals_mv: NDArray[np.float32], rate_hz: float) -> NDArray[np.int64]:
    """Return the pacing spike before each beat, of stretches in which many have one, int64 `[num_beats]`; -1 for none.

    Args:
        sample: position of each beat, ascending, int64 `[num_beats]`.
        signals_mv: signals in millivolts, float32 `[num_leads, num_samples]`, NaN where invalid.
        rate_hz: sampling rate in Hz.
    """
    surely, likely = np.zeros((2, len(sample)), np.int64)
    place, highest = np.full(len(sample), -1, np.int64), np.zeros(len(sample))
    if rate_hz < LOWEST_RATE_HZ or not len(sample):
        return place
    step, quiet, whole = (round(each * rate_hz) for each in (STEP_S, QUIET_S, WHOLE_S))
    before, after = round(BEFORE_S * rate_hz) + quiet, round(AFTER_S * rate_hz) + whole
    around = sample[:, None] + np.arange(before + after + 1)  # of each beat, in the padded signal
    start = round(LEVEL_S * rate_hz)
    for signal in signals_mv:
        padded = np.pad(np.nan_to_num(signal), (before, after), mode="edge")
        stretch = padded[around]
        onset = sliding_window_view(stretch, quiet + whole + 1, axis=1)  # [num_beats, num_onsets, of an onset]
        steps = np.abs(onset[..., quiet + step] - onset[..., quiet])
        steps = steps - QUIET_WEIGHT * np.ptp(onset[..., : quiet + 1], axis=2)
        away = np.abs(onset[..., quiet] - np.median(stretch[:, :start], axis=1)[:, None])
        steps[away > LEVEL * np.ptp(stretch, axis=1)[:, None]] = 0
        at = np.arange(len(sample)), steps.argmax(axis=1)
        fraction = steps[at] / np.maximum(np.ptp(onset[at][:, quiet:], axis=1), 1e-6)
        surely += (steps[at] >= STEP_MV) & (fraction >= STEP_FRACTION)
        paced = (steps[at] >= PACED_MV) & (fraction >= PACED_FRACTION)
        likely += paced
        clearest = paced & (steps[at] > highest)
        place[clearest] = (sample + at[1] + quiet - before)[clearest]
        highest[clearest] = steps[at][clearest]
    block = sample // round(BLOCK_S * rate_hz)
    least = max(1, round(LEAD_SHARE * len(signals_mv)))
    share = np.bincount(block, surely >= least) / np.maximum(np.bincount(block), 1)
    return np.where((likely >= least) & (share >= LEAST_SHARE)[block], np.maximum(place, 0), -1)
