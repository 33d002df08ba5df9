"""What a rank waits for in the sums of gradients over ranks, and which part of them is hidden behind its backward pass.

    backward pass   |== layer 3 ==|== layer 2 ==|== layer 1 ==|
    sums over ranks               |-- bucket 3 --|   |- bucket 2 -|-- bucket 1 --|
                                  |= hidden ====|   |= hidden |= exposed ========|
                                                               ^ ready

A bucket is on its way from when this rank has given it to the process group until its sum is there. What of that
passes before the last gradient is computed (`ready`) is hidden; what the rank waits for after it is exposed, which the
meters measure. Times are those of the processor: with NCCL a sum is over on the GPU at another time than the call that
asked for it says, so there nothing is noted and nothing is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class InFlight:
    """Sums over ranks that are on their way in a step of this rank.

    Attributes:
        now_s: the clock.
    """

    now_s: Callable[[], float] = time.perf_counter
    _in_flight: list[list[float]] = field(default_factory=list)
    _ready_s: float | None = None

    def launch(self) -> Callable[[], None]:
        """Note that a sum is on its way now; call the result, from any thread, when it is there."""
        flight = [self.now_s()]
        self._in_flight.append(flight)
        return lambda: flight.append(self.now_s())

    def ready(self) -> None:
        """Note that this rank has computed its last gradient."""
        self._ready_s = self.now_s()

    def take_hidden_s(self) -> float | None:
        """Seconds of the step in which a sum was on its way while gradients were computed; forget the step.

        None where nothing was noted.
        """
        flights, ready_s = self._in_flight, self._ready_s
        self._in_flight, self._ready_s = [], None
        if ready_s is None:
            return None
        return hidden_s([(begin, *landed) for begin, *landed in flights], ready_s)


def hidden_s(flights: list[tuple[float, ...]], ready_s: float) -> float:
    """Seconds before `ready_s` in which at least one of `flights` was under way.

    Args:
        flights: begin and end of each, in order of begin; the end is left out where it has not come yet.
        ready_s: when there was nothing left to compute.
    """
    covered_s, until_s = 0.0, float("-inf")
    for begin_s, *landed in flights:
        end_s = min(landed[0] if landed else ready_s, ready_s)
        covered_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s
