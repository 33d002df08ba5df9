"""Rates by a clock that the test turns."""

from __future__ import annotations

import pytest

from heartlm.training.meters import Clock


class Hand:
    """A clock that shows what it was told."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def __call__(self) -> float:
        return self.time_s

    def forward(self, seconds: float) -> None:
        self.time_s += seconds


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def clock(hand: Hand) -> Clock:
    return Clock(hand)


def step(clock: Clock, hand: Hand, *, waiting_s: float, computing_s: float, tokens: int) -> None:
    with clock.waiting():
        hand.forward(waiting_s)
    hand.forward(computing_s)
    clock.count(tokens)


def test_nothing_is_claimed_before_the_warm_up_is_over(clock: Clock, hand: Hand) -> None:
    for _ in range(Clock.WARM_UP_STEPS):
        assert clock.rates() == {}
        step(clock, hand, waiting_s=5, computing_s=50, tokens=10)
    assert clock.rates() == {}


def test_rates_leave_out_the_warm_up_and_the_pauses(clock: Clock, hand: Hand) -> None:
    for _ in range(Clock.WARM_UP_STEPS):
        step(clock, hand, waiting_s=5, computing_s=50, tokens=1_000_000)
        with clock.paused():
            hand.forward(7)
    with clock.paused():
        hand.forward(33)
    for _ in range(4):
        step(clock, hand, waiting_s=0.5, computing_s=1.5, tokens=200)
        with clock.paused():
            hand.forward(60)
    assert clock.rates() == pytest.approx({"tokens_per_s": 100.0, "data_wait_share": 0.25})


def test_elapsed_time_leaves_out_nothing(clock: Clock, hand: Hand) -> None:
    step(clock, hand, waiting_s=1, computing_s=2, tokens=1)
    with clock.paused():
        hand.forward(4)
    assert clock.elapsed_s() == 7


def test_remaining_time_follows_the_rate_so_far(clock: Clock, hand: Hand) -> None:
    for _ in range(Clock.WARM_UP_STEPS):
        step(clock, hand, waiting_s=0, computing_s=99, tokens=1)
    for _ in range(5):
        step(clock, hand, waiting_s=0, computing_s=2, tokens=1)
    assert clock.remaining_s(10) == pytest.approx(20)
