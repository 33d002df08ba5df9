"""Bootstrap confidence intervals over patients.

Beats of one patient are correlated, so patients are resampled, not beats. Scores are ratios of counts, and counts are
summed once per patient. A resample is a vector of weights (how often each patient was drawn), and all resamples are one
matrix product of weights and counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

CONFIDENCE = 0.95
"""Coverage of every interval."""


@dataclass(frozen=True)
class Resampling:
    """Bootstrap settings: number of resamples and random seed."""

    num_bootstrap: int = 1000
    seed: int = 0

    def weights(self, num_patients: int) -> Counts:
        """Draw patients with replacement; int64 `[num_bootstrap, num_patients]`, each row sums to `num_patients`."""
        if num_patients == 0:
            return np.zeros((self.num_bootstrap, 0), np.int64)
        chances = np.full(num_patients, 1 / num_patients)
        return np.random.default_rng(self.seed).multinomial(num_patients, chances, size=self.num_bootstrap)

    def resample(self, counts: Counts) -> Counts:
        """Sum the counts of the drawn patients; `[num_patients, ...]` → `[num_bootstrap, ...]`."""
        # Counts stay below 2**53, so the fast float product is exact.
        flat = counts.reshape(len(counts), math.prod(counts.shape[1:])).astype(np.float64)
        sums = self.weights(len(counts)).astype(np.float64) @ flat
        return sums.astype(np.int64).reshape(self.num_bootstrap, *counts.shape[1:])


THOUSAND = Resampling()
"""Default resampling of every score."""


class Estimate(dict[str, Any]):
    """A score as `scores.json` has it, `{"value": ..., "ci": [low, high]}`, None where undefined.

    Attributes:
        drawn: the score in each resample, NaN where undefined, float64 `[num_bootstrap]`; files do not have it.
    """

    drawn: Floats


def estimate(value: float, resampled: ArrayLike, num_patients: int) -> Estimate:
    """Return a score with the percentile interval of `resampled` `[num_bootstrap]`, None where undefined.

    Resamples in which the score is undefined (no such beat was drawn) are excluded. With fewer than two patients there
    is no interval.
    """
    values = np.asarray(resampled, np.float64)
    defined, ci = values[~np.isnan(values)], [None, None]
    if num_patients >= 2 and not math.isnan(value) and len(defined):
        tail = (1 - CONFIDENCE) / 2
        ci = np.quantile(defined, [tail, 1 - tail]).tolist()
    result = Estimate(value=None if math.isnan(value) else float(value), ci=ci)
    result.drawn = values
    return result


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Floats:
    """Divide element by element; 0/0 is NaN, because a score without cases is undefined."""
    above, below = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    quotient: Floats = np.divide(above, below, out=np.full(above.shape, np.nan), where=below != 0)
    return quotient


def sum_by(groups: Sequence[str], counts: Counts) -> tuple[tuple[str, ...], Counts]:
    """Sum `counts` `[num_rows, ...]` over rows of the same group.

    Returns:
        The group names, sorted, and int64 `[num_groups, ...]`.
    """
    names, group_index = np.unique(np.asarray(groups, np.str_), return_inverse=True)
    sums = np.zeros((len(names), *counts.shape[1:]), np.int64)
    np.add.at(sums, group_index, counts)
    return tuple(names.tolist()), sums
