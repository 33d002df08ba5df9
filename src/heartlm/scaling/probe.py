"""How fast the machine is now: fixed arithmetic, timed on every core that a measurement uses.

A machine may be shared, so what it gave a measurement is listed with it: the probe before and after.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Sequence

import numpy as np

from heartlm.scaling.cell import Measurement

MOVED = 0.1
"""Two probes that differ by more than this fraction mean that the machine was not the same before and after."""


UNUSUAL = 0.15
"""A probe that differs by more than this fraction from the usual one means that the machine had another speed."""

ENOUGH = 8
"""The number of probes that define the usual speed."""


def probe(cores: Sequence[int], rounds: int = 3) -> float:
    """Pieces of arithmetic a second on the slowest of `cores`, the best of some rounds on each."""
    allowed = os.sched_getaffinity(0)
    try:
        return min(_on(core, rounds) for core in cores)
    finally:
        os.sched_setaffinity(0, allowed)


def moved(before: float, after: float) -> bool:
    """Whether the machine's speed changed between two probes."""
    return abs(after / before - 1) > MOVED


def usual_probe(measurements: Iterable[Measurement]) -> float | None:
    """The median of all probes; None while there are too few."""
    probes = [value for each in measurements for value in probes_of(each)]
    return statistics.median(probes) if len(probes) >= ENOUGH else None


def unusual(measurement: Measurement, usual: float | None) -> float:
    """The relative difference of the machine's speed around a measurement from the usual one; 0 where unknown."""
    return 0.0 if usual is None else max((abs(value / usual - 1) for value in probes_of(measurement)), default=0.0)


def probes_of(measurement: Measurement) -> list[float]:
    """The probes before and after a measurement, as far as there are any."""
    values = (measurement.environment.get(f"probe_{when}") for when in ("before", "after"))
    return [float(value) for value in values if value]


def _on(core: int, rounds: int) -> float:
    os.sched_setaffinity(0, {core})
    numbers = np.arange(1 << 18, dtype=np.float32)
    taken_s = []
    for _ in range(rounds):
        begin_s = time.perf_counter()
        for _ in range(16):
            np.sqrt(numbers * 1.0001 + 1.0).sum()
        taken_s.append(time.perf_counter() - begin_s)
    return 1 / min(taken_s)
