"""The compiled detector: every variant finds what NumPy and Python find, to the sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.databases.database import open_database
from heartlm.ecg.detect import SETTINGS, Detector, Mode, plan_detector
from tests.conftest import shared_data
from tests.detect_reference import ReferenceDetector
from tests.kernel_references import each_variant
from tests.synthetic_leads import beat_times_s, ecg_mv
from tests.test_ecg_detect import fast_lead

MODES: list[Mode] = list(SETTINGS)
both_modes = pytest.mark.parametrize("mode", MODES)
examples = settings(derandomize=True, deadline=None, max_examples=30)


def beats_of(detector: Detector | ReferenceDetector, signal: np.ndarray, length: int) -> np.ndarray:
    """The beats of `signal` in chunks of `length` samples."""
    chunks = [signal[start : start + length] for start in range(0, len(signal), length)]
    found = [detector.push(chunk, ends=chunk is chunks[-1]) for chunk in chunks]
    return np.concatenate(found)


def assert_same(signal: np.ndarray, rate_hz: float, mode: Mode, length: int) -> int:
    expected = beats_of(ReferenceDetector(*plan_detector(rate_hz, SETTINGS[mode])), signal, length)
    for variant in each_variant():
        found = beats_of(Detector(rate_hz, SETTINGS[mode]), signal, length)
        np.testing.assert_array_equal(found, expected, err_msg=variant)
    return len(expected)


@both_modes
@examples
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([62.5, 100.0, 128.0, 250.0, 360.0, 500.0, 1000.0]),
    st.integers(1, 20_000),
    st.floats(0.2, 40.0),
)
def test_variants_agree(mode: Mode, seed: int, rate_hz: float, length: int, duration_s: float) -> None:
    random = np.random.default_rng(seed)
    time_s = np.arange(int(duration_s * rate_hz)) / rate_hz
    signal = ecg_mv(time_s, beat_times_s(60, seed % 7)) + random.normal(0, random.choice([0, 0.05, 0.5]), len(time_s))
    signal *= np.exp(random.normal(0, 1, 1 + int(duration_s))).repeat(int(rate_hz) + 1)[: len(signal)]
    assert_same(signal.astype(np.float32), rate_hz, mode, max(length, 7))


@both_modes
def test_variants_agree_where_all_heights_are_equal(mode: Mode) -> None:
    teeth = (np.arange(20_000) % 70 < 3).astype(np.float32)
    assert assert_same(teeth, 250.0, mode, 999) > 250


@both_modes
@pytest.mark.parametrize("rate_bpm", [150, 240, 300])
def test_variants_agree_in_fast_rhythms_with_pauses(rate_bpm: float, mode: Mode) -> None:
    signal, _ = fast_lead(rate_bpm, 0.3)
    signal[::2500] *= 0
    signal[3000:3300] *= np.float32(0.1)
    assert assert_same(signal, 250.0, mode, 333) > 60


@both_modes
@pytest.mark.parametrize("record", ["105", "108", "203", "207", "228", "232"])
def test_variants_agree_on_difficult_recordings(record: str, mode: Mode) -> None:
    recording = open_database(shared_data("mitdb")).recording(record)
    signal = recording.signal(stop=200_000, leads=[0])[0]
    assert assert_same(signal, recording.rate_hz, mode, 50_000) > 400
