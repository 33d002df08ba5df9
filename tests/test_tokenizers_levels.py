"""The quantisers under the tokenizers: levels of intervals and amplitudes, and residual codebooks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.tokenizers.quantize import ResidualQuantizer, fit_quantizer, nearest_centroid
from heartlm.tokenizers.rr import LONG_BEATS, RECENT_BEATS, LogScale, ordinal_coordinates, trailing_median
from heartlm.tokenizers.sample import LIMIT, NUM_LEVELS, STEP, dequantize
from heartlm.tokenizers.waveform import fill_gaps, hann_weights, interpolate, smooth
from tests.kernel_references import quantize, rr_values

scales = st.builds(
    lambda low, ratio, num_levels: LogScale(low, low * ratio, num_levels),
    low=st.floats(0.05, 1.0),
    ratio=st.floats(1.5, 50.0),
    num_levels=st.integers(1, 200),
)
shares = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=50)
amplitudes = st.lists(st.floats(-LIMIT, LIMIT, width=32, exclude_max=True), min_size=1, max_size=50)


# --- logarithmic levels -----------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None)
@given(scale=scales, share=shares)
def test_a_value_decodes_to_within_half_a_level(scale: LogScale, share: list[float]) -> None:
    ratio = scale.high / scale.low
    value = scale.low * ratio ** np.array(share)
    code = scale.encode(value)
    assert code.min() >= 1 and code.max() < scale.size
    off = np.abs(np.log(scale.decode(code) / value))
    assert off.max() <= 0.5 * np.log(ratio) / scale.num_levels * (1 + 1e-9)


@settings(derandomize=True, deadline=None)
@given(scale=scales)
def test_every_level_decodes_to_itself_and_the_unknown_stays_unknown(scale: LogScale) -> None:
    codes = np.arange(scale.size, dtype=np.uint16)
    assert np.array_equal(scale.encode(scale.decode(codes)), codes)
    assert np.isnan(scale.decode(codes)[0])


@pytest.mark.parametrize(
    ("value", "code"), [(0.0, 1), (-1.0, 1), (1e-9, 1), (0.2, 1), (2.5, 63), (1e9, 63), (np.inf, 63), (np.nan, 0)]
)
def test_values_beyond_the_ends_fall_into_the_end_levels(value: float, code: int) -> None:
    assert LogScale(0.2, 2.5).encode(np.array([value])).tolist() == [code]


def test_the_coordinates_of_levels_keep_their_order() -> None:
    places = ordinal_coordinates(64)
    assert places.shape == (64, 17) and not places[0].any()
    near = np.linalg.norm(places[1:-1] - places[2:], axis=1)
    far = np.linalg.norm(places[1:-20] - places[21:], axis=1)
    assert near.max() < far.min()


# --- RR facets --------------------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None)
@given(rr=st.lists(st.one_of(st.floats(0.2, 3.0), st.just(np.nan)), max_size=60), causal=st.booleans())
def test_rr_facets_are_what_a_plain_loop_finds(rr: list[float], causal: bool) -> None:
    rr_s = np.array(rr, np.float64)
    found = rr_values(rr_s, RECENT_BEATS + 1, LONG_BEATS, 0 if causal else LONG_BEATS)
    for beat, interval in enumerate(rr_s):
        following = rr_s[beat + 1] if beat + 1 < len(rr_s) else np.nan
        recent = _mean_or_nan(np.nanmedian, rr_s[max(0, beat - RECENT_BEATS) : beat + 1])
        ahead = beat + 1 if causal else beat + 1 + LONG_BEATS
        long = _mean_or_nan(np.nanmean, rr_s[max(0, beat - LONG_BEATS) : ahead])
        expected = {
            "rr": interval,
            "rr_over_previous": interval / rr_s[beat - 1] if beat else np.nan,
            "rr_over_recent": interval / recent,
            "next_rr_over_recent": following / recent,
            "rr_over_long": interval / long,
            "next_rr_over_long": following / long,
        }
        for name, value in expected.items():
            np.testing.assert_allclose(found[name][beat], value, rtol=1e-9, err_msg=f"{name} of beat {beat}")


def _mean_or_nan(mean: Callable[[np.ndarray], float], values: np.ndarray) -> float:
    return float(mean(values)) if np.isfinite(values).any() else np.nan


# --- amplitude levels -------------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None)
@given(amplitude=amplitudes)
def test_an_amplitude_decodes_to_within_half_a_step(amplitude: list[float]) -> None:
    value = np.array(amplitude, np.float32)
    assert np.abs(dequantize(quantize(value)) - value).max() <= STEP / 2 + 1e-6


def test_amplitude_levels_are_unbiased_and_clip_at_both_ends() -> None:
    value = np.linspace(-LIMIT, LIMIT, 100_001, dtype=np.float32)[:-1]
    code = quantize(value)
    assert abs(float(np.mean(dequantize(code) - value))) < 1e-3 * STEP
    assert set(code.tolist()) == set(range(NUM_LEVELS))
    assert quantize(np.array([-99.0, -LIMIT, LIMIT, 99.0], np.float32)).tolist() == [0, 0, 127, 127]
    codes = np.arange(NUM_LEVELS, dtype=np.uint16)
    assert np.array_equal(quantize(dequantize(codes)), codes)


# --- residual codebooks -----------------------------------------------------------------------------------------------


def _waves(num: int, num_points: int = 12, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.cumsum(random.normal(size=(num, num_points)), axis=1).astype(np.float32)


def _fit(waves: np.ndarray, num_levels: int = 4, num_codes: int = 16) -> ResidualQuantizer:
    return fit_quantizer(waves, num_levels, num_codes, seed=3)


def test_each_level_of_codes_lowers_the_error() -> None:
    waves = _waves(400)
    quantizer = _fit(waves)
    codes = quantizer.encode(waves)
    assert codes.dtype == np.uint16 and codes.shape == (400, 4) and codes.max() < quantizer.codebooks.shape[1]
    errors = [
        ResidualQuantizer(quantizer.codebooks[:levels], quantizer.weight).relative_error(waves) for levels in (1, 2, 3)
    ]
    errors.append(quantizer.relative_error(waves))
    assert 1 > errors[0] > errors[1] > errors[2] > errors[3] > 0


@settings(derandomize=True, deadline=None, max_examples=25)
@given(num=st.integers(1, 40), num_codes=st.integers(1, 48), seed=st.integers(0, 5))
def test_fewer_waveforms_than_codes_still_make_a_codebook(num: int, num_codes: int, seed: int) -> None:
    waves = _waves(num, seed=seed)
    quantizer = _fit(waves, num_levels=1, num_codes=num_codes)
    assert quantizer.codebooks.shape == (1, num_codes, 12) and np.isfinite(quantizer.codebooks).all()
    assert quantizer.encode(waves).max() < num_codes
    if num <= num_codes:
        assert quantizer.relative_error(waves) < 1e-5


def test_distances_heed_the_weight() -> None:
    codebooks = np.array([[[0.0, 1.0], [1.0, 0.0]]], np.float32)
    wave = np.array([[0.9, 1.0]], np.float32)
    first = ResidualQuantizer(codebooks, np.array([1.0, 1.0], np.float32)).encode(wave)
    second = ResidualQuantizer(codebooks, np.array([10.0, 1.0], np.float32)).encode(wave)
    assert (int(first[0, 0]), int(second[0, 0])) == (0, 1)


def test_the_nearest_centroid_is_the_one_of_all_distances() -> None:
    points, centroids = _waves(300, seed=1), _waves(20, seed=2)
    distance = ((points[:, None] - centroids[None]) ** 2).sum(axis=2)
    assert np.array_equal(nearest_centroid(points, centroids), distance.argmin(axis=1))
    assert nearest_centroid(points, np.repeat(centroids[:1], 3, axis=0)).tolist() == [0] * 300


# --- signal helpers ---------------------------------------------------------------------------------------------------


def test_gaps_hold_the_last_valid_value() -> None:
    signal = np.array([np.nan, 1, np.nan, np.nan, 2, np.nan], np.float32)
    assert fill_gaps(signal).tolist() == [0, 1, 1, 1, 2, 2]
    assert fill_gaps(np.full(3, np.nan, np.float32)).tolist() == [0, 0, 0]


@settings(derandomize=True, deadline=None)
@given(values=st.lists(st.floats(-9, 9, width=32), max_size=30), width=st.integers(1, 8))
def test_the_trailing_median_looks_back_only(values: list[float], width: int) -> None:
    array = np.array(values, np.float32)
    expected = [np.median(array[max(0, place - width + 1) : place + 1]) for place in range(len(array))]
    np.testing.assert_allclose(trailing_median(array, width), np.array(expected, np.float32), rtol=1e-6)


def test_the_low_pass_keeps_what_is_slow_and_stops_what_is_fast() -> None:
    time_s = np.arange(3600) / 360
    assert np.allclose(smooth(np.full(50, 2.0, np.float32), hann_weights(360, 125)), 2)
    fast = np.sin(2 * np.pi * 170 * time_s).astype(np.float32)
    slow = np.sin(2 * np.pi * 5 * time_s).astype(np.float32)
    assert np.abs(smooth(fast, hann_weights(360, 100))[10:-10]).max() < 0.02
    assert np.abs(smooth(slow, hann_weights(360, 100)) - slow)[10:-10].max() < 0.01


def test_interpolation_holds_the_edges() -> None:
    line = np.array([0, 10, 20], np.float32)
    assert interpolate(line, np.array([-5.0, 0.0, 0.5, 1.25, 2.0, 9.0])).tolist() == [0, 0, 5, 12.5, 20, 20]
    assert interpolate(line[:1], np.array([-1.0, 0.0, 3.0])).tolist() == [0, 0, 0]
