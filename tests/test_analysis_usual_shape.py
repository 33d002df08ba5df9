"""Beats of the usual shape end ventricular runs, and wide beats are in no supraventricular run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heartlm.analysis.analyze import Analyst
from heartlm.analysis.usual_shape import UNLIKE, USUAL, excluded_classes, likeness_to_usual
from heartlm.ecg.matching import match_beats
from heartlm.ecg.recording import Recording
from heartlm.evaluation.episodes import compare_spans
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording

RATE_HZ = 250.0


def two_leads(wide: set[int], num_beats: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Beats a second apart: positions, and leads of which only the second one shows which beats are wide."""
    sample = (np.arange(num_beats) + 1) * 250
    time_s = np.arange((num_beats + 2) * 250) / RATE_HZ
    signals = np.zeros((2, len(time_s)), np.float32)
    for beat, at in enumerate(sample / RATE_HZ):
        narrow, broad = np.exp(-(((time_s - at) / 0.012) ** 2) / 2), np.exp(-(((time_s - at) / 0.04) ** 2) / 2)
        signals += np.array([narrow, -1.2 * broad if beat in wide else 0.8 * narrow], np.float32)
    return sample, signals


def test_likeness_is_that_of_the_readable_lead_that_shows_most() -> None:
    sample, signals = two_leads({10, 11, 20})
    is_normal = ~np.isin(np.arange(40), [10, 11, 12, 20])
    readable = np.ones((2, 40), np.bool_)
    readable[1, 20] = False
    likeness = likeness_to_usual(sample, is_normal, signals, readable, RATE_HZ)
    assert (likeness[[10, 11]] < UNLIKE).all()
    assert likeness[12] == pytest.approx(1, abs=0.01)  # narrow, although it is not called normal
    assert likeness[20] > USUAL  # wide in the lead that cannot be read
    assert np.isnan(likeness[is_normal]).all()
    # twice as high is less alike, and moved by 20 ms as alike
    signals[:, 12 * 250 + 125 : 13 * 250 + 125] *= 2
    assert likeness_to_usual(sample, is_normal, signals, readable, RATE_HZ)[12] < USUAL
    sample, signals = two_leads(set())
    moved = sample + 5 * (np.arange(40) == 12)
    assert likeness_to_usual(moved, is_normal, signals, readable, RATE_HZ)[12] > USUAL


def test_without_a_usual_beat_nothing_is_excluded() -> None:
    sample, signals = two_leads({3, 4})
    few = np.arange(40) < 3
    likeness = likeness_to_usual(sample, few, signals, np.ones((2, 40), np.bool_), RATE_HZ)
    assert np.isnan(likeness).all()
    assert not np.any(excluded_classes(np.array(list("SV" * 20)), likeness, np.ones(40, np.bool_), 3))


@pytest.mark.parametrize(
    ("symbols", "unusual", "not_v", "not_s"),
    [
        ("NNVVVNN", {2, 3}, {4}, set()),  # the narrow beat after a couplet
        ("NNVNN", set(), set(), set()),  # alone: the model decides
        ("NSSSN", {1, 2, 3}, set(), {1, 2, 3}),
        ("NVSVN", {1, 2, 3}, set(), {2}),
        ("NSSN", {1, 2}, set(), set()),  # aberrant conduction of two beats
        ("NSSSN", {2}, set(), {2}),
    ],
)
def test_which_classes_of_runs_are_excluded(symbols: str, unusual: set[int], not_v: set[int], not_s: set[int]) -> None:
    likeness = np.array([0.1 if beat in unusual else 0.95 for beat in range(len(symbols))], np.float32)
    excluded = excluded_classes(np.array(list(symbols)), likeness, np.zeros(len(symbols), np.bool_), 3)
    assert [set(np.flatnonzero(each).tolist()) for each in excluded] == [not_v, not_s]


def test_where_several_leads_are_read_shape_tells_of_single_beats_too() -> None:
    likeness = np.array([0.95, 0.9, 0.95, 0.45, 0.95, 0.7, 0.95, 0.7], np.float32)
    excluded = excluded_classes(np.array(list("NVNSNVNS")), likeness, np.ones(8, np.bool_), 3)
    assert [np.flatnonzero(each).tolist() for each in excluded] == [[1], [3]]
    assert not np.any(excluded_classes(np.array(list("NVNSNVNS")), likeness, np.zeros(8, np.bool_), 3))


def test_a_tachycardia_that_is_low_in_one_lead_is_ventricular() -> None:
    """The simulated patient has VT of 196/min from two places, of which one is 0.1 mV high in the first lead."""
    signals, known = simulate_recording(SimulationConfig(minutes=4, seed=0), 0)
    recording = Recording(
        rate_hz=RATE_HZ,
        num_samples=signals.shape[1],
        lead_names=("MLII", "V1"),
        units=("mV", "mV"),
        path=Path("r"),
        samples=lambda start, stop, leads: signals[list(leads), start:stop],
    )
    found = Analyst.load(Path("beats"), Path("af"), Path("waveform")).analyze(recording)
    match = match_beats(known.sample, found.sample, RATE_HZ)
    is_v = known.symbol[match.reference] == "V"
    assert np.mean(found.symbol[match.detected][is_v] == "V") > 0.98
    assert not found.of_kind("SVT")
    annotated = [(span.start, span.stop) for span in known.rhythms if span.name == "VT"]
    score = compare_spans(annotated, [(run.start, run.stop) for run in found.of_kind("VT")], recording.num_samples)
    assert score.num_found == len(annotated) >= 2
    assert score.num_confirmed == score.num_predicted == len(annotated)
