"""AV blocks and junctional rhythm: found where they are simulated, and not in rhythms that look like them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import heartlm
from heartlm.analysis.analyze import Analyst
from heartlm.analysis.av_block import _is_alone, atrial_events
from heartlm.delineation.intervals import Intervals
from heartlm.ecg.recording import Recording
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.patients import profile_of
from heartlm.simulate.synthesis import simulate_recording
from tests.synthetic_leads import VENTRICULAR, WAVES
from tests.test_delineate import heart_mv

KINDS = ("AV block III", "AV block II", "Wenckebach", "junctional")
TWELVE = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
SLOW = [index for index in range(200) if profile_of(7, index) == "sick-sinus"]


@pytest.fixture(scope="module")
def analyst() -> Analyst:
    return Analyst.load(Path("beats"), Path("af"), Path("waveform"))


def simulated(rhythm: str, patient: int, leads: tuple[str, ...]) -> Recording:
    config = SimulationConfig(minutes=0.5, rate_hz=250, leads=leads, noise=0.5, seed=7)
    signal, _ = simulate_recording(config, patient, rhythm=rhythm)
    return Recording.from_array(signal, rate_hz=250.0, leads=list(leads))


@pytest.mark.parametrize("leads", [("MLII", "V1"), TWELVE], ids=["two", "twelve"])
@pytest.mark.parametrize(
    ("rhythm", "kind"),
    [
        ("BII", "Wenckebach"),
        ("BII Mobitz", "AV block II"),
        ("BII 2:1", "AV block II"),
        ("BIII", "AV block III"),
        ("N", ""),
        ("B", ""),
        ("AFIB", ""),
    ],
)
def test_simulated_rhythms(analyst: Analyst, rhythm: str, kind: str, leads: tuple[str, ...]) -> None:
    findings = analyst.analyze(simulated(rhythm, SLOW[0], leads))
    assert [each for each in KINDS if findings.of_kind(each)] == [kind] * bool(kind)
    if kind:
        assert findings.seconds_of(kind) > 0.5 * findings.recording.duration_s
        assert not findings.of_kind("AF")


def test_junctional_rhythm_of_twelve_leads(analyst: Analyst) -> None:
    findings = analyst.analyze(simulated("NOD", SLOW[0], TWELVE))
    assert findings.seconds_of("junctional") > 20
    assert "unctional rhythm" in findings.reading()


def of_beats(beats_s: np.ndarray, atria_s: np.ndarray) -> Intervals:
    """Waves of ten seconds with P waves where `atria_s` says; QRS and T of `beats_s`."""
    ventricles = tuple(wave for wave in WAVES if wave[0] > -0.1)
    atria = tuple((0.0, mv, width) for after_s, mv, width in WAVES if after_s <= -0.1)
    duration_s = float(beats_s[-1]) + 1
    signal = heart_mv(beats_s, duration_s, 250.0, ventricles) + heart_mv(atria_s, duration_s, 250.0, atria)
    recording = Recording.from_array(signal[None], rate_hz=250.0, leads=["II"])
    return heartlm.delineate(recording, beats=np.round(beats_s * 250).astype(np.int64))


def kinds_of(waves: Intervals) -> list[str]:
    num = waves.delineation.num_beats
    normal, none = np.ones(num, np.bool_), np.zeros(num, np.bool_)
    return [event.kind for event in atrial_events(waves, normal, none, none, np.ones(num - 1, np.bool_))]


def test_a_blocked_premature_atrial_beat_is_no_block() -> None:
    atria = np.arange(0.84, 24, 0.9)
    dropped = atria[2::5]
    beats = np.setdiff1d(atria, dropped) + 0.16
    assert kinds_of(of_beats(beats, atria)) == ["AV block II"]
    # The dropped ones come early, and the next sinus beat comes a full interval after them.
    late = np.concatenate([[0.0], np.cumsum(np.isin(atria[:-1], dropped) * -0.3)])
    early = atria + late - 0.3 * np.isin(atria, dropped)
    assert kinds_of(of_beats(np.sort(early[~np.isin(atria, dropped)]) + 0.16, early)) == []


def test_a_p_wave_with_two_humps_is_not_independent_of_the_beats() -> None:
    """Either hump may be the higher one, at a steady PR interval."""
    beats = np.arange(1.0, 20.0, 1.05)
    signal = heart_mv(beats, 21.0, 250.0, tuple(wave for wave in WAVES if wave[0] > -0.1))
    for after_s, of_odd, of_even in ((-0.25, 0.2, 0.06), (-0.15, 0.1, 0.15)):
        for height_mv, some in ((of_odd, beats[1::2]), (of_even, beats[::2])):
            signal += heart_mv(some, 21.0, 250.0, ((after_s, height_mv, 0.026),))
    recording = Recording.from_array(signal[None], rate_hz=250.0, leads=["II"])
    waves = heartlm.delineate(recording, beats=np.round(beats * 250).astype(np.int64))
    peaks = waves.delineation.beats - waves.delineation.all_leads[:, 0, 1]
    assert waves.delineation.has_p.mean() > 0.9 and np.ptp(np.percentile(peaks, [25, 75])) > 0.07 * 250
    assert kinds_of(waves) == []


def test_one_blocked_p_wave_is_not_enough() -> None:
    atria = np.arange(0.84, 16, 0.9)
    assert kinds_of(of_beats(np.delete(atria, 7) + 0.16, atria)) == []
    assert kinds_of(of_beats(np.delete(atria, [7, 11]) + 0.16, atria)) == ["AV block II"]


def test_what_is_lost_or_ventricular_is_not_judged() -> None:
    atria = np.arange(0.84, 16, 0.9)
    waves = of_beats(np.delete(atria, [5, 9, 13]) + 0.16, atria)
    num = waves.delineation.num_beats
    normal, none, clear = np.ones(num, np.bool_), np.zeros(num, np.bool_), np.ones(num - 1, np.bool_)
    assert len(atrial_events(waves, normal, none, none, clear)) == 1
    assert atrial_events(waves, normal, none, none, ~clear) == []
    assert atrial_events(waves, ~normal, ~none, none, clear) == []
    assert atrial_events(waves, normal, none, ~none, clear) == []


def test_few_beats_are_not_examined(analyst: Analyst) -> None:
    recording = simulated("N", SLOW[0], ("MLII", "V1"))
    short = Recording.from_array(recording.signal(0, 750), rate_hz=250.0, leads=["MLII", "V1"])
    assert {"AV block II", "junctional"} <= analyst.analyze(short).unexamined.keys()
    assert replace(analyst.analyze(recording)).unexamined.keys().isdisjoint(KINDS)


def test_a_ventricular_beat_that_was_not_detected_is_no_block() -> None:
    """The delineator may take it for the T wave of the beat before: the usual end of T counts."""
    atria = np.arange(0.84, 16, 0.9)
    beats = np.delete(atria, [7, 11]) + 0.16
    for waves_of_v, expected in (((), True), (VENTRICULAR[:2], False)):
        missed = atria[[6, 10]] + 0.16 + 0.45
        signal = of_beats(beats, atria).delineation.recording.signal()[0]
        if waves_of_v:
            signal = signal + heart_mv(missed, len(signal) / 250, 250.0, waves_of_v)
        recording = Recording.from_array(signal[None], rate_hz=250.0, leads=["II"])
        delineation = heartlm.delineate(recording, beats=np.round(beats * 250).astype(np.int64)).delineation
        all_leads = delineation.all_leads.copy()
        all_leads[6, 2] = np.round((missed[0] + np.array([-0.05, 0.0, 0.1])) * 250)
        late_t = replace(delineation, all_leads=all_leads)
        assert _is_alone(late_t, round(atria[7] * 250), 6, 0.4) == expected
