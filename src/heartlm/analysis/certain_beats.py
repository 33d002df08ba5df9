"""Detections that are heartbeats whatever a model says: two leads show them, or they repeat.

Movement of the body or of an electrode neither has the same shape every time nor follows a beat at a steady interval,
as ventricular beats in bigeminy do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.signal_quality import LeadQuality, around_beats
from heartlm.ecg.matching import MATCH_WINDOW_S, nearest

Places = NDArray[np.int64]
Floats = NDArray[np.float32]

READABLE, UNLIKE_OTHERS = 0.85, 0.5
"""Two leads show a beat if both have at least the first quality there and find a beat whose likeness is at least the
second value (docs/log/artefacts.md)."""
ALONE, CLEAN = 0.65, 0.9
"""One lead shows that beats repeat if it has at least the second quality and no other lead the first."""
REPEATED_AMONG, FEWEST_REPEATED, STEADY_SHARE = 40, 5, 0.7
"""A beat repeats if, among the first number of detections on each side, at least the second number are like it and
follow the detection before after as long a time, and these are this fraction of all that are like it."""
REPEATED_S, SAME_COUPLING_S, SAME_COUPLING, SAME_SHAPE, SAME_HEIGHT = 0.12, 0.035, 0.08, 0.9, 1.5
"""Half-width of the compared shape in seconds; greatest difference of two couplings in seconds, or as a fraction of
them; least correlation of the shapes; and greatest ratio of the heights."""

SLOPE_S, WIDE = 0.02, 1.5
"""A beat is wide if its height over its largest change in the first time, in seconds, is at least the second number of
times that of narrow beats, the lower quartile; mean over the leads."""


def certain_beats(
    sample: Places, leads: Sequence[LeadQuality], signals_mv: Floats, rate_hz: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Find which detections are heartbeats by their leads and their repetition, and which of them are wide.

    Args:
        sample: position of each detection, ascending, int64 `[num_beats]`.
        leads: detected beats and quality of each lead.
        signals_mv: signals in millivolts, float32 `[num_leads, num_samples]`, NaN where invalid.
        rate_hz: sampling rate in Hz.

    Returns:
        Whether each detection is certain to be a heartbeat, bool `[num_beats]`, and whether it is a wide one.
    """
    if len(sample) < 2:
        return np.zeros(len(sample), np.bool_), np.zeros(len(sample), np.bool_)
    reach = round(MATCH_WINDOW_S * rate_hz)
    quality = np.stack([lead.quality_at(sample, rate_hz) for lead in leads])
    shown = np.zeros((len(leads), len(sample)), np.bool_)  # [num_leads, num_beats]
    for index, lead in enumerate(leads):
        if len(lead.sample):
            own = nearest(sample, lead.sample)
            is_alike = lead.likeness[own] >= UNLIKE_OTHERS
            shown[index] = is_alike & (np.abs(lead.sample[own] - sample) <= reach) & (quality[index] >= READABLE)
    certain = shown.sum(axis=0) >= 2
    for index, signal_mv in enumerate(signals_mv):
        is_alone = (np.delete(quality, index, axis=0) < ALONE).all(axis=0) & (quality[index] >= CLEAN)
        if is_alone.any():
            certain |= is_alone & _repeated(sample, signal_mv, rate_hz)
    if not certain.any():
        return certain, certain
    step, width = max(1, round(SLOPE_S * rate_hz)), np.zeros(len(sample))
    half = round(REPEATED_S * rate_hz)
    for signal_mv in signals_mv:
        shape = around_beats(signal_mv, sample, half)
        own = np.ptp(shape, axis=1) / np.maximum(np.abs(shape[:, step:] - shape[:, :-step]).max(axis=1), 1e-9)
        width += own / max(float(np.quantile(own, 0.25)), 1e-9)
    return certain, certain & (width >= WIDE * len(signals_mv))


def _repeated(sample: Places, signal_mv: Floats, rate_hz: float) -> NDArray[np.bool_]:
    """Return whether each detection of a lead repeats in shape, height and distance from the one before."""
    shape = around_beats(signal_mv, sample, round(REPEATED_S * rate_hz))
    height = np.maximum(np.ptp(shape, axis=1), 1e-9)
    shape -= shape.mean(axis=1, keepdims=True)
    shape /= np.maximum(np.linalg.norm(shape, axis=1, keepdims=True), 1e-9)
    coupling = np.diff(sample, prepend=0).astype(np.float64)
    alike, steady = np.zeros(len(sample), np.int64), np.zeros(len(sample), np.int64)
    for apart in range(1, min(REPEATED_AMONG + 1, len(sample))):
        ratio, earlier, later = height[apart:] / height[:-apart], coupling[:-apart], coupling[apart:]
        same = np.einsum("ij,ij->i", shape[apart:], shape[:-apart]) >= SAME_SHAPE
        same &= (ratio <= SAME_HEIGHT) & (ratio >= 1 / SAME_HEIGHT)
        most = np.maximum(SAME_COUPLING * np.minimum(earlier, later), SAME_COUPLING_S * rate_hz)
        together = same & (np.abs(later - earlier) <= most)
        for count, pairs in (alike, same), (steady, together):
            count[apart:] += pairs
            count[:-apart] += pairs
    return (steady >= FEWEST_REPEATED) & (steady >= STEADY_SHARE * alike)
