"""Numbers in words, scales, paths, labels, strips and figures of the report."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.report import numbers
from heartlm.report.charts import MAX_POINTS, Scale, Series, line_chart, spread, thinned
from heartlm.report.numbers import Score
from heartlm.report.render import path_of
from heartlm.report.scores import confusion_rows, patient_rows

FINITE = st.floats(-1e4, 1e4, allow_nan=False)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (numbers.count(109_494), "109\u202f494"),
        (numbers.decimal(-0.5, 1), "−0.5"),
        (numbers.decimal(None), "–"),
        (numbers.decimal(math.nan), "–"),
        (numbers.percent(0.123), "12.3\u202f%"),
        (numbers.significant(0.00031, 2), "3.1 × 10⁻⁴"),
        (numbers.significant(1234.5), "1\u202f234"),
        (numbers.significant(0), "0.00"),
        (numbers.duration(4.25), "4.2 s"),
        (numbers.duration(59.97), "1 min 0 s"),
        (numbers.duration(119.7), "2 min 0 s"),
        (numbers.duration(3_725), "1 h 2 min"),
    ],
)
def test_numbers_are_written_as_people_read_them(written: str, expected: str):
    assert written == expected


@pytest.mark.parametrize("entry", [None, 0.5, {}, {"value": None}, {"value": math.nan, "ci": [math.nan, 1]}, {"ci": 3}])
def test_a_score_that_is_not_there_is_a_dash(entry: object):
    assert Score.of(entry).text == "–"
    assert Score.of(entry).interval == ""


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=60))
def test_a_path_of_relative_steps_does_not_drift(places: list[tuple[float, float]]):
    path = path_of([x for x, _ in places], [y for _, y in places])
    steps = np.array([float(word) for word in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", path)]).reshape(-1, 2)
    np.testing.assert_allclose(steps.cumsum(axis=0), places, atol=0.051)


@settings(derandomize=True, deadline=None)
@given(FINITE, st.floats(1e-3, 1e4), st.integers(2, 8))
def test_ticks_are_round_within_and_about_as_many_as_wanted(start: float, span: float, num_wanted: int):
    scale = Scale(start, start + span, 0, 100)
    ticks = scale.ticks(num_wanted)
    assert 1 <= len(ticks) <= num_wanted + 1
    assert all(-1e-3 <= scale(tick) <= 100 + 1e-3 for tick in ticks)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.floats(0, 200), min_size=1, max_size=7))
def test_labels_are_moved_apart_in_order(places: list[float]):
    moved = spread(places, 14)
    assert (np.diff(moved[np.argsort(places, kind="stable")]) >= 14 - 1e-6).all()
    assert moved.mean() == pytest.approx(np.mean(places))


def test_long_curves_are_drawn_as_means_of_stretches():
    steps = thinned(range(10_000))
    assert len(steps) == MAX_POINTS
    assert steps[0] == 12 and steps.mean() == pytest.approx(4999.5)


def test_a_chart_of_nothing_is_none_and_of_one_point_is_drawn():
    assert line_chart([Series("a", [], [])], title="loss") is None
    chart = line_chart([Series("a", [3.0], [0.5])], title="loss")
    assert chart is not None
    assert "<circle" in chart


def test_ranks_that_double_are_equally_far_apart():
    chart = ElementTree.fromstring(line_chart([Series("a", [1, 2, 4], [1, 2, 3])], title="x", ticks=[1, 2, 4, 8]) or "")
    places = [float(each.attrib["x"]) for each in chart.iter("text") if each.get("text-anchor") == "middle"]
    assert len(places) == 3 and places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.11)


def test_words_in_drawings_are_escaped():
    chart = line_chart([Series("a < b & c", [1.0], [1.0])], title='"<b>')
    assert chart is not None
    root = ElementTree.fromstring(chart)
    assert root.get("aria-label") == '"<b> by step'
    assert root.findtext("circle/title") == "a < b & c: 1 at step 1"


def test_patients_with_most_wrong_beats_come_first():
    patients = [
        {"patient": f"mitdb/{i}", "confusion": [[5, i], [0, 0]], "f1": {"N": 0.5, "V": 0.0}} for i in range(100)
    ]
    rows = patient_rows({"per_patient": patients, "classes": ["N", "V"]})
    assert rows[0] == ("99", 99, [0.5, None])
    assert [wrong for _, wrong, _ in rows] == list(range(99, -1, -1))


def test_patients_of_two_databases_are_told_apart():
    patients = [{"patient": name, "confusion": [[1, 0], [0, 1]]} for name in ("mitdb/100", "svdb/100")]
    rows = patient_rows({"per_patient": patients, "classes": ["N", "V"]})
    assert [name for name, *_ in rows] == ["mitdb/100", "svdb/100"]


def test_a_confusion_matrix_of_another_size_than_its_labels_is_not_shown():
    assert confusion_rows({"confusion": [[1, 2]], "classes": ["N"]}) == []
    assert confusion_rows({}) == []
    shown = confusion_rows({"confusion": [[6, 4], [0, 0]], "classes": ["N", "V"]})
    assert shown == [("N", 10, [("N", 6, 0.6), ("V", 4, 0.4)]), ("V", 0, [("N", 0, 0.0), ("V", 0, 0.0)])]
