from __future__ import annotations

import numpy as np
import pytest

from heartlm.ecg.database import open_database
from heartlm.ecg.detect import detect_beats, to_r_peaks
from tests.conftest import shared_data

pytest.importorskip("sleepecg")

RATE_HZ = 250.0


def heart(duration_s: float, polarity: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """A lead with a narrow QRS every 0.8 s, a T wave after each and a slow baseline; and the R peaks."""
    time_s = np.arange(round(duration_s * RATE_HZ)) / RATE_HZ
    peaks_s = np.arange(0.5, duration_s - 0.5, 0.8)
    peaks = np.rint(peaks_s * RATE_HZ).astype(np.int64)
    signal = 0.1 * np.sin(time_s)
    for peak in peaks / RATE_HZ:
        signal += polarity * np.exp(-(((time_s - peak) / 0.012) ** 2)) + 0.2 * np.exp(
            -(((time_s - peak - 0.25) / 0.05) ** 2)
        )
    return signal.astype(np.float32), peaks


@pytest.mark.parametrize("polarity", [1.0, -1.0])
def test_finds_the_peaks_themselves(polarity: float) -> None:
    signal, peaks = heart(30, polarity)
    np.testing.assert_array_equal(detect_beats(signal, RATE_HZ), peaks)


def test_gaps_are_bridged_or_part_the_signal() -> None:
    signal, peaks = heart(40)
    between = int(peaks[10] + 100)
    signal[between : between + 10] = np.nan
    signal[3000:4500] = np.nan
    found = detect_beats(signal, RATE_HZ)
    np.testing.assert_array_equal(found, peaks[np.isfinite(signal[peaks])])


@pytest.mark.parametrize(
    "signal",
    [
        np.zeros(0, np.float32),
        np.zeros(5000, np.float32),
        np.full(5000, np.nan, np.float32),
        np.random.default_rng(0).normal(size=400).astype(np.float32),
    ],
    ids=["empty", "flat", "invalid", "too short"],
)
def test_signals_without_beats(signal: np.ndarray) -> None:
    found = detect_beats(signal, RATE_HZ)
    assert (found.dtype, len(found)) == (np.int64, 0)


def test_a_rate_below_the_detectors_band_is_refused() -> None:
    with pytest.raises(ValueError, match="rate_hz is 50"):
        detect_beats(np.zeros(500, np.float32), 50.0)


def test_beats_that_meet_on_one_peak_become_one() -> None:
    signal, peaks = heart(4)
    near = np.sort(np.concatenate([peaks - 5, peaks + 5]))
    np.testing.assert_array_equal(to_r_peaks(signal.astype(np.float64), near, RATE_HZ), peaks)


def test_record_100_is_found_to_the_beat() -> None:
    mitdb = open_database(shared_data("mitdb"))
    recording, annotated = mitdb.recording("100"), mitdb.annotations("100")
    assert annotated is not None
    found = detect_beats(recording.signal(leads=[0])[0], recording.rate_hz)
    nearest = np.abs(found[:, np.newaxis] - annotated.sample[np.newaxis, :]).min(axis=1)
    assert abs(len(found) - annotated.num_beats) <= 2
    assert np.mean(nearest <= 4) > 0.999
