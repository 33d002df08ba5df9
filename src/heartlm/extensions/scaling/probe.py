"""Probe of the machine's current speed: fixed arithmetic, timed on every core that a measurement uses.

The machine may be shared, so each measurement records the probe before and after.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from heartlm.extensions.scaling.cell import Measurement
from heartlm.system.cores import bind, usable_cpus

MOVED = 0.1
"""If two probes differ by more than this fraction, the machine changed its speed during the measurement."""


def probe(cores: Sequence[int], rounds: int = 3) -> float:
    """Return the arithmetic units per second on the slowest of `cores`; the best of `rounds` counts for each core."""
    allowed = usable_cpus()
    try:
        return min(_on(core, rounds) for core in cores)
    finally:
        bind(allowed)


def moved(before: float, after: float) -> bool:
    """Return whether the machine's speed changed between two probes."""
    return abs(after / before - 1) > MOVED


def probes_of(measurement: Measurement) -> list[float]:
    """Return the available probes before and after a measurement."""
    values = (measurement.environment.get(f"probe_{when}") for when in ("before", "after"))
    return [float(value) for value in values if value]


def _on(core: int, rounds: int) -> float:
    bind({core})
    numbers = np.arange(1 << 18, dtype=np.float32)
    taken_s = []
    for _ in range(rounds):
        begin_s = time.perf_counter()
        for _ in range(16):
            np.sqrt(numbers * 1.0001 + 1.0).sum()
        taken_s.append(time.perf_counter() - begin_s)
    return 1 / min(taken_s)
