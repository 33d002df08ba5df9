from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.ecg.recording import UNLABELLED
from heartlm.evaluation.beats import NO_BEAT, score_beats
from heartlm.evaluation.bootstrap import Resampling

N, S, V, F, Q = range(5)


def beats(*names: str) -> np.ndarray:
    return np.array([{"-": UNLABELLED, "o": NO_BEAT}.get(n, "NSVFQ".find(n)) for n in "".join(names)], np.int8)


def number(score: dict[str, Any]) -> float:
    return math.nan if score["value"] is None else score["value"]


def one_patient(num_beats: int) -> np.ndarray:
    return np.full(num_beats, "p1")


labelled = st.integers(0, 3)
samples = st.lists(st.tuples(labelled, labelled, st.integers(0, 4)), min_size=5, max_size=80)


def columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    reference, predicted, patient = (np.array(column) for column in zip(*rows, strict=True))
    return reference.astype(np.int8), predicted.astype(np.int8), np.char.add("p", patient.astype(np.str_))


@settings(derandomize=True, deadline=None)
@given(rows=samples)
def test_scores_are_those_of_scikit_learn(rows: list[tuple[int, int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    reference, predicted, patient = columns(rows)
    scores = score_beats(reference, predicted, patient, resampling=Resampling(5))
    ppv, se, f1, support = metrics.precision_recall_fscore_support(
        reference, predicted, labels=range(4), zero_division=np.nan
    )
    for place, name in enumerate("NSVF"):
        ours = scores["per_class"][name]
        assert ours["support"] == support[place]
        for value, theirs in ((ours["se"], se), (ours["ppv"], ppv), (ours["f1"], f1)):
            np.testing.assert_allclose(number(value), theirs[place])
        others = reference != place
        expected_sp = np.mean(predicted[others] != place) if others.any() else math.nan
        np.testing.assert_allclose(number(ours["sp"]), expected_sp)
    assert scores["confusion"] == metrics.confusion_matrix(reference, predicted, labels=range(4)).tolist()
    np.testing.assert_allclose(scores["accuracy"]["value"], np.mean(reference == predicted))
    np.testing.assert_allclose(scores["macro_f1"]["value"], np.nanmean(f1))


@settings(derandomize=True, deadline=None)
@given(rows=samples, data=st.data())
def test_order_of_beats_and_names_of_patients_do_not_matter(
    rows: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    reference, predicted, patient = columns(rows)
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    once = score_beats(reference, predicted, patient, resampling=Resampling(50))
    again = score_beats(reference[order], predicted[order], np.char.add("x", patient[order]), resampling=Resampling(50))
    for entry in again["per_patient"]:
        entry["patient"] = entry["patient"][1:]
    assert once == again


@settings(derandomize=True, deadline=None)
@given(rows=samples)
def test_exchanging_two_classes_exchanges_their_scores(rows: list[tuple[int, int, int]]) -> None:
    reference, predicted, patient = columns(rows)
    swap = np.array([0, 2, 1, 3], np.int8)
    plain = score_beats(reference, predicted, patient, resampling=Resampling(20))
    swapped = score_beats(swap[reference], swap[predicted], patient, resampling=Resampling(20))
    assert plain["per_class"]["S"] == swapped["per_class"]["V"]
    assert plain["per_class"]["N"] == swapped["per_class"]["N"]


@settings(derandomize=True, deadline=None)
@given(reference=st.lists(labelled, min_size=1, max_size=30), num_patients=st.integers(2, 6))
def test_perfect_prediction_gives_one_with_a_point_interval(reference: list[int], num_patients: int) -> None:
    beat_class = np.tile(np.array(reference, np.int8), num_patients)
    patient = np.repeat(np.arange(num_patients).astype(np.str_), len(reference))
    scores = score_beats(beat_class, beat_class, patient, resampling=Resampling(20))
    assert scores["macro_f1"] == {"value": 1.0, "ci": [1.0, 1.0]}
    for place, name in enumerate("NSVF"):
        expected = 1.0 if place in reference else None
        assert scores["per_class"][name]["f1"] == {"value": expected, "ci": [expected, expected]}


@settings(derandomize=True, deadline=None)
@given(rows=samples, num_patients=st.integers(2, 5))
def test_identical_patients_leave_nothing_uncertain(rows: list[tuple[int, int, int]], num_patients: int) -> None:
    reference, predicted, _ = columns(rows)
    patient = np.repeat(np.arange(num_patients).astype(np.str_), len(rows))
    scores = score_beats(
        np.tile(reference, num_patients), np.tile(predicted, num_patients), patient, resampling=Resampling(20)
    )
    accuracy = scores["accuracy"]
    np.testing.assert_allclose(accuracy["ci"], accuracy["value"])


def test_interval_comes_from_patients_not_from_beats() -> None:
    """One bad heart of ten: its thousand beats must widen the interval as one heart does."""
    reference = np.zeros(10_000, np.int8)
    patient = np.repeat(np.arange(10).astype(np.str_), 1000)
    predicted = np.where(patient == "3", V, N).astype(np.int8)
    se = score_beats(reference, predicted, patient)["per_class"]["N"]["se"]
    # The number of bad hearts in a draw of ten is binomial(10, 0.1): its 2.5 and 97.5 % points are 0 and 3.
    assert se == {"value": 0.9, "ci": [0.7, 1.0]}


def test_q_and_unlabelled_beats_are_left_out_and_counted() -> None:
    scores = score_beats(beats("NNVQ-"), beats("NVVNV"), one_patient(5))
    assert (scores["num_beats"], scores["num_left_out"]) == (3, 2)
    assert scores["confusion_labels"] == ["N", "S", "V", "F"]
    assert [row[2] for row in scores["confusion"]] == [1, 0, 1, 0]


def test_prediction_outside_the_classes_is_an_error() -> None:
    scores = score_beats(beats("NNVV"), beats("NQV-"), one_patient(4))
    assert scores["confusion_labels"] == ["N", "S", "V", "F", "other"]
    assert scores["accuracy"]["value"] == 0.5
    assert (scores["per_class"]["N"]["fn"], scores["per_class"]["V"]["fn"]) == (1, 1)


def test_missed_beats_and_extra_detections_have_a_row_and_a_column() -> None:
    scores = score_beats(beats("NVoo"), beats("oVVN"), one_patient(4))
    assert scores["confusion_labels"][-1] == "none"
    assert scores["num_beats"] == 2
    v = scores["per_class"]["V"]
    assert (v["tp"], v["fp"], v["fn"]) == (1, 1, 0)
    # The missed N beat is rightly not called V; the extra detection called N is no beat at all, so no true negative.
    assert v["sp"]["value"] == 0.5
    assert (scores["per_class"]["N"]["fp"], scores["per_class"]["N"]["fn"]) == (1, 1)
    assert scores["accuracy"]["value"] == 0.25


def test_missed_and_extra_beats_have_a_column_and_a_row() -> None:
    scores = score_beats(beats("NSVo"), beats("NVoN"), one_patient(4))
    assert scores["confusion"] == [
        [1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0],
    ]


def test_undefined_scores_are_null() -> None:
    written = score_beats(beats("NN"), beats("NN"), np.array(["a", "b"]))
    assert written["per_class"]["V"]["se"] == {"value": None, "ci": [None, None]}
    assert written["per_class"]["V"]["sp"]["value"] == 1.0
    assert written["per_patient"][0]["f1"] == {"N": 1.0, "S": None, "V": None, "F": None}
    json.dumps(written, allow_nan=False)


def test_json_has_the_documented_fields() -> None:
    written = score_beats(beats("NVNV"), beats("NVVV"), np.array(["a", "a", "b", "b"]))
    assert list(written) == [
        "classes",
        "num_beats",
        "num_patients",
        "num_left_out",
        "accuracy",
        "macro_f1",
        "per_class",
        "confusion",
        "confusion_labels",
        "per_patient",
    ]
    assert list(written["per_class"]["V"]) == ["se", "ppv", "f1", "sp", "tp", "fp", "fn", "support"]
    assert list(written["per_patient"][0]) == ["patient", "num_beats", "confusion", "f1"]
    json.dumps(written, allow_nan=False)


def test_one_patient_has_scores_but_no_interval() -> None:
    assert score_beats(beats("NV"), beats("NN"), one_patient(2))["accuracy"] == {
        "value": 0.5,
        "ci": [None, None],
    }


def test_nothing_to_score_is_undefined_not_zero() -> None:
    empty = np.empty(0, np.int8)
    written = score_beats(empty, empty, np.empty(0, np.str_))
    assert written["num_beats"] == 0
    assert written["accuracy"]["value"] is None
