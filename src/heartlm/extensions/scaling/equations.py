"""Definitions of speedup, efficiency and overhead, with confidence intervals.

    Speedup = T_base / T_test      Efficiency = Speedup / N      Overhead = T_test − T_base / N

as defined by Mileski, Petrovski and Gusev (MIPRO 2025, arXiv 2503.21033), with T_base the time on one GPU. This is
strong scaling, with the ideal time T_base / N. In weak scaling, N ranks do N times the work, for which one rank would
need N × T_base; with this value in place of T_base, the equations apply to both.

Times and ratios are positive. Their means are geometric, and their 95 % intervals are Student's t over the logarithms
of the repeats, so no interval of a time includes zero. Base and test are measured one after the other in each repeat,
so a slowdown of the machine that affects both cancels out of their ratio. One repeat has no interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from heartlm.report.numbers import Interval


def ideal_s(base_s: float, num_ranks: int, scaling: str) -> float:
    """Return the ideal time of `num_ranks` ranks from the time of one rank."""
    return base_s / num_ranks if scaling == "strong" else base_s


def karp_flatt(speedup: float, num_ranks: int) -> float | None:
    """Return the serial fraction of a speedup (Karp and Flatt 1990), or None for one rank.

    If it increases with the number of ranks, the loss is parallel overhead rather than serial work.
    """
    return None if num_ranks == 1 else (1 / speedup - 1 / num_ranks) / (1 - 1 / num_ranks)


def geometric_interval(values: Sequence[float]) -> Interval:
    """Return the geometric mean of times or ratios with its 95 % interval.

    Zero has no logarithm: if a value is 0, return the arithmetic mean without an interval.
    """
    from scipy import stats  # slow to import

    if min(values) <= 0:
        return Interval(statistics.fmean(values))
    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    if len(values) < 2:
        return Interval(math.exp(mean))
    quantile: Any = stats.t.ppf(0.975, len(values) - 1)
    half = float(quantile) * statistics.stdev(logs) / math.sqrt(len(values))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def overhead_interval(ideal_s: float, efficiency: Interval) -> Interval:
    """Return the seconds beyond `ideal_s`, with the interval from the efficiency: T_test = ideal time / efficiency.

    The overhead can be below 0 if the test is faster than ideal, but not below minus the ideal time.
    """
    low, high = (None if each is None else ideal_s / each - ideal_s for each in (efficiency.high, efficiency.low))
    return Interval(ideal_s / efficiency.value - ideal_s, low, high)
