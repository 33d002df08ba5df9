from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.ecg.recording import RHYTHM_INDEX, UNLABELLED
from heartlm.ecg.spans import runs
from heartlm.evaluation.bootstrap import Resampling
from heartlm.evaluation.episodes import compare_spans, score_episodes
from heartlm.evaluation.rhythm import Verdicts, window_labels

LETTERS = {"n": RHYTHM_INDEX["N"], "a": RHYTHM_INDEX["AFIB"], "f": RHYTHM_INDEX["AFL"], "-": UNLABELLED}


def window(letters: str) -> np.ndarray:
    return np.array([[LETTERS[letter] for letter in letters]], np.int8)


@pytest.mark.parametrize(
    ("letters", "flutter", "expected"),
    [
        ("aaan", "negative", True),
        ("aann", "negative", None),
        ("annn", "negative", False),
        ("aa--", "negative", None),
        ("nn--", "negative", None),
        ("aaa-", "negative", True),
        ("afff", "negative", False),
        ("afff", "positive", True),
        ("afff", "left out", None),
        ("aaaf", "left out", True),
    ],
)
def test_window_labels(letters: str, flutter: str, expected: bool | None) -> None:
    labels = window_labels(window(letters), flutter=flutter)
    assert labels.tolist() == [-1 if expected is None else int(expected)]


def test_which_rhythm_is_positive_is_the_callers_choice() -> None:
    assert window_labels(window("ffff"), "AFL")[0] == 1
    assert window_labels(window("nnnn"), "N")[0] == 1


windows = st.lists(st.tuples(st.booleans(), st.integers(0, 4).map(float), st.integers(0, 3)), min_size=4, max_size=60)


@settings(derandomize=True, deadline=None)
@given(rows=windows)
def test_window_scores_are_those_of_scikit_learn(rows: list[tuple[bool, float, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    reference, score, patient = (np.array(column) for column in zip(*rows, strict=True))
    called = score >= 2
    scores = Verdicts(score, 2).scores(reference.astype(np.int8), patient.astype(np.str_), Resampling(30))
    if 0 < reference.sum() < len(reference):
        assert scores["auroc"]["value"] == pytest.approx(metrics.roc_auc_score(reference, score))
        assert scores["se"]["value"] == pytest.approx(metrics.recall_score(reference, called))
        assert scores["sp"]["value"] == pytest.approx(metrics.recall_score(~reference, ~called))
    else:
        assert scores["auroc"]["value"] is None
    if called.any():
        assert scores["ppv"]["value"] == pytest.approx(metrics.precision_score(reference, called))
    assert scores["accuracy"]["value"] == pytest.approx(np.mean(reference == called))


def test_resampled_auroc_repeats_the_drawn_patients() -> None:
    """With two patients there are three draws: one of them twice, the other twice, or both."""
    reference = np.array([True, False, True, False])
    score = np.array([0.9, 0.1, 0.2, 0.8])
    patient = np.array(["good", "good", "bad", "bad"])
    auroc = Verdicts(score).scores(reference.astype(np.int8), patient)["auroc"]
    assert auroc == {"value": 0.75, "ci": [0.0, 1.0]}


def test_perfect_decisions_and_json() -> None:
    labels = np.array([1, 0, 0, 1, -1], np.int8)
    scores = Verdicts(labels.astype(np.float64)).scores(labels, np.array(["a", "a", "b", "b", "c"]))
    written = json.loads(json.dumps(scores, allow_nan=False))
    assert written["f1"] == {"value": 1.0, "ci": [1.0, 1.0]}
    assert (written["num_windows"], written["num_patients"], written["tp"], written["tn"]) == (4, 2, 2, 2)


flags = st.lists(st.booleans(), min_size=40, max_size=40).map(np.array)


@settings(derandomize=True, deadline=None)
@given(truth=flags, called=flags, first=st.integers(0, 20), last=st.integers(21, 40))
def test_episodes_agree_with_counting_seconds(truth: np.ndarray, called: np.ndarray, first: int, last: int) -> None:
    # Two seconds a flag, so that no episode only touches the start or the stop.
    measured = compare_spans(2 * runs(truth), 2 * runs(called), 2 * last - 1, start=2 * first + 1)
    truth, called = (np.repeat(each, 2)[2 * first + 1 : 2 * last - 1] for each in (truth, called))
    assert measured.total_s == len(truth)
    assert measured.reference_s == truth.sum()
    assert measured.predicted_s == called.sum()
    assert measured.both_s == (truth & called).sum()
    starts = np.diff(truth.astype(int), prepend=0) == 1
    episode = np.cumsum(starts) * truth
    found = sorted(set(episode[called & truth]))
    assert measured.num_reference == starts.sum()
    assert measured.num_found == len(found)
    delay = [np.flatnonzero(called & (episode == each))[0] - np.flatnonzero(episode == each)[0] for each in found]
    assert list(measured.delay_s) == delay


def test_overlapping_spans_are_refused() -> None:
    with pytest.raises(ValueError, match="not overlap"):
        compare_spans([[40, 50], [0, 10], [2, 5], [8, 20], [20, 30]], [], 100)


def test_onset_delays_of_all_recordings_together() -> None:
    one = compare_spans([[0, 100], [200, 300], [400, 500]], [[10, 20], [30, 40], [190, 210]], 1000)
    two = compare_spans([[0, 100]], [[50, 60]], 1000, ticks_hz=10)
    assert (one.delay_s, two.delay_s) == ((10, 0), (5,))
    scores = score_episodes([one, two], ["a", "b"])
    assert scores["delay_median_s"]["value"] == 5
    assert scores["delay_p90_s"]["value"] == 9
    assert (scores["delay_worst_s"]["value"], scores["delay_worst_s"]["ci"][0]) == (10, 5)


def test_episode_scores_sum_recordings() -> None:
    one = compare_spans(np.array([[10.0, 30.0]]), np.array([[20.0, 40.0]]), 100)
    two = compare_spans(np.array([[0.0, 20.0], [50.0, 60.0]]), np.empty((0, 2)), 100)
    scores = score_episodes([one, two], ["a", "b"])
    assert scores["se"]["value"] == 10 / 50
    assert scores["ppv"]["value"] == 10 / 20
    assert scores["sp"]["value"] == 140 / 150
    assert scores["episode_se"]["value"] == 1 / 3
    assert scores["se"]["ci"] == [0.0, 0.5]
    written = json.loads(json.dumps(scores, allow_nan=False))
    assert (written["num_patients"], written["total_s"], written["num_reference"]) == (2, 200.0, 3)


def test_no_episode_at_all_is_undefined() -> None:
    nothing = compare_spans(np.empty((0, 2)), np.empty((0, 2)), 100)
    written = score_episodes([nothing], ["a"])
    assert written["se"]["value"] is None
    assert written["sp"]["value"] == 1.0
