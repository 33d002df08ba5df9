"""Mains hum: removed where it dominates, at every rate; all other signals stay as they are, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heartlm.ecg.mains import HumFree
from heartlm.ecg.recording import Recording
from tests.synthetic_leads import beat_times_s, ecg_mv


def heart(rate_hz: float, duration_s: float = 65.0) -> np.ndarray:
    """A lead with beats of about 1.4 mV; float32 `[num_samples]`."""
    time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
    noise = np.random.default_rng(0).normal(0, 0.01, len(time_s))
    return (ecg_mv(time_s, beat_times_s(90)) + noise).astype(np.float32)


def hum(num_samples: int, rate_hz: float, mains_hz: float, drift_hz: float = 0.0) -> np.ndarray:
    """A line of 1 mV with a third harmonic, whose frequency drifts around `mains_hz`."""
    time_s = np.arange(num_samples) / rate_hz
    phase = 2 * np.pi * np.cumsum(mains_hz + drift_hz * np.sin(0.3 * time_s)) / rate_hz
    return np.sin(phase + 0.4) + 0.1 * np.sin(3 * phase)


def hum_free(signal: np.ndarray, rate_hz: float) -> HumFree:
    return HumFree(
        Recording(
            rate_hz=rate_hz,
            num_samples=len(signal),
            lead_names=("II",),
            units=("mV",),
            path=Path("r"),
            samples=lambda start, stop, leads: signal[None, start:stop],
        )
    )


@pytest.mark.parametrize("rate_hz", [100.0, 128.0, 250.0, 360.0, 500.0, 1000.0])
@pytest.mark.parametrize("mains_hz", [50.0, 60.0])
@pytest.mark.parametrize("height_mv", [0.5, 5.0])
def test_hum_is_removed_at_every_rate(rate_hz: float, mains_hz: float, height_mv: float) -> None:
    clean = heart(rate_hz)
    signal = clean + (height_mv * hum(len(clean), rate_hz, mains_hz)).astype(np.float32)
    source = hum_free(signal, rate_hz)
    read = source.recording().signal()[0]
    assert source.removed == {0: {mains_hz}}
    assert np.sqrt(np.mean((read - clean) ** 2)) < 0.03 * np.ptp(clean)  # a low harmonic may stay


@pytest.mark.parametrize("drift_hz", [0.1, 0.2])
def test_hum_that_drifts_is_removed(drift_hz: float) -> None:
    clean = heart(250.0)
    signal = clean + (2 * hum(len(clean), 250.0, 50.0, drift_hz)).astype(np.float32)
    assert np.sqrt(np.mean((hum_free(signal, 250.0).read(0, len(signal), (0,))[0] - clean) ** 2)) < 0.02


def paced(rate_hz: float) -> np.ndarray:
    """Spikes of 4 ms exactly a second apart, whose spectrum has a line at every whole number of Hz."""
    return np.where(np.arange(round(65 * rate_hz)) % round(rate_hz) < 0.004 * rate_hz, 1.0, 0.0).astype(np.float32)


@pytest.mark.parametrize("kind", ["clean", "little hum", "muscle noise", "flat", "invalid", "paced", "short"])
def test_all_other_signals_stay_as_they_are(kind: str) -> None:
    clean, random = heart(250.0), np.random.default_rng(1)
    signal = {
        "clean": clean,
        "little hum": clean + 0.15 * hum(len(clean), 250.0, 50.0),
        "muscle noise": clean + random.normal(0, 0.5, len(clean)),
        "flat": np.zeros_like(clean),
        "invalid": np.full_like(clean, np.nan),
        "paced": paced(250.0),
        "short": hum(200, 250.0, 50.0),
    }[kind].astype(np.float32)
    source = hum_free(signal, 250.0)
    np.testing.assert_array_equal(source.read(0, len(signal), (0,))[0], signal)
    assert source.removed == {}


def test_samples_do_not_depend_on_the_range_and_gaps_stay() -> None:
    signal = heart(250.0) + 2 * hum(65 * 250, 250.0, 60.0).astype(np.float32)
    signal[9000:] -= 2 * hum(65 * 250, 250.0, 60.0).astype(np.float32)[9000:]  # it ends within a piece
    signal[4000:4100] = np.nan
    source = hum_free(signal, 250.0)
    whole = source.read(0, len(signal), (0,))[0]
    np.testing.assert_array_equal(np.isnan(whole), np.isnan(signal))
    np.testing.assert_array_equal(whole[15000:], signal[15000:])
    for start, stop in ((0, 100), (7400, 7600), (3990, 4110), (8000, 16250), (500, 500)):
        np.testing.assert_array_equal(source.read(start, stop, (0,))[0], whole[start:stop])
