"""How beats compare with the others of their recording: rhythm, QRS complex, T and P wave."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.tokenizers import comparisons
from heartlm.tokenizers.comparisons import (
    AROUND,
    CAUSAL,
    EVERY,
    IRREGULAR,
    LONG,
    LOOK_BACK,
    NEAR,
    OFFLINE,
    SCALES,
    STEADY,
    LinearScale,
    codes_of,
    morphology_values,
    rhythm_values,
)

TIMES_S = np.arange(-35, 61) / 125


def bump(centre_s: float, width_s: float) -> np.ndarray:
    return np.exp(-(((TIMES_S - centre_s) / width_s) ** 2)).astype(np.float32)


QRS, WIDE, P_WAVE, T_WAVE = bump(0, 0.02), bump(0.02, 0.06), bump(-0.15, 0.03), bump(0.25, 0.06)


def beats(num: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Normal beats with noise, and intervals."""
    random = np.random.default_rng(seed)
    shape = QRS + 0.2 * P_WAVE + 0.3 * T_WAVE + random.normal(0, 0.01, (num, len(TIMES_S))).astype(np.float32)
    return shape.astype(np.float32), random.uniform(0.7, 0.9, num)


# --- levels -----------------------------------------------------------------------------------------------------------


@given(share=st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_a_value_decodes_to_within_half_a_level(share: list[float]) -> None:
    scale = LinearScale(-1.0, 3.0)
    value = np.array([-1 + 4 * each for each in share], np.float32)
    assert np.abs(scale.decode(scale.encode(value)) - value).max() <= 4 / 31 / 2 + 1e-5


def test_values_beyond_the_ends_and_unknown_ones() -> None:
    scale = LinearScale(0.0, 1.0, 4)
    value = np.array([-5, 0.1, 0.9, 7, np.inf, -np.inf, np.nan], np.float32)
    assert scale.encode(value).tolist() == [1, 1, 4, 4, 4, 1, 0]
    assert math.isnan(scale.decode(np.array([0]))[0]) and scale.size == 5


# --- rhythm -----------------------------------------------------------------------------------------------------------


def mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


@settings(derandomize=True, deadline=None, max_examples=30)
@given(rr=st.lists(st.floats(0.1, 5.0), max_size=60), causal=st.booleans())
def test_rhythm_is_what_a_plain_loop_finds(rr: list[float], causal: bool) -> None:
    rr_s = np.array([math.nan, *rr])
    found = rhythm_values(rr_s, causal)
    kept = np.clip(rr_s, 0.2, 4.0)
    change = np.abs(np.log(kept) - np.log(np.append(np.nan, kept[:-1])))
    for place in range(len(rr_s)):

        def near(values: np.ndarray, beats: int, place: int = place) -> np.ndarray:
            first = place - 2 * beats if causal and beats < LONG else place - beats
            return values[max(first, 0) : place + 1 + (0 if causal else beats)]

        moving = near(change, AROUND)
        known = moving[~np.isnan(moving)]
        expected = {
            "rr_over_mean": math.log(kept[place] / mean(near(kept, LONG))) if place else math.nan,
            "rr_over_near": math.log(kept[place] / mean(near(kept, NEAR))) if place else math.nan,
            "irregularity": float(np.median(known)) if len(known) else math.nan,
            "irregular_share": mean(np.where(np.isnan(moving), np.nan, moving > IRREGULAR)),
        }
        for name, value in expected.items():
            assert found[name][place] == pytest.approx(value, abs=1e-9, nan_ok=True), name
    assert ("next_rr_over_mean" in found) != causal


def test_the_next_interval_is_that_of_the_next_beat() -> None:
    rr_s = np.array([np.nan, 0.8, 0.4, 1.2, 0.8])
    found = rhythm_values(rr_s, causal=False)
    difference = found["next_rr_over_mean"][1:-1] - found["rr_over_mean"][2:]
    assert np.abs(difference).max() < 1e-12 and math.isnan(found["next_rr_over_mean"][-1])


@pytest.mark.parametrize("causal", [False, True])
def test_a_tachycardia_is_told_by_how_it_began_and_ended(causal: bool) -> None:
    begin, stop = 200, 900
    rr_s = np.random.default_rng(0).normal(0.8, 0.01, 1200)
    rr_s[begin:stop] /= 2
    rr_s[325::50] *= 0.7  # premature beats change nothing
    found = rhythm_values(rr_s, causal)
    late = STEADY - 1 + STEADY // 2 if causal else 0
    inside = slice(begin + late, stop)
    assert np.abs(found["last_sudden_change"][inside] + np.log(2)).max() < 0.1
    assert (found["last_sudden_change"][: begin + late] == 0).all()
    assert (found["last_sudden_change"][stop + late + 2 :] > 0.5).all(), "the noise may put it a beat or two off"
    if not causal:
        assert np.abs(found["next_sudden_change"][begin:stop] - np.log(2)).max() < 0.1
        assert (found["next_sudden_change"][stop + 2 :] == 0).all()


def test_a_rate_that_changes_slowly_changes_never_suddenly() -> None:
    slowly = np.concatenate([np.full(50, 0.9), np.geomspace(0.9, 0.45, 60), np.full(50, 0.45)])
    assert (rhythm_values(slowly, causal=False)["last_sudden_change"] == 0).all()


@settings(derandomize=True, deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), num=st.integers(1, 120), changed=st.integers(1, 119))
def test_the_causal_form_does_not_look_ahead(seed: int, num: int, changed: int) -> None:
    random = np.random.default_rng(seed)
    rr_s = random.uniform(0.3, 1.5, num)
    other = rr_s.copy()
    other[changed:] = random.uniform(0.3, 1.5, len(other[changed:]))
    one, two = rhythm_values(rr_s, causal=True), rhythm_values(other, causal=True)
    for name, values in one.items():
        np.testing.assert_array_equal(values[:changed], two[name][:changed], err_msg=name)


def test_slow_intervals_are_the_longest_tenth_around() -> None:
    rr_s = np.where(np.arange(400) % 5 == 0, 1.2, 0.6)
    found = rhythm_values(rr_s, causal=False)["rr_over_slow"]
    np.testing.assert_allclose(found, np.log(rr_s / 1.2), atol=1e-9)


# --- waveforms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_a_beat_without_its_p_wave_and_a_wide_one_are_told(causal: bool) -> None:
    shape, rr_s = beats(400)
    no_p, wide = slice(200, 400, 20), slice(210, 400, 20)
    shape[no_p] -= 0.2 * P_WAVE
    shape[wide] += WIDE - QRS - 0.2 * P_WAVE
    found = morphology_values(shape, rr_s, TIMES_S, 0, causal)
    usual = np.ones(400, bool)
    usual[:100] = usual[no_p] = usual[wide] = False
    assert found["p_correlation"][usual].min() > 0.8 and np.abs(found["p_correlation"][no_p]).max() < 0.6
    assert found["p_difference"][no_p].min() > found["p_difference"][usual].max()
    assert found["qrs_correlation"][usual].min() > 0.95 > found["qrs_correlation"][wide].max()
    assert found["qrs_width_over_usual"][wide].min() > 0.5 > found["qrs_width_over_usual"][usual].max()
    assert found["qrs_difference"][wide].min() > 3 * found["qrs_difference"][usual].max()
    assert (found["p_consistency"][100:] > 0.8).all()


def test_p_waves_are_compared_with_those_of_slow_beats() -> None:
    """As in a patient whose atrial runs outnumber the sinus beats: the usual P wave is the ectopic one."""
    shape, rr_s = beats(400)
    sinus = np.zeros(400, bool)
    sinus[::4] = True
    shape[~sinus] -= 0.4 * P_WAVE
    rr_s[sinus] += 0.8
    found = morphology_values(shape, rr_s, TIMES_S, 0, causal=False)
    assert found["p_correlation"][sinus].min() > 0.8 and found["p_correlation"][~sinus].max() < -0.8
    assert found["p_correlation_usual"][~sinus].min() > 0.8, "seven in ten beats have the ectopic P wave"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num", [1, 2, 19, EVERY, EVERY + 1])
def test_a_few_beats_and_flat_ones_have_values(num: int, causal: bool) -> None:
    shape, rr_s = beats(num)
    rr_s[0] = np.nan
    for waveforms in (shape, np.zeros_like(shape)):
        values = rhythm_values(rr_s, causal) | morphology_values(waveforms, rr_s, TIMES_S, 0, causal)
        names = CAUSAL if causal else OFFLINE
        codes = codes_of(values, names)
        assert codes.shape == (num, len(names)) and (codes < [SCALES[name].size for name in names]).all()


@given(power=st.integers(-6, 6))
@settings(derandomize=True, deadline=None, max_examples=10)
def test_the_unit_of_the_waveform_is_of_no_matter(power: int) -> None:
    shape, rr_s = beats(100)
    values = [
        morphology_values(each, rr_s, TIMES_S, 0, causal=False) for each in (shape, shape * np.float32(2.0**power))
    ]
    for name in values[0].keys() - {"p_difference", "qrs_width"}:
        np.testing.assert_allclose(values[0][name], values[1][name], atol=2e-2, err_msg=name)


def test_causal_blocks_give_what_the_whole_gives() -> None:
    shape, rr_s = beats(LOOK_BACK + 5 * EVERY + 7)
    whole = morphology_values(shape, rr_s, TIMES_S, 0, causal=True)
    for begin in (2 * EVERY, LOOK_BACK // EVERY * EVERY + 2 * EVERY):
        first = max(begin - LOOK_BACK, 0)
        part = morphology_values(shape[first:], rr_s[first:], TIMES_S, begin - first, causal=True)
        for name, values in part.items():
            assert np.array_equal(values, whole[name][begin:]), name


def test_every_comparison_has_levels_and_a_form() -> None:
    shape, rr_s = beats(50)
    for causal, names in ((False, OFFLINE), (True, CAUSAL)):
        values = rhythm_values(rr_s, causal) | morphology_values(shape, rr_s, TIMES_S, 0, causal)
        assert set(values) == set(names)
    assert set(CAUSAL) < set(OFFLINE) == set(comparisons.SCALES)
