"""Laws of speedup fitted to what was measured.

Amdahl 1967:        S(N) = 1 / (s + (1 − s) / N)                    s: serial fraction
Gunther 1993, USL:  S(N) = N / (1 + σ (N − 1) + κ N (N − 1))        σ: contention, κ: coherency

Both are fitted to the logarithm of the speedup by least squares, so every point counts by its relative error, with all
parameters at least 0. A law with as many parameters as there are points beyond one rank goes through them and proves
nothing: it has no degree of freedom left.
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
        law: its name.
        parameters: by name.
        residuals: fitted over measured speedup, less 1, by number of ranks.
        degrees_of_freedom: points beyond one rank less parameters.
        best_ranks: where the speedup is highest; None where it never falls.
    """

    law: str
    parameters: dict[str, float]
    residuals: dict[int, float]
    degrees_of_freedom: int
    best_ranks: float | None = None

    def __call__(self, num_ranks: float) -> float:
        """The speedup of this number of ranks."""
        return float(_LAWS[self.law][2](num_ranks, *self.parameters.values()))


def fit_amdahl(speedups: Mapping[int, float]) -> Fit | None:
    """Amdahl's law through `speedups` by number of ranks; None without a point beyond one rank."""
    return _fit("Amdahl", speedups)


def fit_usl(speedups: Mapping[int, float]) -> Fit | None:
    """The universal scalability law through `speedups`; None with fewer than two points beyond one rank."""
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
"""Names of the parameters, the most a parameter can be, and the law."""


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
