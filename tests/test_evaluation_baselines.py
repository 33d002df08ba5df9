from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.ecg.recording import UNLABELLED
from heartlm.errors import HeartlmError
from heartlm.evaluation.bootstrap import Resampling, ratio, sum_by
from heartlm.evaluation.features import NUM_RECENT_BEATS, _sample_entropy, beat_features, boosting, rr_window_features
from heartlm.tokenizers.rr import mean_around, trailing_median


def recording(num_beats: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Narrow beats in time, and every seventh wide and early: waveforms, RR intervals, classes (N, V)."""
    generator = np.random.default_rng(seed)
    classes = np.where(np.arange(num_beats) % 7 == 3, 2, 0).astype(np.int8)
    place = np.linspace(-0.3, 0.4, 100)
    width = np.where(classes == 2, 0.08, 0.02)[:, None]
    waveforms = np.exp(-((place / width) ** 2)) + generator.normal(0, 0.05, (num_beats, 100))
    rr_s = np.where(classes == 2, 0.6, 0.9) + generator.normal(0, 0.02, num_beats)
    rr_s[0] = np.nan
    return waveforms.astype(np.float32), rr_s, classes


def test_boosted_beats_learn_and_repeat() -> None:
    pytest.importorskip("sklearn")
    waveforms, rr_s, classes = recording(200, seed=1)
    unseen_waveforms, unseen_rr_s, unseen_classes = recording(100, seed=2)
    hidden = classes.copy()
    hidden[::10] = UNLABELLED
    model = boosting(beat_features(waveforms, rr_s), hidden, seed=3)
    predicted = model.predict(beat_features(unseen_waveforms, unseen_rr_s))
    assert np.mean(predicted == unseen_classes) > 0.98
    again = boosting(beat_features(waveforms, rr_s), hidden, seed=3)
    assert np.array_equal(again.predict(beat_features(unseen_waveforms, unseen_rr_s)), predicted)


def test_boosted_beats_need_two_classes() -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(HeartlmError, match="1 classes to learn from"):
        boosting(np.zeros((3, 2)), np.array([2, 2, UNLABELLED], np.int8))
    with pytest.raises(HeartlmError, match="0 classes to learn from"):
        boosting(np.zeros((1, 2)), np.array([UNLABELLED], np.int8))


def test_boosted_rhythm_tells_irregular_windows() -> None:
    pytest.importorskip("sklearn")
    generator = np.random.default_rng(0)
    irregular = np.arange(200) % 2 == 0
    spread = np.where(irregular, 0.2, 0.02)[:, None]
    rr_s = np.maximum(0.8 + spread * generator.normal(size=(200, 41)), 0.2)
    features = rr_window_features(rr_s)
    score = boosting(features[:100], irregular[:100].astype(np.int8)).predict_proba(features[100:])[:, 1]
    assert np.mean((score >= 0.5) == irregular[100:]) > 0.95
    with pytest.raises(HeartlmError, match="1 classes to learn from"):
        boosting(features, np.ones(200, np.int8))


def test_beat_features_do_not_depend_on_gain_or_offset() -> None:
    waveforms, rr_s, _ = recording(60, seed=1)
    np.testing.assert_allclose(beat_features(waveforms * 4 + 32, rr_s), beat_features(waveforms, rr_s), atol=1e-4)


def test_beats_without_signal_or_interval_are_nan_and_leave_the_others_alone() -> None:
    waveforms, rr_s, _ = recording(60, seed=1)
    broken = waveforms.copy()
    broken[30, 50] = np.nan
    features = beat_features(broken, rr_s)
    assert features.shape == (60, 48)
    assert np.isnan(features[30, 20])
    assert np.isfinite(features[2:29]).all()
    assert np.isnan(features[0, 0])
    assert np.isnan(features[-1, 1])


def test_flat_lead_and_short_recordings_have_features() -> None:
    assert np.isfinite(beat_features(np.zeros((5, 64), np.float32), np.full(5, 0.8))[2:3]).all()
    assert beat_features(np.zeros((1, 64), np.float32), np.array([np.nan])).shape == (1, 48)
    assert beat_features(np.zeros((0, 64), np.float32), np.empty(0)).shape == (0, 48)


def test_two_beats_on_one_sample_give_finite_features() -> None:
    waveforms, rr_s, _ = recording(60, seed=1)
    rr_s[20] = 0
    assert np.isfinite(beat_features(waveforms, rr_s)[2:58]).all()
    assert np.isfinite(rr_window_features(np.zeros((1, 41)))).all()


def test_window_features_of_a_metronome_are_calm() -> None:
    features = rr_window_features(np.full((1, 41), 0.8))[0]
    np.testing.assert_allclose(features[:4], 0.8)
    np.testing.assert_allclose(features[4:12], 0, atol=1e-12)
    np.testing.assert_allclose(features[12:14], 0, atol=1e-12)


def test_sample_entropy_against_its_definition() -> None:
    rr_s = np.random.default_rng(0).uniform(0.7, 0.9, 50)
    ones = twos = 0
    for i in range(49):
        for j in range(49):
            if i != j and abs(rr_s[i] - rr_s[j]) <= 0.030:
                ones += 1
                twos += abs(rr_s[i + 1] - rr_s[j + 1]) <= 0.030
    assert _sample_entropy(rr_s) == pytest.approx(np.log(ones / twos))


intervals = st.lists(st.one_of(st.just(np.nan), st.floats(0.2, 2)), min_size=1, max_size=80).map(np.array)


@settings(derandomize=True, deadline=None)
@given(rr_s=intervals)
def test_running_median_and_mean_against_loops(rr_s: np.ndarray) -> None:
    for i in range(len(rr_s)):
        recent = rr_s[max(i - 31, 0) : i + 1]
        around = rr_s[max(i - 5, 0) : i + 6]
        known, near = recent[~np.isnan(recent)], around[~np.isnan(around)]
        np.testing.assert_allclose(
            trailing_median(rr_s, NUM_RECENT_BEATS)[i], np.median(known) if len(known) else np.nan
        )
        np.testing.assert_allclose(mean_around(rr_s, 5, 5)[i], near.mean() if len(near) else np.nan)


def test_ratio_of_nothing_is_unknown() -> None:
    np.testing.assert_array_equal(ratio([1, 0, 0], [2, 5, 0]), [0.5, 0.0, np.nan])


def test_resampling_is_seeded_and_draws_as_many_patients_as_there_are() -> None:
    resampling = Resampling(num_bootstrap=40, seed=7)
    weights = resampling.weights(9)
    assert (weights.sum(axis=1) == 9).all()
    assert np.array_equal(weights, Resampling(num_bootstrap=40, seed=7).weights(9))
    assert not np.array_equal(weights, Resampling(num_bootstrap=40, seed=8).weights(9))
    counts = np.random.default_rng(0).integers(0, 100, (9, 2, 3))
    np.testing.assert_array_equal(resampling.resample(counts), np.einsum("bp,pij->bij", weights, counts))


def test_counts_are_summed_by_name() -> None:
    names, sums = sum_by(["b", "a", "b"], np.array([[1, 2], [3, 4], [5, 6]]))
    assert names == ("a", "b")
    assert sums.tolist() == [[3, 4], [6, 8]]
