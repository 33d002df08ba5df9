"""The beat tokenizer: what its codes hold, that they do not look ahead, and what they do not depend on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.ecg.recording import Annotations
from heartlm.errors import HeartlmError
from heartlm.tokenizers import comparisons, waveform
from heartlm.tokenizers.base import Lead
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.waveform import DOMINANT_EVERY, beat_waveforms, deviations
from tests.synthetic_leads import heart_lead, lead_of

NUM_BEATS = 2 * DOMINANT_EVERY + 16
RATE_HZ = 250.0
LOOK_AHEAD = math.ceil((0.48 + 1 / 125) * RATE_HZ)
"""Samples after the R peak that a code may depend on: the window, and the grid step the low-pass reaches beyond it."""


def fitted(*, causal_only: bool) -> BeatTokenizer:
    tokenizer = BeatTokenizer(num_codes=16, causal_only=causal_only)
    tokenizer.fit([heart_lead(seed=seed, noise_mv=0.02) for seed in range(3)])
    return tokenizer


OFFLINE, CAUSAL = fitted(causal_only=False), fitted(causal_only=True)
WHOLE = heart_lead(NUM_BEATS, seed=9, noise_mv=0.02)


def causal_columns(tokenizer: BeatTokenizer) -> np.ndarray:
    return np.array([facet.causal for facet in tokenizer.facets])


def changed_after(lead: Lead, cut: int, last_beat: int, seed: int) -> Lead:
    """The same lead up to sample `cut` and beat `last_beat`; from there on another heart, or NaN, or nothing."""
    random = np.random.default_rng(seed)
    signal = lead.signal_mv.copy()
    future = len(signal) - cut
    signal[cut:] = (random.normal(0, 5, future), np.full(future, np.nan), np.full(future, 1e4))[seed % 3]
    later = np.unique(random.integers(lead.annotations.sample[last_beat] + 5, len(signal), 30))
    sample = np.concatenate([lead.annotations.sample[: last_beat + 1], later])
    return lead_of(signal[:cut] if seed % 4 == 3 else signal, sample[sample < len(signal)], RATE_HZ)


# --- no look ahead ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [OFFLINE, CAUSAL], ids=["offline", "causal"])
@settings(derandomize=True, deadline=None, max_examples=40)
@given(beat=st.integers(0, NUM_BEATS - 1), seed=st.integers(0, 11))
def test_nothing_after_a_beats_window_changes_its_causal_codes(tokenizer: BeatTokenizer, beat: int, seed: int) -> None:
    cut = int(WHOLE.annotations.sample[beat]) + LOOK_AHEAD
    other = tokenizer.encode(changed_after(WHOLE, cut, beat, seed))
    whole, causal = tokenizer.encode(WHOLE), causal_columns(tokenizer)
    assert np.array_equal(other.codes[: beat + 1, causal], whole.codes[: beat + 1, causal])
    assert np.array_equal(other.scale_mv[: beat + 1], whole.scale_mv[: beat + 1])


def test_the_causal_tokenizer_says_so_and_the_offline_one_names_the_facets_that_look_ahead() -> None:
    assert CAUSAL.causal and not OFFLINE.causal
    ahead = {facet.name for facet in OFFLINE.facets if not facet.causal}
    known = {"deviation_0", "deviation_1", "next_rr_over_recent", "rr_over_long", "next_rr_over_long"}
    assert ahead == known | (set(comparisons.OFFLINE) - {"qrs_width"})


def test_facets_said_to_look_ahead_do() -> None:
    whole, differ = OFFLINE.encode(WHOLE).codes, np.zeros(len(OFFLINE.facets), bool)
    for beat in range(10, NUM_BEATS - 10):
        other = OFFLINE.encode(changed_after(WHOLE, int(WHOLE.annotations.sample[beat]) + LOOK_AHEAD, beat, 0))
        differ |= (other.codes[: beat + 1] != whole[: beat + 1]).any(axis=0)
    assert differ[~causal_columns(OFFLINE)].all()


def test_the_dominant_beat_is_the_median_around() -> None:
    shape = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    offline, causal = deviations(shape, causal=False), deviations(shape, causal=True)
    np.testing.assert_allclose(offline[7], shape[7] - np.median(shape, axis=0), rtol=1e-5)
    assert not causal[0].any(), "the first beat is all there is to compare it with"
    np.testing.assert_allclose(causal[40], shape[40] - np.median(shape[: DOMINANT_EVERY + 1], axis=0), rtol=1e-5)


@pytest.mark.parametrize("tokenizer", [OFFLINE, CAUSAL], ids=["offline", "causal"])
@pytest.mark.parametrize("num_beats", [1, DOMINANT_EVERY, 1500])
def test_beats_are_encoded_block_by_block_as_all_at_once(
    tokenizer: BeatTokenizer, num_beats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = heart_lead(num_beats, seed=4, noise_mv=0.05)
    whole = tokenizer.encode(lead)
    monkeypatch.setattr(waveform, "BLOCK_BEATS", 2 * DOMINANT_EVERY)
    parts = tokenizer.encode(lead)
    same = slice(None) if tokenizer.causal_only else slice(11)  # offline a beat is compared with those of its block
    assert np.array_equal(parts.codes[:, same], whole.codes[:, same]) and np.array_equal(parts.scale_mv, whole.scale_mv)
    shape = tokenizer.waveforms(lead).shape
    assert tokenizer.quantizer is not None and tokenizer.deviation_quantizer is not None
    assert np.array_equal(tokenizer.quantizer.encode(shape), whole.codes[:, :4])
    apart = deviations(shape, tokenizer.causal_only)
    assert np.array_equal(tokenizer.deviation_quantizer.encode(apart), whole.codes[:, 4:6])


# --- what codes hold --------------------------------------------------------------------------------------------------


def test_codes_stay_below_the_sizes_of_their_facets() -> None:
    tokens = OFFLINE.encode(WHOLE)
    assert tokens.codes.dtype == np.uint16 and tokens.codes.shape == (NUM_BEATS, len(OFFLINE.facets))
    assert (tokens.codes < [facet.size for facet in OFFLINE.facets]).all()


def test_tokens_carry_the_labels_of_their_beats() -> None:
    tokens = OFFLINE.encode(WHOLE)
    assert np.array_equal(tokens.sample, WHOLE.annotations.sample)
    assert np.array_equal(tokens.beat_class, WHOLE.annotations.beat_classes())
    assert sorted(set(tokens.beat_class.tolist())) == [0, 2] and set(tokens.rhythm.tolist()) == {0}


def test_decoding_what_it_was_fitted_on_loses_what_it_says() -> None:
    leads = [heart_lead(seed=seed, noise_mv=0.02) for seed in range(3)]
    shape = np.concatenate([OFFLINE.waveforms(lead).shape for lead in leads])
    decoded = np.concatenate([OFFLINE.decode(OFFLINE.encode(lead).codes) for lead in leads])
    error = np.sqrt(np.mean((decoded - shape) ** 2) / np.mean(shape**2))
    assert OFFLINE.decode_error == pytest.approx(error, abs=1e-5)
    assert error < 0.06


def test_a_beat_decodes_to_its_millivolts() -> None:
    tokens, waves = OFFLINE.encode(WHOLE), OFFLINE.waveforms(WHOLE)
    decoded = OFFLINE.decode(tokens.codes, tokens.scale_mv) + waves.baseline_mv[:, None]
    place = WHOLE.annotations.sample[5:-5, None] + np.round(OFFLINE.window.times_s * RATE_HZ).astype(int)
    lost_mv = np.sqrt(np.mean((decoded[5:-5] - WHOLE.signal_mv[place]) ** 2))
    assert lost_mv < 0.04, "of a heart whose R peak is 1.1 mV, with noise of 0.02 mV"


def test_rr_intervals_decode_to_within_half_a_level() -> None:
    codes = OFFLINE.encode(WHOLE).codes[:, OFFLINE.num_levels + OFFLINE.num_deviation_levels]
    decoded = OFFLINE.rr_scales["rr"].decode(codes)
    rr_s = np.diff(WHOLE.annotations.sample) / RATE_HZ
    assert np.isnan(decoded[0])
    assert np.abs(np.log(decoded[1:] / rr_s)).max() <= 0.5 * np.log(2.5 / 0.2) / 63 + 1e-9


def test_the_first_shape_code_tells_ventricular_beats_from_normal_ones() -> None:
    tokens = OFFLINE.encode(WHOLE)
    normal, ventricular = (set(tokens.codes[tokens.beat_class == kind, 0].tolist()) for kind in (0, 2))
    assert normal and ventricular and not normal & ventricular


def test_the_geometry_has_a_place_for_every_code() -> None:
    places = OFFLINE.geometry()
    assert [len(facet) for facet in places] == [facet.size for facet in OFFLINE.facets]
    assert all(facet.dtype == np.float32 and np.isfinite(facet).all() for facet in places)
    assert np.allclose(
        places[0] / places[0].std(), OFFLINE.quantizer.codebooks[0] / OFFLINE.quantizer.codebooks[0].std()
    )


def test_fitting_twice_gives_one_tokenizer_and_another_seed_another() -> None:
    def hash_of(seed: int) -> str:
        tokenizer = BeatTokenizer(num_codes=8)
        tokenizer.fit([heart_lead(seed=1), heart_lead(seed=2)], seed)
        return tokenizer.content_hash()

    assert hash_of(0) == hash_of(0) != hash_of(1)


# --- what codes do not depend on --------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=20)
@given(power=st.integers(-5, 5), offset_mv=st.sampled_from([0.0, 0.25, -0.5]))
def test_codes_do_not_depend_on_gain_and_offset(power: int, offset_mv: float) -> None:
    gain = 2.0**power
    signal = (WHOLE.signal_mv + np.float32(offset_mv)) * np.float32(gain)
    tokens, whole = OFFLINE.encode(lead_of(signal, WHOLE.annotations.sample)), OFFLINE.encode(WHOLE)
    same = tokens.codes == whole.codes
    assert same.all() if offset_mv == 0 else same.mean() > 0.99
    np.testing.assert_allclose(tokens.scale_mv, whole.scale_mv * gain, rtol=1e-4)


@pytest.mark.parametrize("rate_hz", [200.0, 250.0, 360.0, 500.0])
def test_the_same_heart_at_another_rate_gives_nearly_the_same_codes(rate_hz: float) -> None:
    fine, other = heart_lead(rate_hz=1000, seed=7), heart_lead(rate_hz=rate_hz, seed=7)
    apart = OFFLINE.waveforms(other).shape - OFFLINE.waveforms(fine).shape
    assert np.sqrt(np.mean(apart**2)) < 0.015 * np.sqrt(np.mean(OFFLINE.waveforms(fine).shape ** 2))
    same = (OFFLINE.encode(other).codes == OFFLINE.encode(fine).codes).mean(axis=0)
    of_facet = dict(zip((facet.name for facet in OFFLINE.facets), same, strict=True))
    assert of_facet["shape_0"] > 0.97 and of_facet["rr"] == of_facet["rr_over_recent"] == 1


# --- odd input --------------------------------------------------------------------------------------------------------


def test_a_gap_changes_only_the_beats_that_touch_it() -> None:
    signal, sample = WHOLE.signal_mv.copy(), WHOLE.annotations.sample
    signal[sample[30] - 10 : sample[30] + 10] = np.nan
    shape = beat_waveforms(signal, sample, RATE_HZ, OFFLINE.window)
    whole = OFFLINE.waveforms(WHOLE)
    changed = np.flatnonzero(
        (shape.shape * shape.scale_mv[:, None] != whole.shape * whole.scale_mv[:, None]).any(axis=1)
    )
    assert np.isfinite(shape.shape).all() and changed[0] == 30
    assert np.array_equal(shape.shape[:30], whole.shape[:30])
    assert np.abs(shape.scale_mv / whole.scale_mv - 1).max() < 0.05, "one beat does not move the running median"


@pytest.mark.parametrize("signal", [np.zeros(2000), np.full(2000, np.nan), np.full(2000, 3.0)], ids=["0", "nan", "3"])
def test_a_flat_lead_gives_the_code_nearest_to_nothing(signal: np.ndarray) -> None:
    tokens = OFFLINE.encode(lead_of(signal, np.array([300, 500, 700])))
    assert (tokens.codes[:, :6] == tokens.codes[0, :6]).all()
    assert np.isfinite(tokens.scale_mv).all() and np.abs(OFFLINE.decode(tokens.codes, tokens.scale_mv)).max() < 1e-3


def test_beats_at_the_very_ends_and_recordings_shorter_than_a_window() -> None:
    signal = WHOLE.signal_mv
    ends = OFFLINE.encode(lead_of(signal, np.array([0, 1, len(signal) - 2, len(signal) - 1])))
    assert ends.codes.shape == (4, len(OFFLINE.facets)) and np.isfinite(ends.scale_mv).all()
    for num_samples in (1, 2, 5, 30):
        short = OFFLINE.encode(lead_of(signal[:num_samples], np.array([0])))
        assert short.codes.shape == (1, len(OFFLINE.facets)) and (short.codes[0, 6:11] == 0).all(), (
            "one beat has no interval"
        )


@pytest.mark.parametrize("num_samples", [0, 1, 2000])
def test_no_beats_give_no_tokens(num_samples: int) -> None:
    tokens = OFFLINE.encode(lead_of(np.ones(num_samples), np.empty(0)))
    assert tokens.codes.shape == (0, len(OFFLINE.facets)) and tokens.num_tokens == 0
    assert OFFLINE.decode(tokens.codes, tokens.scale_mv).shape == (0, 96)


def test_beats_that_nobody_labelled_stay_unlabelled() -> None:
    known = WHOLE.annotations
    unlabelled = Annotations(known.rate_hz, known.sample, known.symbol, beats_labelled=False)
    tokens = OFFLINE.encode(Lead(unlabelled, WHOLE.signal_mv))
    assert set(tokens.beat_class.tolist()) == set(tokens.rhythm.tolist()) == {-1}


def test_a_tokenizer_without_codes_of_the_deviation() -> None:
    tokenizer = BeatTokenizer(num_deviation_levels=0, num_codes=8)
    tokenizer.fit([WHOLE])
    codes = tokenizer.encode(WHOLE).codes
    assert codes.shape == (WHOLE.annotations.num_beats, len(tokenizer.facets))
    assert [len(each) for each in tokenizer.geometry()] == [facet.size for facet in tokenizer.facets]
    again = BeatTokenizer.restore(tokenizer.settings(), tokenizer.arrays())
    np.testing.assert_array_equal(again.encode(WHOLE).codes, codes)


def test_it_asks_to_be_fitted_and_for_beats_to_be_fitted_on() -> None:
    with pytest.raises(HeartlmError, match="fit it first"):
        BeatTokenizer().encode(WHOLE)
    for leads in ([], [lead_of(np.ones(500), np.empty(0))]):
        with pytest.raises(HeartlmError, match="no beats to fit"):
            BeatTokenizer().fit(leads)


def test_a_few_beats_are_enough_to_fit_the_codebooks() -> None:
    tokenizer = BeatTokenizer()
    tokenizer.fit([heart_lead(10)])
    assert tokenizer.decode_error == pytest.approx(0, abs=1e-4)
