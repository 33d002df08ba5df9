"""Scaling laws fitted to measured speedups.

Amdahl 1967:        S(N) = 1 / (s + (1 − s) / N)                    s: serial fraction; the USL with σ = s, κ = 0
Gunther 1993, USL:  S(N) = N / (1 + σ (N − 1) + κ N (N − 1))        σ: contention, κ: coherency

Both are fitted to the logarithm of the speedup by least squares, so that points are weighted by relative error; all
parameters are at least 0. If a law has as many parameters as there are points beyond one rank, it fits them exactly
and has no degree of freedom left, so the fit is no evidence for the law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Fit:
    """A law fitted to speedups.

    Attributes:
        parameters: parameters by name.
        residuals: fitted speedup / measured speedup − 1, by number of ranks.
        degrees_of_freedom: number of points beyond one rank minus number of parameters.
        best_ranks: number of ranks with the highest speedup; None if the speedup never decreases.
    """

    parameters: dict[str, float]
    residuals: dict[int, float]
    degrees_of_freedom: int
    best_ranks: float | None = None


def fit_amdahl(speedups: Mapping[int, float]) -> Fit | None:
    """Fit Amdahl's law to `speedups` by number of ranks; return None without a point beyond one rank."""
    return _fit(speedups, ("serial",), 1.0)


def fit_usl(speedups: Mapping[int, float]) -> Fit | None:
    """Fit the universal scalability law to `speedups`; return None with fewer than two points beyond one rank."""
    return _fit(speedups, ("sigma", "kappa"), np.inf)


def _fit(speedups: Mapping[int, float], names: tuple[str, ...], most: float) -> Fit | None:
    from scipy.optimize import least_squares  # slow to import

    ranks = np.array(sorted(number for number in speedups if number > 1), dtype=np.float64)
    if len(ranks) < len(names):
        return None
    measured = np.array([speedups[int(number)] for number in ranks])

    def law(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        sigma, kappa = (*parameters, 0.0)[:2]
        speedup: NDArray[np.float64] = ranks / (1 + sigma * (ranks - 1) + kappa * ranks * (ranks - 1))
        return speedup

    begin, accuracy = np.full(len(names), 0.01), dict.fromkeys(("xtol", "ftol", "gtol"), 1e-14)
    solution: Any = least_squares(lambda each: np.log(law(each) / measured), begin, bounds=(0.0, most), **accuracy)
    sigma, kappa = (*solution.x, 0.0)[:2]
    residuals = zip(ranks.astype(int).tolist(), (law(solution.x) / measured - 1).tolist(), strict=True)
    # There the derivative of the USL is 0; κ below 1e-9 counts as 0, so that the speedup only grows.
    best = float(np.sqrt((1 - sigma) / kappa)) if kappa >= 1e-9 and sigma < 1 else None
    return Fit(dict(zip(names, solution.x.tolist(), strict=True)), dict(residuals), len(ranks) - len(names), best)
