from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.databases.database import open_database
from heartlm.ecg.recording import RHYTHM_INDEX
from heartlm.evaluation import zhou
from studies.af_rhythm import fit_threshold
from tests.conftest import shared_data

intervals = st.lists(st.sampled_from([0.0, 0.19, 0.3, 0.5, 0.6, 0.8, 1.0, 1.3, 2.4]), min_size=4, max_size=40).map(
    np.array
)


def by_definition(window: np.ndarray) -> float:
    """The article's formulas, one window at a time."""
    symbols = [63 if rr * 315 <= 60 else math.floor(60 / rr / 5) for rr in window.tolist()]
    words = [(a * 64 + b) * 64 + c for a, b, c in zip(symbols, symbols[1:], symbols[2:], strict=False)]
    shares = [count / len(words) for count in Counter(words).values()]
    return -len(shares) / (len(words) * math.log2(len(words))) * sum(p * math.log2(p) for p in shares)


@settings(derandomize=True, deadline=None)
@given(rr_s=intervals, data=st.data())
def test_sliding_and_whole_windows_follow_the_definition(rr_s: np.ndarray, data: st.DataObject) -> None:
    window = data.draw(st.integers(4, len(rr_s)))
    windows = np.lib.stride_tricks.sliding_window_view(rr_s, window)
    expected = [by_definition(each) for each in windows]
    np.testing.assert_allclose(zhou.window_entropy(windows), expected, atol=1e-12)
    np.testing.assert_allclose(zhou.entropy(rr_s, window), expected, atol=1e-12)


def test_words_of_known_rates() -> None:
    # 60, 120 and 75 beats a minute are the symbols 12, 24 and 15; 400 a minute is beyond the last symbol, 63.
    assert zhou.words(np.array([1.0, 0.5, 0.8, 0.15])).tolist() == [
        (12 << 12) + (24 << 6) + 15,
        (24 << 12) + (15 << 6) + 63,
    ]


def test_entropy_is_one_when_every_word_is_new_and_zero_when_none_is() -> None:
    rising = 60 / (np.arange(41) * 5 + 32.5)
    assert zhou.window_entropy(rising[None])[0] == pytest.approx(1)
    assert zhou.entropy(np.full(500, 0.8)).max() == 0


def test_published_window_is_127_words() -> None:
    assert len(zhou.words(np.ones(zhou.WINDOW))) == 127


def test_detection_changes_in_the_middle_of_the_change() -> None:
    generator = np.random.default_rng(0)
    rr_s = np.concatenate([np.full(600, 0.8), generator.uniform(0.4, 1.2, 600)])
    detected = zhou.detect(rr_s)
    assert not detected[:560].any()
    assert detected[660:].all()


def test_short_recordings() -> None:
    irregular = np.random.default_rng(0).uniform(0.4, 1.2, 40)
    assert zhou.detect(irregular).all()
    assert not zhou.detect(np.full(40, 0.8)).any()
    assert zhou.detect(irregular[:3]).tolist() == [False] * 3
    assert len(zhou.entropy(irregular, window=41)) == 0


def test_unusable_intervals_are_refused() -> None:
    for bad in (np.nan, np.inf, -0.5):
        with pytest.raises(ValueError, match="non-finite"):
            zhou.entropy(np.array([0.8, bad, 0.8, 0.8]), window=4)
    with pytest.raises(ValueError, match="at least 4"):
        zhou.window_entropy(np.ones((2, 3)))


@settings(derandomize=True, deadline=None)
@given(cases=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=40))
def test_fitted_threshold_has_the_best_se_plus_sp(cases: list[tuple[int, bool]]) -> None:
    scores, labels = np.array([score / 10 for score, _ in cases]), np.array([label for _, label in cases])
    if labels.all() or not labels.any():
        with pytest.raises(ValueError, match="with and windows without"):
            fit_threshold(scores, labels)
        return

    def quality(threshold: float) -> float:
        return float(np.mean(scores[labels] >= threshold) + np.mean(scores[~labels] < threshold))

    best = max(quality(threshold) for threshold in scores)
    assert quality(fit_threshold(scores, labels)) == pytest.approx(best)


# Measured here, beat by beat, fibrillation against all else. Published (Zhou 2015): AFDB 97.37, 98.44, 97.89;
# MITDB 97.83, 87.41, 47.67; NSRDB Sp 99.68.
@pytest.mark.parametrize(
    ("database", "se", "sp", "ppv"),
    [
        pytest.param("afdb", 97.40, 98.44, 97.88, marks=pytest.mark.slow),
        ("mitdb", 98.71, 87.29, 47.66),
        pytest.param("nsrdb", None, 99.68, None, marks=pytest.mark.slow),
    ],
)
def test_published_figures_on_real_recordings(database: str, se: float | None, sp: float, ppv: float | None) -> None:
    recordings = open_database(shared_data(database))
    tp = fp = fn = tn = 0
    for record_id in recordings.record_ids:
        annotations = recordings.annotations(record_id)
        assert annotations is not None
        fibrillates = annotations.rhythm_at(annotations.sample)[1:] == RHYTHM_INDEX["AFIB"]
        detected = zhou.detect(np.diff(annotations.sample) / annotations.rate_hz)
        tp += np.count_nonzero(fibrillates & detected)
        fp += np.count_nonzero(~fibrillates & detected)
        fn += np.count_nonzero(fibrillates & ~detected)
        tn += np.count_nonzero(~fibrillates & ~detected)
    assert 100 * tn / (tn + fp) == pytest.approx(sp, abs=0.03)
    if se is not None:
        assert 100 * tp / (tp + fn) == pytest.approx(se, abs=0.03)
        assert 100 * tp / (tp + fp) == pytest.approx(ppv, abs=0.03)
