"""What the scripts of `benchmarks/` compute from measurements."""

from __future__ import annotations

import pytest
import training

SHAPE = training.Shape(1, 8, 1, 16, 2, 6, 2, "cpu", False, False)


def test_our_loop_and_its_rivals_are_timed_over_the_same_steps(monkeypatch: pytest.MonkeyPatch):
    """Steps that take 1, 2, … 6 s: those after the second take 18 s."""
    watch, ends_s = training.Stopwatch(SHAPE), [1.0, 3.0, 6.0, 10.0, 15.0, 21.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: ends_s[watch.steps - 1])
    for _ in ends_s:
        watch.step()
    assert watch.rate() == pytest.approx(4 * 2 * 16 / 18)
    taken = [{"num_tokens": 2 * 16, "step_s": float(number)} for number in range(1, 7)]
    assert training.rate_after(taken, SHAPE) == pytest.approx(watch.rate())
