"""Beats that follow pacing spikes are told, and are not ventricular."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import heartlm
from heartlm.analysis.analyze import Analyst
from heartlm.analysis.pacing import BLOCK_S, pacing_spikes
from heartlm.ecg.recording import Recording
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording


def paced_beats(sample: np.ndarray, signals: np.ndarray, rate_hz: float) -> np.ndarray:
    return pacing_spikes(sample, signals, rate_hz) >= 0


def lead(rate_hz: float, beats: int, spike_mv: float) -> tuple[np.ndarray, np.ndarray]:
    """Wide beats a second apart, 0.1 s after a spike, which a recorder's filters leave as a step that decays."""
    sample = np.round((np.arange(beats) + 1) * rate_hz).astype(np.int64)
    time_s = np.arange(round((beats + 2) * rate_hz)) / rate_hz
    signal = np.zeros(len(time_s))
    for at in sample:
        near = slice(max(at - round(rate_hz), 0), at + round(rate_hz))  # both are less than 1e-12 mV farther away
        since_s = time_s[near] - at / rate_hz + 0.1
        signal[near] += np.where(since_s >= 0, spike_mv * np.exp(-np.maximum(since_s, 0) / 0.03), 0)
        signal[near] -= 1.5 * np.exp(-(((since_s - 0.1) / 0.03) ** 2) / 2)
    return sample, signal.astype(np.float32)


@pytest.mark.parametrize("rate_hz", [360.0, 500.0])
def test_one_lead_with_spikes_is_enough(rate_hz: float) -> None:
    sample, with_spikes = lead(rate_hz, 40, 0.8)
    without = lead(rate_hz, 40, 0.0)[1]
    assert paced_beats(sample, np.stack([without, with_spikes]), rate_hz).all()
    found = heartlm.detect_pacing(Recording.from_array(np.stack([without, with_spikes]), rate_hz=rate_hz), sample)
    np.testing.assert_allclose(found, sample - 0.1 * rate_hz, atol=0.01 * rate_hz)
    assert not paced_beats(sample, np.stack([without, -without]), rate_hz).any()
    assert not paced_beats(sample, np.stack([without, 0.1 * with_spikes]), rate_hz).any()
    assert not paced_beats(sample, with_spikes[None], 250.0).any()  # a rate at which it is not looked for


def test_the_flat_top_of_a_complex_that_was_cut_is_no_baseline() -> None:
    sample, without = lead(500.0, 40, 0.0)
    cut = np.maximum(-without, 0).clip(max=0.6) - 1.2 * np.roll(np.maximum(-without, 0) > 1.1, 20)
    assert not paced_beats(sample, cut[None].astype(np.float32), 500.0).any()


def test_a_few_steps_do_not_make_a_stretch_paced() -> None:
    sample, with_spikes = lead(360.0, 700, 0.8)
    without = lead(360.0, 700, 0.0)[1]
    few = np.where(np.arange(len(without)) < 60.5 * 360, with_spikes, without)[None]
    assert not paced_beats(sample, few, 360.0).any()
    first = np.where(np.arange(len(without)) < (BLOCK_S + 0.5) * 360, with_spikes, without)[None]
    assert paced_beats(sample, first, 360.0).tolist() == [at < BLOCK_S * 360 for at in sample]


def test_conducted_beats_of_simulated_patients_are_not_paced() -> None:
    for patient in range(4):
        signals, known = simulate_recording(SimulationConfig(minutes=1, rate_hz=500, seed=1), patient)
        assert not np.isin(known.symbol, ["/", "f"]).any()
        assert not paced_beats(known.sample, signals, 500.0).any()


def test_paced_rhythm_is_told_and_no_ventricular_run() -> None:
    _, signal = lead(360.0, 90, 0.8)
    recording = Recording(
        rate_hz=360.0,
        num_samples=len(signal),
        lead_names=("MLII",),
        units=("mV",),
        path=Path("r"),
        samples=lambda start, stop, leads: signal[None, start:stop],
    )
    found = Analyst.load(Path("beats"), Path("af"), Path("waveform")).analyze(recording)
    assert found.num_beats > 80
    assert np.mean(found.symbol == "N") > 0.95
    assert any(note.startswith("paced: ") for note in found.notes)
    assert not any(found.of_kind(kind) for kind in ("VT", "IVR", "couplet"))
