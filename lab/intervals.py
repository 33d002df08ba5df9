"""Scores with 95 % intervals, as they stand in tables: bootstrap over patients, differences with the same patients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from heartlm.evaluation.bootstrap import Counts, Floats, Resampling, estimate

Score = Callable[[Counts, Counts], Floats]
"""Numbers of draws of each patient `[draws, patients]` and counts `[patients, …]` to a value for each draw."""


def shown(value: float, resampled: Floats, num_patients: int, sign: str = "") -> str:
    """A value with the interval of its resampled values; – where it is undefined."""
    low, high = estimate(value, resampled, num_patients)["ci"]
    around = "" if low is None else f" [{low:{sign}.3f}, {high:{sign}.3f}]"
    return "–" if np.isnan(value) else f"{value:{sign}.3f}{around}"


def interval(score: Score, counts: Counts, less: Counts | None = None, num_bootstrap: int = 1000) -> str:
    """A score, or the paired difference of two, with its interval."""
    num = len(counts)
    value, resampled = (
        score(drawn, counts) - (0 if less is None else score(drawn, less))
        for drawn in (np.ones((1, num), np.int64), Resampling(num_bootstrap).weights(num))
    )
    return shown(float(value[0]), resampled, num, "" if less is None else "+")
