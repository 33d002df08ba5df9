"""Rates by a clock that the test turns."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heartlm.instrumentation.meters import PARTS, Meters, peak_memory_bytes
from heartlm.training.log import _format_line

STEP_PARTS = ("data_s", "forward_backward_s", "communication_s", "optimizer_s", "other_s")


class Hand:
    """A clock, and a meter of energy, that show what they were told."""

    def __init__(self) -> None:
        self.time_s, self.energy_j = 100.0, 5000.0

    def __call__(self) -> float:
        return self.time_s

    def forward(self, seconds: float, joules: float = 0.0) -> None:
        self.time_s += seconds
        self.energy_j += joules


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def meters(hand: Hand) -> Meters:
    return Meters(now_s=hand)


def do_step(meters: Meters, hand: Hand, num_tokens: int = 200, other_s: float = 0.0, **part_s: float) -> None:
    with meters.step(1):
        for name, seconds in part_s.items():
            with meters.span(name):
                hand.forward(seconds)
        hand.forward(other_s)
        meters.count(num_tokens)


def warm_up(meters: Meters, hand: Hand) -> None:
    for _ in range(Meters.WARM_UP_STEPS):
        do_step(meters, hand, 1_000_000, data=5, forward_backward=50)


def test_nothing_is_claimed_before_the_warm_up_is_over(meters: Meters, hand: Hand) -> None:
    assert meters.line() == meters.totals() == {}
    warm_up(meters, hand)
    assert meters.line() == meters.totals() == {}
    assert math.isnan(meters.remaining_s(1))


def test_rates_leave_out_the_warm_up_and_the_pauses(meters: Meters, hand: Hand) -> None:
    warm_up(meters, hand)
    with meters.paused("validation"):
        hand.forward(33)
    for _ in range(4):
        do_step(meters, hand, 200, data=0.5, forward_backward=1, optimizer=0.25, other_s=0.25)
        with meters.paused("checkpoint"):
            hand.forward(60)
    line = meters.line()
    assert line["tokens_per_s"] == pytest.approx(100)
    assert line["data_wait_share"] == pytest.approx(0.25)
    assert [line[name] for name in STEP_PARTS] == pytest.approx([0.5, 1, 0, 0.25, 0.25])
    assert line["step_s"] == pytest.approx(2)


def test_data_of_several_steps_counts_in_equal_parts(hand: Hand) -> None:
    steps: list[tuple[float, float]] = []
    meters = Meters(now_s=hand, on_step=lambda step, num_tokens, busy_s, part_s: steps.append((busy_s, part_s["data"])))
    for num_prepared in (1, 4, 0, 0, 0, 2, 0, 1):
        with meters.step(1):
            with meters.span("data"):
                hand.forward(6 * num_prepared)
            meters.share_data(num_prepared)
            hand.forward(2)
        with meters.paused("validation"):
            hand.forward(50)
    assert steps == [(8, 6)] * 8


def test_what_the_loop_does_between_steps_is_not_hidden(meters: Meters, hand: Hand) -> None:
    warm_up(meters, hand)
    hand.forward(3)
    do_step(meters, hand, 100, forward_backward=1)
    line = meters.line()
    assert line["other_s"] == pytest.approx(3)
    assert line["tokens_per_s"] == pytest.approx(25)


def test_an_inner_part_is_not_counted_twice(meters: Meters, hand: Hand) -> None:
    warm_up(meters, hand)
    with meters.step(3), meters.span("forward_backward"):
        hand.forward(4)
        with meters.span("anything else"), meters.span("communication"):
            hand.forward(1)
        with meters.paused("validation"):
            hand.forward(50)
        hand.forward(2)
    line = meters.line()
    assert [line[name] for name in STEP_PARTS] == pytest.approx([0, 6, 1, 0, 0])
    assert line["step_s"] == pytest.approx(7)


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[str, float]]:
    """Openings and closings of parts and pauses, with the time that passes after each."""
    names = st.sampled_from((*PARTS, "unnamed", "pause", "close"))
    return draw(st.lists(st.tuples(names, st.floats(0, 10)), max_size=30))


@given(steps=st.lists(nested(), min_size=1, max_size=5))
def test_the_parts_add_up_to_the_step(steps: list[list[tuple[str, float]]]) -> None:
    hand = Hand()
    meters = Meters(now_s=hand)
    warm_up(meters, hand)
    for number, events in enumerate(steps):
        with meters.step(number):
            opened = []
            for name, seconds in events:
                if name == "close" and opened:
                    opened.pop().__exit__(None, None, None)
                elif name != "close":
                    opened.append(meters.paused(name) if name == "pause" else meters.span(name))
                    opened[-1].__enter__()
                hand.forward(seconds)
            for manager in reversed(opened):
                manager.__exit__(None, None, None)
    line = meters.line()
    assert sum(line[name] for name in STEP_PARTS) == pytest.approx(line["step_s"])
    assert all(line[name] >= -1e-9 for name in STEP_PARTS)


def test_a_line_is_of_the_steps_since_the_line_before(meters: Meters, hand: Hand) -> None:
    warm_up(meters, hand)
    for seconds in (1, 1, 1, 9):
        do_step(meters, hand, 300, forward_backward=seconds)
    line = meters.line()
    assert (line["tokens_per_s"], line["step_median_s"], line["step_p95_s"]) == pytest.approx((100, 1, 9))
    assert meters.line() == {}
    do_step(meters, hand, 800, forward_backward=8)
    assert meters.line()["tokens_per_s"] == pytest.approx(100)
    assert meters.totals()["tokens_per_s"] == pytest.approx(2000 / 20)
    assert meters.totals()["step_s"] == pytest.approx(4)
    assert meters.remaining_s(10) == pytest.approx(40)


def test_an_error_in_a_pause_ends_the_pause(meters: Meters, hand: Hand) -> None:
    """The loop continues after an error of the profiler or of TensorBoard."""
    warm_up(meters, hand)
    with pytest.raises(ImportError), meters.paused("tensorboard"):
        hand.forward(7)
        raise ImportError
    do_step(meters, hand, data=1, forward_backward=3)
    line = meters.line()
    assert (line["step_s"], line["data_s"], line["forward_backward_s"], line["other_s"]) == (4, 1, 3, 0)


def test_elapsed_time_leaves_out_nothing(meters: Meters, hand: Hand) -> None:
    do_step(meters, hand, data=1, forward_backward=2)
    with meters.paused("validation"):
        hand.forward(4)
    assert meters.elapsed_s() == 7


def test_what_is_not_known_is_not_there(meters: Meters, hand: Hand) -> None:
    warm_up(meters, hand)
    do_step(meters, hand, forward_backward=1)
    assert {"mfu", "energy_j_per_mtoken", "peak_device_memory_bytes"}.isdisjoint(meters.line())
    meters = Meters(now_s=hand, flops_per_token=1e6)
    warm_up(meters, hand)
    do_step(meters, hand, forward_backward=1)
    assert "mfu" not in meters.line()


def test_utilisation_is_useful_arithmetic_over_the_peak(hand: Hand) -> None:
    meters = Meters(now_s=hand, flops_per_token=1e6, peak_flops=4e9)
    warm_up(meters, hand)
    do_step(meters, hand, 2000, forward_backward=2)
    assert meters.line()["mfu"] == pytest.approx(0.25)


def test_energy_leaves_out_the_pauses_and_adds_up_the_ranks(hand: Hand) -> None:
    meters = Meters(now_s=hand, energy_j=lambda: hand.energy_j, sum_over_ranks=lambda joules: 3 * joules)
    with meters.paused("validation"):
        hand.forward(1, joules=7)
    warm_up(meters, hand)
    for joules in (10, 30):
        with meters.step(1):
            hand.forward(1, joules)
            meters.count(500_000)
        with meters.paused("checkpoint"):
            hand.forward(1, joules=1000)
    assert meters.line()["energy_j_per_mtoken"] == pytest.approx(3 * 40)
    with meters.step(2):
        hand.forward(1, joules=80)
        meters.count(1_000_000)
    assert meters.line()["energy_j_per_mtoken"] == pytest.approx(3 * 80)
    assert meters.totals()["energy_j_per_mtoken"] == pytest.approx(3 * 60)


def test_energy_is_unknown_where_one_rank_has_no_counter(hand: Hand) -> None:
    meters = Meters(now_s=hand, energy_j=lambda: hand.energy_j, sum_over_ranks=lambda joules: joules + math.nan)
    warm_up(meters, hand)
    do_step(meters, hand)
    assert "energy_j_per_mtoken" not in meters.line()


MEMORY = """
from heartlm.instrumentation.meters import peak_memory_bytes
before = peak_memory_bytes()
held = bytearray(b"x") * 200_000_000
del held
print(peak_memory_bytes() - before)
"""


def test_peak_memory_is_what_this_process_held_at_most(meters: Meters, hand: Hand) -> None:
    gain = int(subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout)
    assert 195e6 < gain < 230e6
    warm_up(meters, hand)
    meters.peak_device_memory_bytes = lambda: 12345
    do_step(meters, hand)
    line = meters.line()
    assert line["peak_memory_bytes"] == pytest.approx(peak_memory_bytes(), rel=0.1)
    assert line["peak_device_memory_bytes"] == 12345


def test_each_part_waits_for_the_device(hand: Hand) -> None:
    """A kernel that was only started is part of the span that started it."""
    pending = [0.0]

    def synchronize() -> None:
        hand.forward(pending.pop() if pending else 0.0)

    meters = Meters(now_s=hand, synchronize=synchronize)
    warm_up(meters, hand)
    with meters.step(3), meters.span("optimizer"):
        pending.append(5.0)
    assert meters.line()["optimizer_s"] == pytest.approx(5)


def test_the_time_left_may_exceed_a_day(meters: Meters, hand: Hand) -> None:
    warm_up(meters, hand)
    do_step(meters, hand, forward_backward=3600, data=3)
    line = {"step": 10, "split": "train", "loss": 1.0, "learning_rate": 1e-3, "grad_norm": 1.0, **meters.line()}
    assert _format_line(line, 40, meters).endswith("left 30:01:30")
