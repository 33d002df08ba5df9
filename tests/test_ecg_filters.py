"""Filters that are computed without scipy are those of scipy."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import signal

from heartlm.analysis.flutter import _AT_REST, _BAND_PASS, RATE_HZ
from heartlm.ecg.filters import filtered, filtered_both_ways, resampled
from heartlm.kernels.library import using, variants
from heartlm.report.strip import _highest_near
from heartlm.tokenizers.millivolts import high_pass
from heartlm.tokenizers.sample import KEEP


@pytest.mark.parametrize("variant", variants())
def test_recursive_filters_are_those_of_scipy_to_the_last_bit(variant: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 500)).cumsum(axis=1)
    band_pass = signal.butter(2, (1.0, 15.0), "bandpass", fs=RATE_HZ, output="sos")
    assert np.allclose(np.insert(_BAND_PASS, 3, 1, axis=1), band_pass, rtol=1e-12, atol=0)
    sections = np.insert(_BAND_PASS, 3, 1, axis=1)
    assert np.allclose(signal.sosfilt_zi(sections), _AT_REST, rtol=1e-9)
    with using(variant):
        at_rest = _AT_REST[:, None] * x[:, :1]
        assert np.array_equal(filtered(x, _BAND_PASS, _AT_REST), signal.sosfilt(sections, x, zi=at_rest)[0])
        np.testing.assert_allclose(
            filtered_both_ways(x, _BAND_PASS, _AT_REST), signal.sosfiltfilt(sections, x), atol=1e-9
        )
        grid = x[0].astype(np.float32)
        average, _ = signal.lfilter([1 - KEEP], [1, -KEEP], grid, zi=[KEEP * float(grid[0])])
        assert np.array_equal(high_pass(grid), (grid - average).astype(np.float32))
        assert len(high_pass(grid[:0])) == 0


@pytest.mark.parametrize("rate_hz", [125.0, 128.0, 250.0, 257.3, 360.0, 500.0, 1000.0, 62.5])
@pytest.mark.parametrize("num", [1, 7, 1250, 3001])
def test_resampling_is_that_of_scipy(rate_hz: float, num: int) -> None:
    x = np.random.default_rng(num).normal(size=(2, num)).astype(np.float32)
    ratio = Fraction(RATE_HZ / rate_hz).limit_denominator(1000)
    expected = signal.resample_poly(x, ratio.numerator, ratio.denominator, axis=1)
    found = resampled(x, ratio)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("reach", [1, 2, 5, 8])
def test_the_highest_value_around_each(reach: int) -> None:
    from scipy.ndimage import maximum_filter1d

    heights = np.random.default_rng(0).normal(size=40)
    assert np.array_equal(_highest_near(heights, reach), maximum_filter1d(heights, reach))
