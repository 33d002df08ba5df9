"""Times of rows become a regular grid: the true rate, every row at its place, gaps where rows are lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heartlm.formats.clock import UnusableClockError, counter_modulus, grid_of_counter, regular_grid
from heartlm.formats.plausible import RATES_HZ

NUM = 7200
RATES = (125.0, 128.0, 130.0, 130.63, 250.0, 256.0, 360.0, 500.0, 512.0, 700.0, 1000.0, 1024.0)


def clock(rate_hz: float, rounded_s: float = 0.0, jitter: float = 0.0, num: int = NUM) -> np.ndarray:
    """Times of regular samples, rounded down to multiples of `rounded_s`, with a jitter in steps."""
    random = np.random.default_rng(int(rate_hz))
    time_s = (np.arange(num) + random.uniform(-jitter, jitter, num)) / rate_hz
    return np.floor(time_s / rounded_s + 1e-6) * rounded_s if rounded_s else time_s


def check_positions(time_s: np.ndarray, kept: np.ndarray, rate_hz: float) -> None:
    grid = regular_grid(time_s[kept])
    assert grid.rate_hz == pytest.approx(rate_hz, rel=2e-5)
    np.testing.assert_array_equal(grid.positions, np.flatnonzero(kept) - np.flatnonzero(kept)[0])
    assert (not kept.all()) == any("gap" in repair for repair in grid.repairs)


@pytest.mark.parametrize("rate_hz", RATES)
@pytest.mark.parametrize("how", ["exact", "microseconds", "milliseconds", "jitter"])
def test_rows_keep_their_places_over_gaps(rate_hz: float, how: str) -> None:
    rounded_s = {"microseconds": 1e-6, "milliseconds": 1e-3}.get(how, 0.0)
    time_s = clock(rate_hz, rounded_s, 0.15 if how == "jitter" else 0.0)
    kept = np.ones(NUM, bool)
    check_positions(time_s, kept, rate_hz)
    kept[3000:3100] = kept[5500:5503] = False
    check_positions(time_s, kept, rate_hz)
    if how != "milliseconds" or rate_hz < 1000:  # at 1024 Hz two samples are as far apart as two rounded ones
        kept[5000] = False
        check_positions(time_s, kept, rate_hz)


def test_lost_packets_of_a_clock_in_milliseconds_at_1024_hz() -> None:
    """As in a file of a Shimmer: steps of 0 and 1 ms, and twenty samples lost at each of 140 places."""
    time_s, kept = clock(1024, 1e-3, num=120_000), np.ones(120_000, bool)
    for first in np.random.default_rng(1).integers(100, 119_000, 140):
        kept[first : first + 20] = False
    check_positions(time_s, kept, 1024)


@pytest.mark.parametrize("rate_hz", RATES)
def test_times_of_packets(rate_hz: float) -> None:
    size = 16
    row = np.arange(NUM)
    begin_s = np.floor(row // size * size / rate_hz * 1000 + 1e-6) / 1000
    whole = begin_s + row % size * (int(1000 / rate_hz) / 1000)  # whole milliseconds within a packet
    first = np.where(row % size == 0, begin_s, np.nan)  # the time of the first row only
    kept = np.ones(NUM, bool)
    kept[160 * size : 164 * size] = kept[300 * size : 301 * size] = False
    for time_s in (whole, first):
        for rows in (np.ones(NUM, bool), kept):
            grid = regular_grid(time_s[rows])
            assert grid.rate_hz == pytest.approx(rate_hz, rel=2e-5)
            np.testing.assert_array_equal(grid.positions, np.flatnonzero(rows))
    grid = regular_grid(np.floor(row / rate_hz + 0.4))  # rows of one second have one time
    assert grid.rate_hz == pytest.approx(rate_hz, rel=2e-5)
    assert len(grid.rows) == NUM == grid.positions[-1] + 1


def test_times_of_arrival_of_packets_vary() -> None:
    late_s = np.abs(np.random.default_rng(0).normal(0, 0.01, NUM // 16))
    grid = regular_grid(np.arange(NUM) // 16 * 16 / 128 + np.repeat(late_s, 16))
    assert grid.rate_hz == pytest.approx(128, rel=2e-4)
    np.testing.assert_array_equal(grid.positions, np.arange(NUM))
    assert "packets of 16 rows" in grid.repairs[0]


def test_packets_with_too_few_and_too_many_rows() -> None:
    row = np.arange(NUM)
    time_s = np.where(row % 16 == 0, row / 250, np.nan)
    few = np.delete(time_s, np.arange(1605, 1614))
    grid = regular_grid(few)
    assert (grid.rate_hz, grid.positions[-1]) == (250, NUM - 1)
    np.testing.assert_array_equal(grid.positions[grid.positions >= 1616], np.arange(1616, NUM))
    many = np.insert(time_s, 1605, np.full(300, np.nan))
    grid = regular_grid(many)
    assert (grid.rate_hz, grid.positions[-1]) == (250, NUM - 1)
    np.testing.assert_array_equal(grid.positions, row)
    assert "300 rows more than the times allow" in grid.repairs[0]


def test_single_wrong_times_cost_one_row_each() -> None:
    for value in (999.0, 0.001, -5.0):
        time_s = clock(360)
        time_s[100] = value
        grid = regular_grid(time_s)
        assert (grid.rate_hz, len(grid.rows)) == (360, NUM - 1)
        np.testing.assert_array_equal(grid.positions, grid.rows)
        assert "out of order" in grid.repairs[0]


def test_a_repeated_row_and_a_row_elsewhere() -> None:
    time_s = clock(360)
    twice = regular_grid(np.insert(time_s, 200, time_s[199]))
    np.testing.assert_array_equal(twice.positions, np.arange(NUM))
    assert 200 not in twice.rows
    moved = regular_grid(np.delete(np.insert(time_s, 300, time_s[100]), 100))
    assert moved.rate_hz == 360
    assert 100 not in moved.positions
    assert len(moved.rows) == NUM - 1


def test_jitter_beyond_a_step_keeps_all_rows() -> None:
    time_s = clock(120, 0, 0.8)
    assert (np.diff(time_s) < 0).any()
    grid = regular_grid(time_s)
    assert grid.rate_hz == pytest.approx(120, rel=1e-4)
    np.testing.assert_array_equal(grid.positions, np.arange(NUM))
    assert "vary by" in grid.repairs[0]


def test_a_clock_that_drifts_keeps_all_rows() -> None:
    steps = (1 + 2e-5 * np.sin(np.arange(400_000) / 1e5)) / 130
    grid = regular_grid(np.cumsum(steps))
    assert len(grid.positions) == 400_000 == grid.positions[-1] + 1
    assert not grid.repairs


@pytest.mark.parametrize(
    ("time_s", "reason"),
    [
        (np.zeros(100), "fewer than two different times"),
        (np.full(100, np.nan), "fewer than two times"),
        (-clock(250), "goes back at row 2"),
        (np.concatenate([clock(250), clock(250)]), f"goes back at row {NUM + 1}"),
        (np.concatenate([clock(250), 1e9 + clock(250)]), f"jumps by 11574 days at row {NUM + 1}"),
        (np.array([5.0]), "fewer than two times"),
    ],
)
def test_unusable_times(time_s: np.ndarray, reason: str) -> None:
    with pytest.raises(UnusableClockError, match=reason):
        regular_grid(time_s)


def test_a_known_rate_is_kept_and_a_contradiction_reported() -> None:
    assert regular_grid(clock(360.02), 360).rate_hz == 360
    with pytest.raises(UnusableClockError, match="tells 360 Hz"):
        regular_grid(clock(360), 250)
    with pytest.raises(UnusableClockError, match="does not rise"):
        regular_grid(np.rint(np.sin(np.arange(1000) * 9 / 250)), 250)  # values that are called times


def test_numbers_of_rows() -> None:
    kept = np.ones(1000, bool)
    kept[500:503] = False
    numbers = np.arange(1000.0)[kept]
    for counter in (numbers, numbers + 1, numbers % 16, numbers % 256):
        grid = grid_of_counter(counter, 250)
        assert grid is not None
        np.testing.assert_array_equal(grid.positions, np.flatnonzero(kept))
        assert grid.repairs == ("a gap in the row numbers, 0.012 s in all, read as invalid samples (NaN)",)
    numbers = np.arange(1000.0) % 16
    numbers[77] = 99999  # a single wrong number
    grid = grid_of_counter(numbers, 250)
    assert grid is not None
    np.testing.assert_array_equal(grid.positions, np.arange(1000))
    for missing in ([77, 78, 500], [0, 1], [999]):  # rows without a number
        numbers = np.arange(1000.0) % 16
        numbers[missing] = np.nan
        grid = grid_of_counter(numbers, 250)
        assert grid is not None
        np.testing.assert_array_equal(grid.positions, np.arange(1000))
    kept = np.ones(150_000, bool)
    kept[1000:1500] = False
    grid = grid_of_counter((np.arange(150_000.0) % 65536)[kept], 250)  # 16 bits, which wrap twice
    assert grid is not None
    np.testing.assert_array_equal(grid.positions, np.flatnonzero(kept))
    numbers = np.arange(10_000.0)
    numbers[4999] -= 64  # a wrong bit
    assert counter_modulus(numbers) == 0
    assert counter_modulus(np.arange(100.0)) == 0
    for other in (np.arange(100.0) / 2, np.zeros(100), np.sin(np.arange(100)), np.arange(100.0) % 10):
        assert counter_modulus(other) is None


NUMBERS = st.integers(-3, 3).map(float) | st.floats()


@settings(deadline=None, max_examples=300)
@given(st.lists(NUMBERS, max_size=40), st.sampled_from([None, 0.001, 250.0, 1e6]))
@example([0.0, 0.006, 0.002, -0.002, 0.004], None)  # steps of which half fall: the line through them falls
@example([0.0, 0.0, 0.0], None)
@example([0.0, 1e-315, 2e-315], None)
@example([0.0, 1e58], 0.001)
@example([0.0, 1e306, 2e306, 3e306], 1e6)
def test_any_numbers_are_a_grid_of_a_possible_rate_or_a_reason(numbers: list[float], rate_hz: float | None) -> None:
    for grid_of in (
        lambda: regular_grid(np.array(numbers), rate_hz),
        lambda: grid_of_counter(np.array(numbers), 250.0),
    ):
        try:
            grid = grid_of()
        except UnusableClockError as error:
            assert str(error)
            continue
        if grid is not None:
            assert RATES_HZ[0] <= grid.rate_hz <= RATES_HZ[1] and (np.diff(grid.positions) > 0).all()
            assert len(grid.rows) == len(grid.positions) <= len(numbers) and grid.positions[0] == 0
