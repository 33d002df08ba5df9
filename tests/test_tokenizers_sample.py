"""The sample tokenizer: amplitude levels that follow the past alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.tokenizers.sample import GRID_HZ, LIMIT, STEP, SampleTokenizer, dequantize
from heartlm.tokenizers.waveform import fill_gaps, hann_weights, interpolate, smooth
from tests.kernel_references import normalise
from tests.synthetic_leads import heart_lead, lead_of

TOKENIZER = SampleTokenizer()
RATES_HZ = (100.0, 128.0, 160.0, 250.0, 257.0, 360.0, 500.0, 1000.0)
NOTHING = np.empty(0)


def amplitude_codes(signal: np.ndarray, rate_hz: float) -> np.ndarray:
    return TOKENIZER.encode(lead_of(signal, NOTHING, rate_hz)).codes[:, 0]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(rate_hz=st.sampled_from(RATES_HZ), token=st.integers(0, 1100), seed=st.integers(0, 5))
def test_nothing_later_than_10_ms_changes_a_code(rate_hz: float, token: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    signal = random.normal(size=round(12 * rate_hz)).astype(np.float32)
    cut = math.ceil((token + 1) * rate_hz / GRID_HZ) + 1
    other = signal.copy()
    future = len(signal) - cut
    other[cut:] = (random.normal(0, 50, future), np.full(future, np.nan), np.zeros(future))[seed % 3]
    whole = amplitude_codes(signal, rate_hz)
    assert np.array_equal(amplitude_codes(other, rate_hz)[: token + 1], whole[: token + 1])
    assert np.array_equal(amplitude_codes(other[:cut], rate_hz)[: token + 1], whole[: token + 1])


def test_the_past_does_change_codes() -> None:
    signal = np.random.default_rng(0).normal(size=1200).astype(np.float32)
    other = signal.copy()
    other[:300] *= 3
    assert (amplitude_codes(signal, 100)[600:] != amplitude_codes(other, 100)[600:]).any()


def test_decoding_loses_at_most_half_a_step_of_the_running_amplitude_and_is_unbiased() -> None:
    lead = heart_lead(40, rate_hz=500, noise_mv=0.02)
    tokens = TOKENIZER.encode(lead)
    position = np.arange(tokens.num_tokens) * 5.0
    grid = interpolate(smooth(fill_gaps(lead.signal_mv), hann_weights(500, GRID_HZ)), position)
    normalised, scale_mv = normalise(grid)
    inside = np.abs(normalised) < LIMIT
    off = dequantize(tokens.codes[:, 0]) - normalised
    assert inside.mean() > 0.99 and np.abs(off[inside]).max() <= STEP / 2 + 1e-5
    assert abs(off[inside].mean()) < 0.05 * STEP
    assert np.array_equal(tokens.scale_mv, scale_mv)


def test_the_running_amplitude_is_the_median_of_the_last_seconds() -> None:
    swing = np.repeat(np.arange(1.0, 21.0), 100) * np.tile([-0.5, 0.5], 1000)
    normalised, scale_mv = normalise(swing.astype(np.float32))
    per_second = scale_mv.reshape(20, 100)
    assert (per_second == per_second[:, :1]).all() and per_second[0, 0] == pytest.approx(1.5)
    assert per_second[12, 0] == pytest.approx(np.median(np.arange(5, 13)), rel=0.02)
    assert np.abs(normalised).max() < 1.6


@settings(derandomize=True, deadline=None, max_examples=20)
@given(power=st.integers(-4, 6))
def test_after_the_first_second_codes_do_not_depend_on_the_gain(power: int) -> None:
    signal = heart_lead(20).signal_mv
    louder = amplitude_codes(signal * np.float32(2.0**power), 250)
    assert np.array_equal(louder[100:], amplitude_codes(signal, 250)[100:])


@pytest.mark.parametrize("rate_hz", [250.0, 360.0, 500.0])
def test_the_same_heart_at_another_rate_gives_nearly_the_same_codes(rate_hz: float) -> None:
    fine, other = (
        amplitude_codes(heart_lead(rate_hz=rate, seed=7).signal_mv, rate).astype(int) for rate in (1000.0, rate_hz)
    )
    assert len(fine) == len(other)
    assert (np.abs(fine - other) <= 1).mean() > 0.999 and (fine == other).mean() > 0.9


def test_a_token_carries_the_label_of_the_beat_in_it() -> None:
    lead = heart_lead(30, rate_hz=360)
    tokens = TOKENIZER.encode(lead)
    labelled = np.flatnonzero(tokens.beat_class >= 0)
    assert np.array_equal(tokens.beat_class[labelled], lead.annotations.beat_classes())
    assert np.abs(tokens.sample[labelled] - lead.annotations.sample).max() <= 2
    assert (np.diff(tokens.sample) > 0).all() and set(tokens.rhythm.tolist()) == {0}


@settings(derandomize=True, deadline=None)
@given(rate_hz=st.sampled_from(RATES_HZ), num_samples=st.integers(0, 3000), data=st.data())
def test_no_end_of_a_recording_is_cut_off(rate_hz: float, num_samples: int, data: st.DataObject) -> None:
    beats = data.draw(st.lists(st.integers(0, num_samples - 1), max_size=3, unique=True)) if num_samples else []
    tokens = TOKENIZER.encode(lead_of(np.ones(num_samples), np.sort(beats), rate_hz))
    assert (tokens.num_tokens - 1) * rate_hz / GRID_HZ < num_samples <= tokens.num_tokens * rate_hz / GRID_HZ
    assert tokens.num_tokens == 0 or tokens.sample[-1] < num_samples
    assert bool(beats) == bool((tokens.beat_class == 0).any())


@pytest.mark.parametrize("value", [0.0, np.nan, 7.0])
def test_a_flat_lead_is_the_middle_level(value: float) -> None:
    codes = amplitude_codes(np.full(900, value), 250)
    assert np.abs(dequantize(codes)).max() <= STEP / 2


def test_a_gap_holds_the_value_before_it() -> None:
    signal = heart_lead(20).signal_mv.copy()
    held = signal.copy()
    signal[1000:1200], held[1000:1200] = np.nan, held[999]
    assert np.array_equal(amplitude_codes(signal, 250), amplitude_codes(held, 250))


def test_it_needs_no_fitting_and_is_causal() -> None:
    TOKENIZER.fit([])
    assert TOKENIZER.causal and not TOKENIZER.needs_beats and TOKENIZER.needs_signal
    places = TOKENIZER.geometry()
    assert [len(facet) for facet in places] == [facet.size for facet in TOKENIZER.facets] == [128]
