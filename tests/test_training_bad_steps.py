"""Bad steps: what is not finite, what leaps out, what happens then, and the same again after a resume."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heartlm.training.bad_steps import MAX_SKIPPED_IN_A_ROW, BadSteps

TAKE = ("take", "")


def after_good_steps(policy: str = "skip", spike_factor: float = 4.0, window: int = 5) -> BadSteps:
    bad_steps = BadSteps(policy, spike_factor, window)
    for step in range(1, window + 1):
        assert bad_steps.judge(step, 2.0, 1.0) == TAKE
    return bad_steps


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 2.0])
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_what_is_not_finite_is_bad_from_the_first_step(policy: str, loss: float) -> None:
    norm = math.nan if loss == 2.0 else 1.0
    action, reason = BadSteps(policy).judge(1, loss, norm)
    assert action == policy
    assert reason == f"step 1: loss {loss:g}, gradient norm {norm:g}: not finite"


@pytest.mark.parametrize(
    ("loss", "norm", "found"),
    [
        (8.1, 1.0, "the loss is 4.05 times the median 2 of 5 steps"),
        (2.0, 4.2, "the gradient norm is 4.2 times the median 1 of 5 steps"),
    ],
)
def test_a_spike_is_bad(loss: float, norm: float, found: str) -> None:
    action, reason = after_good_steps().judge(6, loss, norm)
    assert action == "skip"
    assert reason.endswith(found)
    assert "\n" not in reason


def test_nothing_is_a_spike_below_the_factor_or_before_the_window_is_full_or_unasked() -> None:
    assert after_good_steps().judge(6, 8.0, 4.0) == TAKE
    early = BadSteps("skip", 4.0, 5)
    for step, loss in enumerate((1, 2, 100, 1, 1), 1):
        assert early.judge(step, loss, 1.0) == TAKE
    assert after_good_steps(spike_factor=0).judge(6, 1e30, 1e30) == TAKE


def test_bad_steps_do_not_move_the_median() -> None:
    bad_steps = after_good_steps()
    for step in range(6, 6 + MAX_SKIPPED_IN_A_ROW):
        assert bad_steps.judge(step, 9.0, 1.0)[0] == "skip"


def test_too_many_skipped_in_a_row_stop_the_run_and_a_good_one_between_does_not() -> None:
    bad_steps = after_good_steps()
    actions = [bad_steps.judge(step, math.nan, 1.0)[0] for step in range(MAX_SKIPPED_IN_A_ROW)]
    assert actions == ["skip"] * MAX_SKIPPED_IN_A_ROW
    assert bad_steps.judge(50, 2.0, 1.0) == TAKE
    actions = [bad_steps.judge(step, math.nan, 1.0)[0] for step in range(MAX_SKIPPED_IN_A_ROW)]
    assert actions == ["skip"] * MAX_SKIPPED_IN_A_ROW
    last = bad_steps.judge(99, math.nan, 1.0)
    assert last[0] == "stop"
    assert last[1].endswith(f"not finite; {MAX_SKIPPED_IN_A_ROW} steps before it were skipped")


@given(
    steps=st.lists(st.tuples(st.floats(0, 100) | st.just(math.nan), st.floats(0, 100)), max_size=60),
    resumed_at=st.integers(0, 60),
    window=st.integers(1, 8),
)
@example(steps=[(0.0, 0.0), (0.0, 1.0)], resumed_at=0, window=1)
def test_a_resumed_run_judges_like_an_unbroken_one(
    steps: list[tuple[float, float]], resumed_at: int, window: int
) -> None:
    straight, first = BadSteps("skip", 3.0, window), BadSteps("skip", 3.0, window)
    for number, step in enumerate(steps):
        if number == resumed_at:
            state = json.loads(json.dumps(first.state(), allow_nan=False))
            first = BadSteps("skip", 3.0, window)
            first.load(state)
        assert first.judge(number, *step) == straight.judge(number, *step)


@given(losses=st.lists(st.floats(0.1, 100), min_size=9, max_size=40))
def test_the_median_is_of_the_good_steps_of_the_window(losses: list[float]) -> None:
    bad_steps, good = BadSteps("skip", 3.0, 4), list[float]()
    for step, loss in enumerate(losses):
        is_spike = len(good) >= 4 and loss > 3.0 * statistics.median(good[-4:])
        action = bad_steps.judge(step, loss, 1.0)[0]
        if action == "stop":
            return
        assert action == ("skip" if is_spike else "take")
        if not is_spike:
            good.append(loss)


def test_a_checkpoint_without_history_begins_anew() -> None:
    bad_steps = after_good_steps()
    bad_steps.load({})
    assert bad_steps.judge(6, 1e9, 1e9) == TAKE
