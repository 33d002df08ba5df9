"""A lead whose electrode comes off for some seconds: its beats do not count there, and the other leads decide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heartlm.analysis.analyze import Analyst
from heartlm.analysis.findings import Findings
from heartlm.ecg.matching import match_beats
from heartlm.ecg.recording import Recording

RATE_HZ = 250.0
DURATION_S, OFF_S, BACK_S = 60, 30.1, 34.3
SINUS_S = np.arange(0.5, 59.5, 0.8)
EARLY = np.arange(2, len(SINUS_S), 4)
"""Beats that are ventricular: early and wide."""
Waves = tuple[tuple[float, float, float], ...]
NARROW: Waves = ((-0.16, 0.1, 0.02), (0, 1.2, 0.011), (0.028, -0.3, 0.011), (0.25, 0.3, 0.04))
WIDE: Waves = ((0, 1.9, 0.04), (0.09, -0.7, 0.035), (0.3, -0.5, 0.06))
"""Centre in seconds, height in mV and width in seconds of each wave."""


def beats() -> tuple[np.ndarray, np.ndarray]:
    """Positions of the beats, and whether each is ventricular."""
    at_s, is_wide = SINUS_S.copy(), np.isin(np.arange(len(SINUS_S)), EARLY)
    at_s[is_wide] -= 0.25
    return np.rint(at_s * RATE_HZ).astype(np.int64), is_wide


def lead(gain: float, noise_mv: float, comes_off: str = "") -> np.ndarray:
    """A lead that comes off between `OFF_S` and `BACK_S`: in a `step` from which it returns, or at the `rail`."""
    random, time_s = np.random.default_rng(3), np.arange(round(DURATION_S * RATE_HZ)) / RATE_HZ
    signal = 0.03 * np.sin(1.3 * time_s)
    for sample, is_wide in zip(*beats(), strict=True):
        for centre_s, height_mv, width_s in WIDE if is_wide else NARROW:
            signal += gain * height_mv * np.exp(-0.5 * ((time_s - sample / RATE_HZ - centre_s) / width_s) ** 2)
    signal += random.normal(0, noise_mv, len(time_s))
    off = (time_s >= OFF_S) & (time_s < BACK_S)
    if comes_off == "step":
        signal[off] = 3 * gain * np.exp((OFF_S - time_s[off]) / 0.9) + random.normal(0, 0.005, off.sum())
    elif comes_off == "rail":
        signal[off] = 3 * gain
    return signal.astype(np.float32)


def analysed(analyst: Analyst, *signals: np.ndarray) -> Findings:
    samples = np.stack(signals)
    recording = Recording(
        rate_hz=RATE_HZ,
        num_samples=samples.shape[1],
        lead_names=("II", "V1")[: len(samples)],
        units=("mV",) * len(samples),
        path=Path("r"),
        samples=lambda start, stop, leads: samples[list(leads), start:stop],
    )
    return analyst.analyze(recording)


@pytest.mark.parametrize("comes_off", ["step", "rail"])
def test_the_other_lead_decides_while_a_lead_is_off(analyst: Analyst, comes_off: str) -> None:
    result = analysed(analyst, lead(1.0, 0.01, comes_off), lead(-0.6, 0.08))
    sample, is_wide = beats()
    match = match_beats(sample, result.sample, RATE_HZ, 0.1)
    assert len(match.reference) == len(sample) and len(match.extra) == 0
    inside = (sample > OFF_S * RATE_HZ) & (sample < BACK_S * RATE_HZ)
    assert (result.symbol[inside] == np.where(is_wide, "V", "N")[inside]).all()
    assert {event.kind for event in result.events} & {"unreadable", "pause", "asystole", "bradycardia", "IVR"} == set()
    of_lead = dict(zip(result.leads, result.quality, strict=True))
    assert of_lead[1].min() > 0.75, "V1 can be read all the time"
    assert of_lead[0][[0, 1, 2, 4, 5]].min() > 0.75
    assert of_lead[0][3] == pytest.approx(1 - (BACK_S - OFF_S) / 10, abs=0.1), "II cannot while its electrode is off"


@pytest.mark.parametrize("num_leads", [1, 2])
def test_seconds_in_which_all_leads_are_off_are_unreadable(analyst: Analyst, num_leads: int) -> None:
    result = analysed(analyst, *[lead(1.0, 0.01, "step"), lead(-0.6, 0.02, "step")][:num_leads])
    (event,) = result.of_kind("unreadable")
    assert abs(event.start / RATE_HZ - OFF_S) < 0.9 and abs(event.stop / RATE_HZ - BACK_S) < 0.9
    sample, _ = beats()
    outside = sample[(sample < event.start - 0.1 * RATE_HZ) | (sample > event.stop + 0.1 * RATE_HZ)]
    match = match_beats(outside, result.sample, RATE_HZ, 0.1)
    assert len(match.reference) == len(outside) and len(match.extra) == 0
    assert {event.kind for event in result.events} & {"pause", "asystole", "bradycardia", "VF"} == set()


def test_what_is_lost_in_all_leads_is_not_readable(analyst: Analyst) -> None:
    signals = [lead(1.0, 0.01), lead(-0.6, 0.02)]
    for signal in signals:
        signal[round(32 * RATE_HZ) : round(36 * RATE_HZ)] = np.nan
    assert analysed(analyst, *signals).quality[:, 3] == pytest.approx([0.6, 0.6], abs=0.05)


def test_a_pause_is_no_lead_that_is_off(analyst: Analyst) -> None:
    signal = lead(1.0, 0.01)
    sample, _ = beats()
    first, stop = sample[np.searchsorted(sample, OFF_S * RATE_HZ) + np.array([-1, 5])]
    quiet = slice(first + round(0.45 * RATE_HZ), stop - round(0.3 * RATE_HZ))
    # the baseline drifts in the pause, less than a beat is high
    signal[quiet] = 0.7 * np.sin(np.linspace(0, np.pi, quiet.stop - quiet.start)) + signal[quiet.start]
    result = analysed(analyst, signal)
    assert result.of_kind("unreadable") == []
    assert len(result.of_kind("pause")) + len(result.of_kind("asystole")) == 1
