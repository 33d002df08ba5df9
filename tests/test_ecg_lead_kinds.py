from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heartlm.ecg.leads import channels_without_ecg, ecg_leads, is_ecg_name
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.arrays import array_recording
from tests.synthetic_leads import beat_times_s, ecg_mv

RATE = 250.0
TIME_S = np.arange(0, 60, 1 / RATE)
BEATS_S = beat_times_s(90)
ECG = ecg_mv(TIME_S, BEATS_S)
SLOW = np.sin(2 * np.pi * 0.25 * TIME_S)


def pulse(late_s: float = 0.25) -> np.ndarray:
    """A pulse wave: a quick rise and a slow fall, `late_s` after each beat."""
    since = TIME_S[:, np.newaxis] - BEATS_S[BEATS_S < 59] - late_s
    return (np.exp(-0.5 * (since / np.where(since < 0, 0.05, 0.15)) ** 2)).sum(axis=1)


def recording(**channels: np.ndarray) -> Recording:
    names = [name.replace("_", " ") for name in channels]
    return array_recording(Path("r.npy"), np.stack(list(channels.values())), names, ["mV"] * len(names), RATE)


@pytest.mark.parametrize(
    "name",
    ["I", "aVF", "V6", "MLII", "vx", "MCL1", "CM5", "ECG", "ECG II", "EKG1", "ecg_raw", "Ch 1 ECG", "Chest ECG",
     "lead II", "ECG LA-RA", "ECG1-ECG2", "I-ECG", "A-S", "FECG"],
)  # fmt: skip
def test_names_of_ecg_leads(name: str) -> None:
    assert is_ecg_name(name) is True


@pytest.mark.parametrize(
    "name",
    ["RESP", "Resp oro-nasal", "Resp C.O.", "PLETH", "Pleth2", "ABP", "PAP", "CVP", "CO2", "EEG Fpz-Cz", "C3-A2", "Fp1",
     "T3-O1", "EOG horizontal", "EMG submental", "foot GSR", "Accelerometer_X", "Status", "DIG DTRIG", "HR", "UC",
     "ECG HR", "EKG_Off", "EKG_Impedance", "THOR RES", "EEG (C4-A1)", "Resp (ECG)", "Temp rectal", "Event marker"],
)  # fmt: skip
def test_names_of_other_channels(name: str) -> None:
    assert is_ecg_name(name) is False


@pytest.mark.parametrize("name", ["", "lead 1", "CH2", "Channel-3", "C3", "X", "noise1", "Holter", "data"])
def test_names_that_do_not_say(name: str) -> None:
    assert is_ecg_name(name) is None


def test_a_channel_is_left_out_by_its_name_whatever_it_looks_like() -> None:
    both = recording(RESP=ECG, CH_1=ECG)
    assert channels_without_ecg(both) == {0: "by its name"}
    assert ecg_leads(both) == (1,)


def test_without_a_named_lead_slow_waves_and_late_pulses_are_left_out() -> None:
    four = recording(A=SLOW, B=pulse(), C=ECG, D=-0.5 * ECG)
    others = channels_without_ecg(four)
    assert others[0] == "a slow wave"
    assert others[1].startswith("a pulse wave, with the beats of ")
    assert ecg_leads(four) == (2, 3)


def test_a_channel_without_the_beats_of_the_named_lead_is_left_out() -> None:
    noise = np.random.default_rng(0).normal(size=len(TIME_S))
    other = ecg_mv(TIME_S, beat_times_s(90, seed=5) + 0.3)
    three = recording(MLII=ECG, A=-ECG, B=noise, C=pulse(), D=other)
    reason = "without the beats of MLII"
    assert channels_without_ecg(three) == {2: reason, 3: reason, 4: reason}


@pytest.mark.parametrize("signal", [ECG, -ECG, 0 * ECG, np.full_like(ECG, np.nan), pulse(), ECG[:2000]])
def test_what_may_be_the_only_ecg_is_kept(signal: np.ndarray) -> None:
    assert channels_without_ecg(recording(A=signal)) == {}


def test_coarse_ventricular_fibrillation_and_a_short_ecg_are_kept() -> None:
    random = np.random.default_rng(1)
    phase = 2 * np.pi * np.cumsum(random.normal(5, 1.0, len(TIME_S))) / RATE
    assert channels_without_ecg(recording(A=np.sin(phase), B=np.cos(phase))) == {}
    assert channels_without_ecg(recording(A=ECG[:2500], B=pulse()[:2500])) == {}


def test_a_channel_that_cannot_be_read_counts_as_an_ecg() -> None:
    def fail(*_: object) -> np.ndarray:
        raise HeartlmError("r.dat: ends early")

    unreadable = Recording(
        rate_hz=250, num_samples=9000, lead_names=("A",), units=("mV",), path=Path("r"), samples=fail
    )
    assert ecg_leads(unreadable) == (0,)
    slow = array_recording(Path("r"), SLOW[np.newaxis], ["A"], ["mV"], 10.0)
    assert ecg_leads(slow) == (0,)


def test_the_preferred_lead_is_known_with_ecg_before_its_name() -> None:
    assert ecg_leads(recording(ECG_V1=ECG, ECG_II=ECG, ECG_I=ECG)) == (1, 2, 0)
