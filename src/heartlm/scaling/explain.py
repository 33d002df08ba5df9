"""Why 2 GPUs gave 1.6x and 4 gave 1.9x: what a limited supply of data explains, and what communication would need.

Speedups of Mileski, Petrovski & Gusev (MIPRO 2025, arXiv 2503.21033), on nodes of 4 GPUs. Times are in units of one
GPU's computing of one batch, so nothing about the model, the batch or the seconds needs to be known.

With a supply, all GPUs of a node draw batches from one queue that prepares a multiple of what one GPU consumes; how
unevenly it does so is the second number. Both follow from the two published speedups by simulation. With communication
alone, n GPUs at the same batch each reach n / (1 + c) where c is the exposed all-reduce in units of computing, so each
published speedup states the c it needs; what a ring costs grows by 3/2 from 2 to 4 GPUs if the rate of links decides
and by 3 if their latency does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heartlm.scaling.reference_marks import SPEEDUP
from heartlm.scaling.simulate import RankWork, Supply, Surroundings, simulate

PUBLISHED_SPEEDUP = {num_gpus: speedup for num_gpus, speedup in SPEEDUP.items() if num_gpus > 1}

PREFETCH = 2
"""Batches prepared ahead for each GPU, as PyTorch's DataLoader does by default for each of its workers."""
OTHER_DEPTHS = (0, 1, 4)

STEPS = 128
EVALUATIONS = 40


@dataclass(frozen=True)
class SupplyLimit:
    """A supply that fits published speedups best.

    Attributes:
        rate: batches prepared for all GPUs of a node while one GPU computes on one.
        variation: standard deviation of the time of preparing one, over its mean.
        prefetch: batches prepared ahead for each GPU.
        speedup: that follows, by number of GPUs.
        error: largest relative difference from a published speedup.
    """

    rate: float
    variation: float
    prefetch: int
    speedup: dict[int, float]
    error: float


@dataclass(frozen=True)
class Explanation:
    """What explains published speedups, and what does not.

    Attributes:
        best: the supply that comes nearest, with PyTorch's depth of prefetching.
        others: the nearest for other depths, and for a supply that never varies.
        communication: exposed all-reduce that each number of GPUs would need, in units of computing.
        needed_growth: of it from the fewest GPUs to the most.
        ring_growth: of a ring's cost between the same, where the rate decides and where latency does.
    """

    best: SupplyLimit
    others: list[SupplyLimit]
    communication: dict[int, float]
    needed_growth: float
    ring_growth: tuple[float, float]


def explain() -> Explanation:
    """Fit a supply to the published speedups, and state what communication alone would need."""
    published = PUBLISHED_SPEEDUP
    best = fitted_supply(PREFETCH)
    others = [*map(fitted_supply, OTHER_DEPTHS), fitted_supply(PREFETCH, varies=False)]
    few, many = min(published), max(published)
    needed = {num: num / speedup - 1 for num, speedup in published.items()}
    by_rate = ((many - 1) / many) / ((few - 1) / few)
    return Explanation(
        best=best,
        others=others,
        communication=needed,
        needed_growth=needed[many] / needed[few],
        ring_growth=(by_rate, (many - 1) / (few - 1)),
    )


def supplied_speedup(rate: float, variation: float, prefetch: int, gpus: Sequence[int]) -> dict[int, float]:
    """Speedups of `gpus` on one node whose supply prepares `rate` batches while a GPU computes on one.

    Preparing one takes times that vary by the coefficient `variation`, gamma-distributed as service times commonly are.
    """
    from scipy.stats import gamma

    times = np.ones(1)
    if variation:
        times = gamma.ppf((np.arange(STEPS) + 0.5) / STEPS, 1 / variation**2, scale=variation**2)
    supply = Supply(rate, prefetch, (times / times.mean()).tolist())
    alone, *together = (
        simulate(RankWork(0.0, 1.0), Surroundings(num, jitter=[1.0] * STEPS, supply=supply)).mean_step_s / num
        for num in (1, *gpus)
    )
    return {num: alone / each for num, each in zip(gpus, together, strict=True)}


def fitted_supply(prefetch: int, varies: bool = True) -> SupplyLimit:
    """The supply whose largest relative error of a published speedup is least (Nelder & Mead 1965).

    Args:
        prefetch: batches prepared ahead for each GPU.
        varies: whether preparing may take now longer, now shorter.
    """
    from scipy.optimize import minimize

    published = PUBLISHED_SPEEDUP

    def limit(place: Sequence[float]) -> SupplyLimit:
        rate, variation = math.exp(place[0]), float(abs(place[1])) if varies else 0.0
        speedup = supplied_speedup(rate, variation, prefetch, sorted(published))
        error = max(abs(speedup[num] / value - 1) for num, value in published.items())
        return SupplyLimit(rate, variation, prefetch, speedup, error)

    start = math.log(max(published.values()))
    corners = [[start, 0.5], [start - 0.3, 0.5], [start, 1.5]] if varies else [[start], [start - 0.3]]
    options = {"initial_simplex": corners, "maxfev": EVALUATIONS, "xatol": 1e-3, "fatol": 1e-4}
    found = minimize(lambda place: limit(place).error, corners[0], method="Nelder-Mead", options=options)
    return limit(found.x)
