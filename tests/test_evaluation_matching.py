from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.ecg.matching import match_beats

positions = st.lists(st.integers(0, 600), max_size=12).map(lambda values: np.array(sorted(values), np.int64))


def nearest_pairs_first(reference: np.ndarray, detected: np.ndarray, reach: float) -> dict[int, int]:
    """The definition, written out: all pairs by distance, each taken unless one of the two is taken already."""
    pairs = sorted(
        (abs(int(detected[j]) - int(reference[i])), i, j)
        for i in range(len(reference))
        for j in range(len(detected))
        if abs(int(detected[j]) - int(reference[i])) <= reach
    )
    partner: dict[int, int] = {}
    for _, i, j in pairs:
        if i not in partner and j not in partner.values():
            partner[i] = j
    return partner


@settings(derandomize=True, deadline=None, max_examples=300)
@given(reference=positions, detected=positions)
def test_nearest_pairs_are_matched_first(reference: np.ndarray, detected: np.ndarray) -> None:
    match = match_beats(reference, detected, rate_hz=360)
    expected = nearest_pairs_first(reference, detected, 0.150 * 360)
    assert dict(zip(match.reference.tolist(), match.detected.tolist(), strict=True)) == expected


@settings(derandomize=True, deadline=None)
@given(reference=positions, detected=positions)
def test_every_beat_and_detection_is_used_once(reference: np.ndarray, detected: np.ndarray) -> None:
    match = match_beats(reference, detected, rate_hz=250)
    assert sorted([*match.reference, *match.missed]) == list(range(len(reference)))
    assert sorted([*match.detected, *match.extra]) == list(range(len(detected)))
    assert np.all(np.abs(reference[match.reference] - detected[match.detected]) <= 0.150 * 250)
    left = np.abs(reference[match.missed][:, None] - detected[match.extra])
    assert np.all(left > 0.150 * 250)


@settings(derandomize=True, deadline=None)
@given(
    gaps=st.lists(st.integers(110, 400), min_size=1, max_size=15),
    shifts=st.lists(st.one_of(st.none(), st.integers(-54, 54)), min_size=15, max_size=15),
)
def test_with_beats_a_refractory_time_apart_as_many_match_as_at_best(gaps: list[int], shifts: list[int | None]) -> None:
    from scipy.optimize import linear_sum_assignment

    reference = np.cumsum(gaps)
    kept = zip(reference, shifts, strict=False)
    detected = np.sort(np.array([beat + shift for beat, shift in kept if shift is not None], np.int64))
    near = np.abs(reference[:, None] - detected) <= 54
    rows, columns = linear_sum_assignment(near, maximize=True)
    assert len(match_beats(reference, detected, rate_hz=360).reference) == near[rows, columns].sum()


def test_window_is_150_ms_inclusive() -> None:
    reference = np.array([1000])
    assert len(match_beats(reference, np.array([1054]), rate_hz=360).reference) == 1
    assert len(match_beats(reference, np.array([1055]), rate_hz=360).reference) == 0


def test_a_second_detection_of_one_beat_is_extra() -> None:
    match = match_beats(np.array([1000, 1300]), np.array([990, 1004, 1299]), rate_hz=360)
    assert match.detected.tolist() == [1, 2]
    assert match.extra.tolist() == [0]


def test_positions_must_ascend() -> None:
    with pytest.raises(ValueError, match="detected"):
        match_beats(np.array([1, 2]), np.array([5, 4]), rate_hz=360)
