"""One definition for each number of speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Time of training, validation and checkpoints left out, and what was done in it.

    The first two steps, which warm caches up, are left out of the rates.

    Args:
        now_s: seconds that only go forward.
    """

    WARM_UP_STEPS = 2

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        self.started = self.since = now_s()
        self.steps = self.tokens = 0
        self.waited_s = self.paused_s = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count what happens inside as waiting for data."""
        begin = self.now_s()
        yield
        self.waited_s += self.now_s() - begin

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what happens inside out of the rates: validation, checkpoints."""
        begin = self.now_s()
        yield
        self.paused_s += self.now_s() - begin

    def count(self, num_tokens: int) -> None:
        """Note that a step of `num_tokens` valid tokens is done."""
        self.steps += 1
        if self.steps == self.WARM_UP_STEPS:
            self.since, self.tokens, self.waited_s, self.paused_s = self.now_s(), 0, 0.0, 0.0
        elif self.steps > self.WARM_UP_STEPS:
            self.tokens += num_tokens

    def busy_s(self) -> float:
        """Seconds of training since the warm-up."""
        return max(self.now_s() - self.since - self.paused_s, 1e-9)

    def rates(self) -> dict[str, float]:
        """`tokens_per_s` and `data_wait_share`, nothing before the warm-up is over."""
        if self.steps <= self.WARM_UP_STEPS:
            return {}
        return {"tokens_per_s": self.tokens / self.busy_s(), "data_wait_share": self.waited_s / self.busy_s()}

    def elapsed_s(self) -> float:
        """Seconds since the run, or its resumption, began."""
        return self.now_s() - self.started

    def remaining_s(self, steps: int) -> float:
        """Seconds that `steps` more steps will take at the rate so far."""
        done = max(1, self.steps - self.WARM_UP_STEPS)
        return self.busy_s() / done * steps
