"""The equations of scaling against values worked out by hand; fits against the parameters they were made from."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heartlm.extensions.scaling.equations import geometric_interval, ideal_s, karp_flatt, overhead_interval
from heartlm.extensions.scaling.fits import fit_amdahl, fit_usl
from heartlm.report.numbers import Interval


def test_the_published_equations_by_hand() -> None:
    """100 s on one GPU, 62.5 s on two, 52.6 s on four: the published 1.6x and 1.9x."""
    assert overhead_interval(50, Interval(0.8)).value == pytest.approx(12.5)
    assert overhead_interval(25, Interval(25 / 52.6)).value == pytest.approx(27.6)


def test_karp_flatt_by_hand() -> None:
    assert karp_flatt(1.6, 2) == pytest.approx(0.25)
    assert karp_flatt(1.9, 4) == pytest.approx((1 / 1.9 - 0.25) / 0.75)
    assert karp_flatt(2.0, 2) == pytest.approx(0)
    assert karp_flatt(1.0, 1) is None


def test_the_ideal_time_divides_the_work_or_keeps_it() -> None:
    assert ideal_s(12, 4, "strong") == 3
    assert ideal_s(12, 4, "weak") == 12


def test_an_interval_is_students_t_of_the_logarithm() -> None:
    found = geometric_interval([10, 12, 14.4])
    factor = math.exp(4.302653 * math.log(1.2) / math.sqrt(3))
    assert found.low is not None and found.high is not None
    assert (found.value, found.low, found.high) == pytest.approx((12, 12 / factor, 12 * factor))
    assert geometric_interval([5]).low is None
    assert geometric_interval([0, 4]) == Interval(2.0)


def test_the_interval_of_a_time_does_not_reach_zero() -> None:
    """Two repeats, one half as long again as the other: 12.7 standard errors of the mean are more than the mean."""
    found = geometric_interval([10, 15])
    assert found.low is not None and found.high is not None
    assert 0 < found.low < 10 and found.high > 15


@given(st.floats(0.1, 1e4), st.floats(0.05, 1.0), st.floats(1.01, 100))
def test_an_overhead_lies_between_those_of_the_efficiency_s_bounds(ideal: float, of_ranks: float, wide: float) -> None:
    found = overhead_interval(ideal, Interval(of_ranks, of_ranks / wide, of_ranks * wide))
    assert found.low is not None and found.high is not None
    assert -ideal < found.low < found.value < found.high
    assert (ideal + found.high) * of_ranks / wide == pytest.approx(ideal)


def test_a_ratio_and_its_inverse_have_inverse_intervals() -> None:
    there, back = geometric_interval([1.5, 1.8, 1.6]), geometric_interval([1 / 1.5, 1 / 1.8, 1 / 1.6])
    assert there.low is not None and back.high is not None
    assert there.value == pytest.approx((1.5 * 1.8 * 1.6) ** (1 / 3))
    assert (back.value, back.high) == pytest.approx((1 / there.value, 1 / there.low))


# --- fits -------------------------------------------------------------------------------------------------------------


@given(st.floats(0, 0.9))
def test_amdahl_is_found_again(serial: float) -> None:
    fit = fit_amdahl({number: 1 / (serial + (1 - serial) / number) for number in (1, 2, 4, 8)})
    assert fit is not None
    assert fit.parameters["serial"] == pytest.approx(serial, abs=1e-6)
    assert max(map(abs, fit.residuals.values())) < 1e-6
    assert fit.degrees_of_freedom == 2


@given(st.floats(0, 0.5), st.floats(0, 0.05))
def test_usl_is_found_again(sigma: float, kappa: float) -> None:
    law = {n: n / (1 + sigma * (n - 1) + kappa * n * (n - 1)) for n in (1, 2, 4, 8, 16)}
    fit = fit_usl(law)
    assert fit is not None
    assert fit.parameters == pytest.approx({"sigma": sigma, "kappa": kappa}, abs=1e-5)
    assert max(map(abs, fit.residuals.values())) < 1e-4


def test_usl_knows_where_more_ranks_only_slow_down() -> None:
    fit = fit_usl({n: n / (1 + 0.1 * (n - 1) + 0.01 * n * (n - 1)) for n in (1, 2, 4, 8)})
    assert fit is not None and fit.best_ranks == pytest.approx(math.sqrt(0.9 / 0.01), rel=1e-3)


def test_the_published_speedups_fit_amdahl_badly() -> None:
    """The serial fraction grows from 0.25 to 0.37: overhead, not serial work."""
    fit = fit_amdahl({1: 1.0, 2: 1.6, 4: 1.9})
    assert fit is not None
    assert 0.25 < fit.parameters["serial"] < 0.37
    assert fit.residuals[2] < -0.03 and fit.residuals[4] > 0.03


def test_too_few_points_are_not_fitted() -> None:
    assert fit_amdahl({1: 1.0}) is None
    assert fit_usl({1: 1.0, 2: 1.8}) is None
    through = fit_amdahl({1: 1.0, 2: 1.8})
    assert through is not None and through.degrees_of_freedom == 0
