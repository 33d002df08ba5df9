"""Runs of beats called ventricular whose waves are noise are left out; true runs of VT stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heartlm.analysis.analyze import Analyst
from heartlm.analysis.run_shape import HIGHEST, NOISY, PERHAPS, REPEATS, UNLIKE, noise_runs, run_shape
from heartlm.ecg.recording import Recording
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording
from heartlm.tasks.waveform import NOISE, VF, VT

RATE_HZ = 250.0


def beats_of(waves: dict[int, np.ndarray], num_beats: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """A lead with narrow beats a second apart; some have a wave of their own."""
    sample, time_s = (np.arange(num_beats) + 1) * 250, np.arange(-50, 51) / RATE_HZ
    signal = np.zeros((num_beats + 2) * 250, np.float32)
    for beat, at in enumerate(sample):
        signal[at - 50 : at + 51] = waves.get(beat, np.exp(-((time_s / 0.012) ** 2) / 2))
    return sample, signal


def test_beats_are_compared_with_the_next_and_with_the_usual_height() -> None:
    time_s = np.arange(-50, 51) / RATE_HZ
    wide, late = (-3 * np.exp(-(((time_s - at) / 0.04) ** 2) / 2) for at in (0, 0.02))
    other = np.sin(2 * np.pi * 8 * time_s)
    sample, signal = beats_of({10: wide, 11: late, 12: other, 13: wide, 20: wide})
    is_normal = ~np.isin(np.arange(40), [10, 11, 12, 13, 20])
    alike, height = run_shape(sample, is_normal, np.stack([signal, 0 * signal]), RATE_HZ).transpose(1, 2, 0)
    assert alike[0, 10] > 0.95  # of the same shape, 20 ms later
    assert alike[0, 11] < 0.6 and alike[0, 12] < 0.6
    assert np.isnan(alike[0, [0, 13, 20]]).all()  # before a normal beat there is nothing to compare
    assert height[0, [10, 20]] == pytest.approx([3, 3], rel=0.1)
    assert np.isnan(height[0, is_normal]).all()
    assert (height[1, [10, 20]] == 0).all()  # a flat lead
    assert np.isnan(run_shape(sample, is_normal & (np.arange(40) < 7), signal[None], RATE_HZ)[:, 1]).all()


@pytest.mark.parametrize(
    ("alike", "height", "wave", "is_noise"),
    [
        ((0.9, 0.1), (2.0, 1.0), {}, False),  # one lead shows that they repeat
        ((UNLIKE - 0.1, 0.1), (2.0, 1.0), {}, True),
        ((REPEATS - 0.1, 0.1), (2.0, 1.0), {}, False),  # from several places, in a quiet signal
        ((REPEATS - 0.1, 0.1), (2.0, 1.0), {NOISE: PERHAPS + 0.1}, True),
        ((UNLIKE - 0.1, 0.1), (2.0, 1.0), {VT: 0.4, VF: 0.2}, False),  # polymorphic
        ((0.9, 0.9), (1.0, HIGHEST + 1), {}, True),
        ((0.9, 0.9), (1.0, 1.0), {NOISE: NOISY + 0.1}, True),  # a regular movement
        ((np.nan, np.nan), (np.nan, np.nan), {}, False),  # nothing to compare with
    ],
)
def test_which_runs_are_noise(
    alike: tuple[float, float], height: tuple[float, float], wave: dict[int, float], is_noise: bool
) -> None:
    shape = np.broadcast_to(np.array([alike, height], np.float32), (9, 2, 2))
    seconds = np.zeros((9, 5))
    for name, probability in wave.items():
        seconds[:, name] = probability
    is_v = np.array(list("NVVVNVVNN")) == "V"
    expected = np.isin(np.arange(9), [1, 2, 3]) & is_noise  # a couplet is no run
    assert noise_runs(is_v, shape, seconds, 3).tolist() == expected.tolist()


def test_a_movement_of_all_electrodes_is_no_vt() -> None:
    """A simulated patient in sinus rhythm moves for 20 s; without the rule that gives 2 VT and 26 V beats."""
    signals, known = simulate_recording(SimulationConfig(minutes=2, seed=3), 3)
    assert {span.name for span in known.rhythms} == {"N"}
    start, num, drawn = round(60 * RATE_HZ), round(20 * RATE_HZ), np.random.default_rng(2)
    hz = np.fft.rfftfreq(num, 1 / RATE_HZ)
    for lead in signals:
        movement = np.fft.irfft(np.fft.rfft(drawn.normal(size=num)) * ((hz > 1) & (hz < 6)), num)
        lead[start : start + num] += 1.5 * np.percentile(np.abs(lead), 99) * movement / movement.std()
    recording = Recording.from_array(signals, rate_hz=RATE_HZ, record_id="moved")
    findings = Analyst.load(Path("beats"), Path("af"), Path("waveform")).analyze(recording)
    assert not findings.of_kind("VT") and not findings.of_kind("VF") and not findings.of_kind("IVR")
    moved = (findings.sample >= start) & (findings.sample < start + num)
    assert (findings.symbol[moved] == "V").sum() <= 2
    assert not [kind for kind in ("pause", "asystole", "bradycardia") if findings.of_kind(kind)]
    (note,) = [each for each in findings.notes if "in runs would be V" in each]
    inside = (findings.left_out >= start) & (findings.left_out < start + num)
    assert inside.sum() >= int(note.split()[0]) >= 20
