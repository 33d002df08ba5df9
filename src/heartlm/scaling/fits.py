"""Scaling laws fitted to measured speedups.

Amdahl 1967:        S(N) = 1 / (s + (1 − s) / N)                    s: serial fraction
Gunther 1993, USL:  S(N) = N / (1 + σ (N − 1) + κ N (N − 1))        σ: contention, κ: coherency

Both are fitted to the logarithm of the speedup by least squares, so that points are weighted by relative error; all
parameters are at least 0. If a law has as many parameters as there are points beyond one rank, it fits them exactly
and has no degree of freedom left, so the fit is no evidence for the law.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Fit:
    """A law fitted to speedups.

    Attributes:
        law: name of the law.
        parameters: parameters by name.
        residuals: fitted speedup / measured speedup − 1, by number of ranks.
        degrees_of_freedom: number of points beyond one rank minus number of parameters.
        best_ranks: number of ranks with the highest speedup; None if the speedup never decreases.
    """

    law: str
    parameters: dict[str, float]
    residuals: dict[int, float]
    degrees_of_freedom: int
    best_ranks: float | None = None

    def __call__(self, num_ranks: float) -> float:
        """Return the speedup for a number of ranks."""
        return float(_LAWS[self.law][2](num_ranks, *self.parameters.values()))


def fit_amdahl(speedups: Mapping[int, float]) -> Fit | None:
    """Fit Amdahl's law to `speedups` by number of ranks; return None without a point beyond one rank."""
    return _fit("Amdahl", speedups)


def fit_usl(speedups: Mapping[int, float]) -> Fit | None:
    """Fit the universal scalability law to `speedups`; return None with fewer than two points beyond one rank."""
    fit = _fit("USL", speedups)
    if fit is None or fit.parameters["kappa"] < 1e-9 or fit.parameters["sigma"] >= 1:
        return fit
    return replace(fit, best_ranks=float(np.sqrt((1 - fit.parameters["sigma"]) / fit.parameters["kappa"])))


_LAWS: dict[str, tuple[tuple[str, ...], float, Callable[..., Any]]] = {
    "Amdahl": (("serial",), 1.0, lambda ranks, serial: 1 / (serial + (1 - serial) / ranks)),
    "USL": (
        ("sigma", "kappa"),
        np.inf,
        lambda ranks, sigma, kappa: ranks / (1 + sigma * (ranks - 1) + kappa * ranks * (ranks - 1)),
    ),
}
"""Parameter names, upper bound of the parameters, and function of each law."""


def _fit(law: str, speedups: Mapping[int, float]) -> Fit | None:
    from scipy.optimize import least_squares  # slow to import

    names, most, function = _LAWS[law]
    ranks = np.array(sorted(number for number in speedups if number > 1), dtype=np.float64)
    if len(ranks) < len(names):
        return None
    measured = np.array([speedups[int(number)] for number in ranks])
    found: Any = least_squares(
        lambda parameters: np.log(function(ranks, *parameters) / measured),
        np.full(len(names), 0.01),
        bounds=(0.0, most),
        xtol=1e-14,
        ftol=1e-14,
        gtol=1e-14,
    )
    residuals = function(ranks, *found.x) / measured - 1
    return Fit(
        law,
        dict(zip(names, map(float, found.x), strict=True)),
        {int(number): float(residual) for number, residual in zip(ranks, residuals, strict=True)},
        len(ranks) - len(names),
    )
