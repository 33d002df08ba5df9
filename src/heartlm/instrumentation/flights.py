"""Overlap of gradient sums with the backward pass: hidden and exposed communication time.

    backward pass   |== layer 3 ==|== layer 2 ==|== layer 1 ==|
    sums over ranks               |-- bucket 3 --|   |- bucket 2 -|-- bucket 1 --|
                                  |= hidden ====|   |= hidden |= exposed ========|
                                                               ^ ready

A bucket is in flight from its submission to the process group until its sum is complete. Time in flight before the last
gradient is computed (`ready`) is hidden. Waiting after it is exposed, and measured by the meters. Times are CPU times.
With NCCL they do not show when a sum completes on the GPU, so nothing is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class InFlight:
    """Sums over ranks in flight during a step of this rank.

    Attributes:
        now_s: monotonic clock in s.
    """

    now_s: Callable[[], float] = time.perf_counter
    _in_flight: list[list[float]] = field(default_factory=list)
    _ready_s: float | None = None

    def launch(self) -> Callable[[], None]:
        """Record the start of a sum; call the result, from any thread, when the sum is complete."""
        flight = [self.now_s()]
        self._in_flight.append(flight)
        return lambda: flight.append(self.now_s())

    def ready(self) -> None:
        """Record that this rank has computed its last gradient."""
        self._ready_s = self.now_s()

    def take_hidden_s(self) -> float | None:
        """Return the hidden communication time of the step in s, or None if nothing was recorded, and reset."""
        flights, ready_s = self._in_flight, self._ready_s
        self._in_flight, self._ready_s = [], None
        if ready_s is None:
            return None
        return hidden_s([(begin, *landed) for begin, *landed in flights], ready_s)


def hidden_s(flights: list[tuple[float, ...]], ready_s: float) -> float:
    """Return the seconds before `ready_s` in which at least one of `flights` was in progress.

    Args:
        flights: start and end of each in s, ordered by start; without an end if still in progress.
        ready_s: time at which the last gradient was computed.
    """
    covered_s, until_s = 0.0, float("-inf")
    for begin_s, *landed in flights:
        end_s = min(landed[0] if landed else ready_s, ready_s)
        covered_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s
