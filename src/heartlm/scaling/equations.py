"""Speedup, efficiency and overhead, each defined once, with intervals.

    Speedup = T_base / T_test      Efficiency = Speedup / N      Overhead = T_test − T_base / N

as Mileski, Petrovski and Gusev define them (MIPRO 2025, arXiv 2503.21033), T_base being the time on one GPU. That is
strong scaling, whose ideal time is T_base / N. Weak scaling gives N ranks N times the work, which one rank would need
N × T_base for; with that in place of T_base the equations are the same for both.

Times and ratios are positive, so their means are geometric and their intervals are Student's t over the repeats of the
logarithm, at 95 %: no interval of a time reaches zero. Base and test were measured one after the other in each repeat,
so what slowed the machine down for both cancels out of their ratio. One repeat has no interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % interval, none where there was one repeat."""

    value: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Interval:
        """All of it times a positive `factor`."""
        low, high = (None if each is None else each * factor for each in (self.low, self.high))
        return Interval(self.value * factor, low, high)


def ideal_s(base_s: float, num_ranks: int, scaling: str) -> float:
    """The time that `num_ranks` would take if nothing were lost, from that of one."""
    return base_s / num_ranks if scaling == "strong" else base_s


def speedup(base_s: float, test_s: float) -> float:
    """How many times faster the test was than the base."""
    return base_s / test_s


def efficiency(of_speedup: float, num_ranks: int) -> float:
    """The speedup as a fraction of the ranks."""
    return of_speedup / num_ranks


def karp_flatt(of_speedup: float, num_ranks: int) -> float | None:
    """The serial fraction that a speedup reveals (Karp and Flatt 1990); None for one rank.

    Where it grows with the ranks the loss is not serial work but overhead that grows with them.
    """
    return None if num_ranks == 1 else (1 / of_speedup - 1 / num_ranks) / (1 - 1 / num_ranks)


def geometric_interval(values: Sequence[float]) -> Interval:
    """The geometric mean of times or ratios, and where that of many repeats would lie.

    A zero has no logarithm: values with one give their arithmetic mean, without an interval.
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
    """Seconds beyond `ideal_s`, with the interval of the efficiency: T_test is the ideal time over the efficiency.

    It may reach below 0, where the test was faster than ideal, but not below minus the ideal time.
    """
    low, high = (None if each is None else ideal_s / each - ideal_s for each in (efficiency.high, efficiency.low))
    return Interval(ideal_s / efficiency.value - ideal_s, low, high)


def mean_known(values: Sequence[float | None]) -> float | None:
    """The mean of `values`; None where one of them is unknown, or there is none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None
