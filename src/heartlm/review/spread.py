"""Spreading of a correction to beats near the corrected ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

REACH = 1.0
"""Beats follow up to this fraction of the distance that nine of ten corrected beats are from their mean."""
QUANTILE = 0.9


def followers(
    features: Floats,
    corrected: Rows,
    candidates: Rows,
    anchors: Floats,
) -> Rows:
    """Return the candidates that are near the corrected beats, and nearer to these than to any anchor.

    Args:
        features: of all beats, float32 `[num_beats, num_features]`.
        corrected: beats that a reviewer gave another class.
        candidates: beats that may follow.
        anchors: means of the families that a reviewer gave another class than this, float32 `[num, num_features]`.
    """
    centre = features[corrected].mean(axis=0)
    reach = float(np.quantile(((features[corrected] - centre) ** 2).sum(axis=1), QUANTILE)) * REACH**2
    distance = ((features[candidates] - centre) ** 2).sum(axis=1)
    near = candidates[distance <= reach]
    for anchor in anchors:
        to_anchor = ((features[near] - anchor) ** 2).sum(axis=1)
        near = near[((features[near] - centre) ** 2).sum(axis=1) < to_anchor]
    return near
