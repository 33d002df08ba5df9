"""Matching of detected beats with annotated beats.

In ANSI/AAMI EC57 a beat is found if a detection lies within 150 ms of it. Each beat and each detection is matched at
most once. Here the nearest pair within the window is matched first, then the nearest of the remaining ones, and so on.
The whole recording is compared, including EC57's learning period of five minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]

MATCH_WINDOW_S = 0.150
"""Largest distance of a matched pair in seconds (ANSI/AAMI EC57:2012, beat-by-beat comparison)."""


@dataclass(frozen=True)
class BeatMatch:
    """Matched pairs, as indices into the two lists.

    Attributes:
        reference: matched reference beats, int64 `[num_matched]`, ascending.
        detected: detection matched with each of them, int64 `[num_matched]`.
        missed: reference beats without a detection (false negatives), int64, ascending.
        extra: detections without a reference beat (false positives), int64, ascending.
    """

    reference: Positions
    detected: Positions
    missed: Positions
    extra: Positions


def match_beats(
    reference: Positions, detected: Positions, rate_hz: float, window_s: float = MATCH_WINDOW_S
) -> BeatMatch:
    """Match reference beats with detections one to one, nearest pairs first.

    Ties are resolved by the earlier reference beat, then the earlier detection.

    Args:
        reference: sample positions, ascending, int64 `[n]`.
        detected: sample positions at the same rate, ascending, int64 `[m]`.
        rate_hz: sampling rate of both in Hz.
        window_s: largest distance of a pair in seconds, inclusive.
    """
    for name, positions in (("reference", reference), ("detected", detected)):
        if np.any(np.diff(positions) < 0):
            raise ValueError(f"{name} positions must ascend")
    partner = np.full(len(reference), -1, np.int64)
    open_reference, open_detected = np.arange(len(reference)), np.arange(len(detected))
    while len(open_reference) and len(open_detected):
        # nearest-first matching contains every pair whose members are each the nearest of the other
        own, others = reference[open_reference], detected[open_detected]
        to_detected = nearest(own, others)
        is_mutual = nearest(others, own)[to_detected] == np.arange(len(own))
        chosen = np.flatnonzero(is_mutual & (np.abs(others[to_detected] - own) <= window_s * rate_hz))
        if not len(chosen):
            break
        partner[open_reference[chosen]] = open_detected[to_detected[chosen]]
        open_reference, open_detected = np.delete(open_reference, chosen), np.delete(open_detected, to_detected[chosen])
    matched = np.flatnonzero(partner >= 0)
    return BeatMatch(matched, partner[matched], open_reference, open_detected)


def nearest(positions: NDArray[Any], others: NDArray[Any]) -> Positions:
    """Return for each position the index of the nearest of `others` (ascending); the first one of ties."""
    after = np.searchsorted(others, positions)
    before = np.searchsorted(others, others[np.maximum(after - 1, 0)])
    after = np.minimum(after, len(others) - 1)
    is_before = np.abs(others[before] - positions) <= np.abs(others[after] - positions)
    return np.where(is_before, before, after)
