"""The compiled loops of the tokenizers: every variant of the machine gives what NumPy gives, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.databases.database import open_database
from heartlm.tokenizers.quantize import fit_quantizer, prepare_codebooks, residual_codes, sums_by_code
from heartlm.tokenizers.rhythm import RHYTHM_SCALES
from heartlm.tokenizers.rr import CAUSAL_SCALES, OFFLINE_SCALES, LogScale, rr_codes, trailing_median
from heartlm.tokenizers.sample import GRID_HZ, amplitude_levels
from heartlm.tokenizers.waveform import BeatWindow, beat_waveforms, hann_weights, stretch_medians
from tests.conftest import shared_data
from tests.kernel_references import (
    amplitude_levels_reference,
    cut_beats_reference,
    each_variant,
    residual_codes_reference,
    rr_codes_reference,
    stretch_medians_reference,
    trailing_median_reference,
)
from tests.synthetic_leads import heart_lead

examples = settings(derandomize=True, deadline=None, max_examples=40)
seeds = st.integers(0, 2**32 - 1)


def waves(random: np.random.Generator, count: int, num_points: int) -> np.ndarray:
    """Smooth shapes, like beats, with a little noise."""
    basis = np.sin(np.outer(np.arange(1, 7), np.linspace(0, 3, num_points)))
    shapes = random.normal(size=(count, 6)) @ basis + random.normal(0, 0.1, (count, num_points))
    return shapes.astype(np.float32)


# --- residual codes ---------------------------------------------------------------------------------------------------


@examples
@given(seeds, st.integers(1, 100), st.integers(1, 300), st.integers(1, 4))
def test_codes_name_the_nearest_centroid_of_what_is_left(
    seed: int, num_points: int, num_codes: int, num_levels: int
) -> None:
    random = np.random.default_rng(seed)
    centroids = np.stack([waves(random, num_codes, num_points) * 2.0**-level for level in range(num_levels)])
    vectors, weight = waves(random, 37, num_points), random.uniform(0.5, 2, num_points).astype(np.float32)
    codebooks = prepare_codebooks(centroids)
    codes = residual_codes_reference(vectors, weight, codebooks)
    rest = vectors * weight
    for level in range(num_levels):
        scores = rest.astype(np.float64) @ centroids[level].T - 0.5 * (centroids[level].astype(np.float64) ** 2).sum(1)
        chosen = np.take_along_axis(scores, codes[:, level : level + 1].astype(np.int64), axis=1)
        assert np.all(scores.max(axis=1, keepdims=True) - chosen <= 1e-12 * np.abs(scores).max())
        rest -= centroids[level, codes[:, level]]
    for _ in each_variant():
        assert np.array_equal(residual_codes(vectors, weight, codebooks), codes)


@examples
@given(seeds)
def test_of_equal_centroids_the_first_is_named(seed: int) -> None:
    random = np.random.default_rng(seed)
    few = waves(random, 9, 96)
    repeated = random.permutation(np.repeat(np.arange(9), 20))
    codebooks, vectors = prepare_codebooks(few[repeated][None]), waves(random, 50, 96)
    first = np.array([np.flatnonzero(repeated == repeated[place])[0] for place in range(len(repeated))])
    for _ in each_variant():
        codes = residual_codes(vectors, np.ones(96, np.float32), codebooks)
        assert np.array_equal(first[codes], codes)
    assert np.array_equal(codes, residual_codes_reference(vectors, np.ones(96, np.float32), codebooks))


def test_vectors_that_lie_between_two_centroids_get_the_code_that_double_precision_gives() -> None:
    random = np.random.default_rng(0)
    centroids = waves(random, 64, 96)
    pairs = random.integers(0, 64, (2000, 2))
    vectors = ((centroids[pairs[:, 0]].astype(np.float64) + centroids[pairs[:, 1]]) / 2).astype(np.float32)
    codebooks, weight = prepare_codebooks(centroids[None]), np.ones(96, np.float32)
    expected = residual_codes_reference(vectors, weight, codebooks)
    exact = ((vectors[:, None].astype(np.float64) - centroids[None]) ** 2).sum(axis=2)
    assert np.all(np.take_along_axis(exact, expected.astype(np.int64), axis=1)[:, 0] <= exact.min(axis=1) + 1e-12)
    for _ in each_variant():
        assert np.array_equal(residual_codes(vectors, weight, codebooks), expected)


@examples
@given(seeds, st.integers(1, 300), st.integers(1, 40))
def test_sums_of_codes_are_numpys(seed: int, num_vectors: int, num_codes: int) -> None:
    random = np.random.default_rng(seed)
    vectors, codes = waves(random, num_vectors, 11), random.integers(0, num_codes, num_vectors).astype(np.uint16)
    expected = np.zeros((num_codes, 11))
    np.add.at(expected, codes, vectors)
    for _ in each_variant():
        assert np.array_equal(sums_by_code(vectors, codes, num_codes), expected)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e6, np.nan])
def test_odd_vectors_get_a_code(value: float) -> None:
    codebooks = prepare_codebooks(waves(np.random.default_rng(1), 20, 96)[None])
    vectors = np.full((3, 96), value, np.float32)
    expected = residual_codes_reference(vectors, np.ones(96, np.float32), codebooks)
    for _ in each_variant():
        assert np.array_equal(residual_codes(vectors, np.ones(96, np.float32), codebooks), expected)


# --- medians ----------------------------------------------------------------------------------------------------------


@examples
@given(
    values=st.lists(st.one_of(st.floats(-3, 3), st.sampled_from([np.nan, 0.5, 1.0])), max_size=80),
    width=st.integers(1, 40),
)
def test_the_trailing_median_is_numpys(values: list[float], width: int) -> None:
    array = np.array(values, np.float64)
    expected = trailing_median_reference(array, width)
    for _ in each_variant():
        assert np.array_equal(trailing_median(array, width), expected, equal_nan=True)


@examples
@given(seeds, st.integers(1, 400), st.integers(1, 40), st.sampled_from([0, 2, 20]))
def test_medians_of_stretches_are_numpys(seed: int, num_rows: int, step: int, digits: int) -> None:
    """With equal values and sudden changes among them, and whatever the stretches have in common."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(num_rows, 5)) + 3 * (np.arange(num_rows) > num_rows // 2)[:, None]
    rows = np.clip(np.round(rows, digits), -2, 4).astype(np.float32)
    first = np.maximum(np.arange(0, num_rows, step) - random.integers(0, 100), 0)
    last = np.minimum(np.arange(0, num_rows, step) + random.integers(1, 100), num_rows)
    expected = stretch_medians_reference(rows, first, last)
    for _ in each_variant():
        assert np.array_equal(stretch_medians(rows, first, last), expected)


def test_medians_of_more_rows_than_are_taken_at_once_are_numpys() -> None:
    rows = np.cumsum(np.random.default_rng(0).normal(size=(10_000, 3)), axis=0).astype(np.float32)
    first = np.maximum(np.arange(0, len(rows), 32) - 300, 0)
    last = np.minimum(np.arange(0, len(rows), 32) + 332, len(rows))
    expected = stretch_medians_reference(rows, first, last)
    for _ in each_variant():
        assert np.array_equal(stretch_medians(rows, first, last), expected)


# --- intervals --------------------------------------------------------------------------------------------------------


@examples
@given(seeds, st.integers(0, 700), st.sampled_from([128.0, 250.0, 360.0]), st.booleans())
def test_levels_of_intervals_are_numpys(seed: int, num_beats: int, rate_hz: float, causal: bool) -> None:
    random = np.random.default_rng(seed)
    sample = np.cumsum(random.integers(1, round(2 * rate_hz), num_beats))
    for scales in (CAUSAL_SCALES, OFFLINE_SCALES, RHYTHM_SCALES):
        expected = rr_codes_reference(sample, rate_hz, scales, causal)
        assert not expected[:1].any() or scales is OFFLINE_SCALES, "before the first beat there is no interval"
        for _ in each_variant():
            assert np.array_equal(rr_codes(sample, rate_hz, scales, causal), expected)


@pytest.mark.parametrize("scale", {*OFFLINE_SCALES.values(), *RHYTHM_SCALES.values()}, ids=str)
def test_levels_begin_where_the_logarithm_reaches_them(scale: LogScale) -> None:
    value = np.concatenate([scale.edges, np.nextafter(scale.edges, 0), np.geomspace(0.01, 100, 5000), [0.7, 1.4]])
    place = np.log(value / scale.low) / np.log(scale.high / scale.low) * scale.num_levels
    assert np.array_equal(scale.encode(value), np.clip(np.floor(place), 0, scale.num_levels - 1) + 1)


# --- waveforms --------------------------------------------------------------------------------------------------------

WINDOW = BeatWindow(scale_beats=7)


def compare_waveforms(signal: np.ndarray, sample: np.ndarray, rate_hz: float) -> None:
    offsets, weights = WINDOW.times_s * rate_hz, hann_weights(rate_hz, WINDOW.rate_hz)
    expected = cut_beats_reference(signal, sample, offsets, weights, scale_beats=7, clip=4.0)
    for _ in each_variant():
        found = beat_waveforms(signal, sample, rate_hz, WINDOW)
        for array, same in zip(vars(found).values(), expected, strict=True):
            assert array.dtype == same.dtype and np.array_equal(array, same)


@pytest.mark.parametrize("rate_hz", [128.0, 200.0, 250.0, 360.0, 500.0, 1000.0])
def test_waveforms_are_numpys_at_every_rate(rate_hz: float) -> None:
    lead = heart_lead(20, rate_hz=rate_hz, noise_mv=0.05)
    compare_waveforms(lead.signal_mv, lead.annotations.sample, rate_hz)


@examples
@given(seeds, st.integers(1, 700), st.floats(60, 1500), st.integers(1, 12))
def test_waveforms_are_numpys_at_the_ends_and_of_short_leads(
    seed: int, num_samples: int, rate_hz: float, num_beats: int
) -> None:
    random = np.random.default_rng(seed)
    signal = random.normal(size=num_samples).astype(np.float32)
    compare_waveforms(signal, np.sort(random.integers(0, num_samples, num_beats)), rate_hz)


def test_flat_leads_have_flat_waveforms() -> None:
    compare_waveforms(np.full(900, 2.5, np.float32), np.array([0, 300, 899]), 300.0)


# --- amplitude levels -------------------------------------------------------------------------------------------------


def compare_levels(signal: np.ndarray, rate_hz: float) -> None:
    expected = amplitude_levels_reference(signal, rate_hz, hann_weights(rate_hz, GRID_HZ))
    for _ in each_variant():
        for array, same in zip(amplitude_levels(signal, rate_hz), expected, strict=True):
            assert array.dtype == same.dtype and np.array_equal(array, same)


@pytest.mark.parametrize("rate_hz", [50.0, 128.0, 250.0, 360.0, 500.0, 1000.0])
def test_levels_are_numpys_at_every_rate(rate_hz: float) -> None:
    compare_levels(heart_lead(20, rate_hz=rate_hz, noise_mv=0.05).signal_mv, rate_hz)


@examples
@given(seeds, st.integers(0, 1500), st.floats(40, 1500))
def test_levels_are_numpys_of_short_leads(seed: int, num_samples: int, rate_hz: float) -> None:
    random = np.random.default_rng(seed)
    compare_levels((random.normal(size=num_samples) + np.arange(num_samples) / 300).astype(np.float32), rate_hz)


@pytest.mark.parametrize("value_mv", [0.0, -3.0, 1e5])
def test_levels_of_flat_leads_are_numpys(value_mv: float) -> None:
    compare_levels(np.full(3000, value_mv, np.float32), 360.0)


# --- real recordings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record_id", ["105", "207", "232"])
def test_a_real_recording_gives_the_same_in_every_variant(record_id: str) -> None:
    """Noise, fibrillation and premature beats; a tokenizer of 256 codes is fitted on the recording itself."""
    database = open_database(shared_data("mitdb"))
    recording, annotations = database.recording(record_id), database.annotations(record_id)
    assert annotations is not None
    signal, sample = recording.signal(leads=[0])[0], annotations.sample[:1500]
    compare_waveforms(signal, sample, recording.rate_hz)
    compare_levels(signal[:50_000], recording.rate_hz)
    shape = beat_waveforms(signal, sample, recording.rate_hz, WINDOW).shape
    first, last = np.maximum(np.arange(0, 1500, 32) - 300, 0), np.minimum(np.arange(0, 1500, 32) + 332, len(shape))
    medians = stretch_medians_reference(shape, first, last)
    weight = np.ones(shape.shape[1], np.float32)
    quantizer = fit_quantizer(shape, num_levels=4, num_codes=256, seed=0, num_rounds=2)
    codebooks = prepare_codebooks(quantizer.codebooks)
    codes = residual_codes_reference(shape, weight, codebooks)
    for _ in each_variant():
        assert np.array_equal(stretch_medians(shape, first, last), medians)
        assert np.array_equal(residual_codes(shape, weight, codebooks), codes)
