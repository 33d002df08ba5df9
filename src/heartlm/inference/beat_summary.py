"""What the beats of a short recording have in common and how they differ, as a row of numbers for boosted trees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.derived_leads import OF_LIMBS
from heartlm.tokenizers.leads import PLACES
from heartlm.tokenizers.millivolts import NO_SIGNAL, dequantize
from heartlm.tokenizers.sample import GRID_HZ

Floats = NDArray[np.float32]

BEFORE, AFTER = 30, 50
"""Tokens of a beat before and after its R peak, 10 ms each."""
_QRS = slice(20, 45)
_NUM_LEADS = 12
NUM_FEATURES = _NUM_LEADS * (BEFORE + AFTER) // 2 + 33
LIMB, CHEST = slice(0, 6), slice(6, 12)
# III, aVR, aVL and aVF as sums of I and II (Einthoven, Goldberger).
_OF_I_AND_II = np.array([(1, 0), (0, 1), *OF_LIMBS.values()], np.float32)


def beat_summary(codes: NDArray[np.uint16]) -> Floats | None:
    """Return features of a recording; None unless it has I, II and all chest leads.

    Args:
        codes: codes of the leads tokenizer, uint16 `[num_tokens, num_facets]`.

    Returns:
        float32 `[num_features]`, finite: the mean beat of twelve leads, 40 samples 20 ms apart each; intervals and
        their differences, relative to the median; how alike the beats are, and how early and alike the least alike
        one is; how alike and high their P waves are in II and V1.
    """
    present = (codes[:, :_NUM_LEADS] != NO_SIGNAL).any(axis=0)
    if not present[:2].all() or not present[CHEST].all():
        return None
    mv = dequantize(codes[:, :_NUM_LEADS])
    mv[:, LIMB] = np.where(present[LIMB], mv[:, LIMB], mv[:, :2] @ _OF_I_AND_II.T)
    peaks = np.flatnonzero(codes[:, len(PLACES)])
    inside = peaks[(peaks >= BEFORE) & (peaks < len(mv) - AFTER)]
    beats = mv[inside[:, None] + np.arange(-BEFORE, AFTER)]  # [num_beats, 80, 12]
    mean = beats.mean(axis=0) if len(beats) else np.zeros((BEFORE + AFTER, _NUM_LEADS), np.float32)
    mean = mean - mean[:10].mean(axis=0)
    shape = mean.reshape(-1, 2, _NUM_LEADS).mean(axis=1).ravel()
    ratio, of_intervals = _intervals(peaks)
    return np.concatenate([shape, of_intervals, _differences(beats, ratio, np.searchsorted(peaks, inside))]).astype(
        np.float32
    )


def _intervals(peaks: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each interval over the median, and features of the intervals."""
    rr_s = np.diff(peaks) / GRID_HZ if len(peaks) > 2 else np.ones(2)
    median = max(float(np.median(rr_s)), 0.1)
    ratio = rr_s / median
    change = np.diff(ratio)
    ordered = np.sort(ratio)
    features = [
        *(median, 1 / median, rr_s.mean(), rr_s.std() / median, rr_s.min(), rr_s.max()),
        *(np.abs(change).mean(), np.abs(change).max(), np.sqrt((change**2).mean()), change.max()),
        *np.quantile(ratio, [0, 0.1, 0.25, 0.75, 0.9, 1]),
        *(ordered[1], ordered[-2], len(peaks), (np.abs(change) > 0.1).mean()),
    ]
    return ratio, np.array(features)


def _differences(beats: Floats, ratio: NDArray[np.float64], number: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return features of the likeness of beats to the median beat, and of their P waves.

    Args:
        beats: `[num_beats, 80, 12]`.
        ratio: each interval over the median.
        number: of each of `beats` among all beats, whose intervals `ratio` has.
    """
    features = np.zeros(13)
    if len(beats) < 2:
        return features
    usual = np.median(beats, axis=0)[_QRS]
    qrs = beats[:, _QRS]
    power = np.sqrt((qrs**2).sum(axis=(1, 2)) * (usual**2).sum())
    likeness = (qrs * usual).sum(axis=(1, 2)) / np.maximum(power, 1e-6)
    ordered, height = np.sort(likeness), np.abs(qrs).max(axis=(1, 2))
    usual_height = max(float(np.median(height)), 1e-3)
    around = np.concatenate([[1.0], ratio, [1.0]])  # the interval before beat i is around[i], the one after it i + 1
    least, earliest = int(likeness.argmin()), int(around[number].argmin())
    features[:4] = ordered[0], ordered[1], likeness.mean(), (likeness < 0.8).mean()
    features[4:6] = around[number[least]], around[np.minimum(number[least] + 1, len(around) - 1)]
    features[6:8] = height.max() / usual_height, height.min() / usual_height
    features[8] = likeness[earliest]
    p = beats[:, : BEFORE - 8][:, :, [1, 6]]
    p = p - p.mean(axis=1, keepdims=True)
    usual_p = p.mean(axis=0)
    power = np.sqrt((p**2).sum(axis=1) * (usual_p**2).sum(axis=0))
    features[9:11] = ((p * usual_p).sum(axis=1) / np.maximum(power, 1e-6)).mean(axis=0)
    features[11:13] = np.median(p.max(axis=1) - p.min(axis=1), axis=0)
    return features
