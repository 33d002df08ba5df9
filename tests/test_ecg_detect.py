"""Finding beats: in both modes, at every rate and scale, chunk by chunk as at once, and none where there are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.databases.database import open_database
from heartlm.ecg.detect import SETTINGS, Mode, StreamingDetector, detect_beats
from heartlm.ecg.matching import BeatMatch, match_beats
from heartlm.ecg.recording import RHYTHM_INDEX
from tests.conftest import shared_data
from tests.synthetic_leads import beat_times_s, ecg_mv

RATE_HZ = 250.0
MODES: list[Mode] = list(SETTINGS)
examples = settings(derandomize=True, deadline=None, max_examples=25)
both_modes = pytest.mark.parametrize("mode", MODES)


def heart(duration_s: float, polarity: float = 1.0, rate_hz: float = RATE_HZ) -> tuple[np.ndarray, np.ndarray]:
    """A lead with a narrow QRS every 0.8 s, a T wave after each and a slow baseline; and the R peaks."""
    time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
    peaks_s = np.arange(0.5, duration_s - 0.5, 0.8)
    peaks = np.rint(peaks_s * rate_hz).astype(np.int64)
    signal = 0.1 * np.sin(time_s)
    for peak in peaks / rate_hz:
        signal += polarity * np.exp(-(((time_s - peak) / 0.012) ** 2)) + 0.2 * np.exp(
            -(((time_s - peak - 0.25) / 0.05) ** 2)
        )
    return signal.astype(np.float32), peaks


def stream(signal: np.ndarray, rate_hz: float, mode: Mode, lengths: list[int]) -> np.ndarray:
    """The beats of a stream whose chunks have `lengths`, over and over."""
    detector = StreamingDetector(rate_hz, mode)
    found, start, turn = [], 0, 0
    while start < len(signal):
        stop = start + lengths[turn % len(lengths)]
        found.append(detector.push(signal[start:stop]))
        start, turn = stop, turn + 1
    return np.concatenate([*found, detector.finish()])


@both_modes
@pytest.mark.parametrize("polarity", [1.0, -1.0])
def test_finds_the_peaks_themselves(polarity: float, mode: Mode) -> None:
    signal, peaks = heart(30, polarity)
    np.testing.assert_array_equal(detect_beats(signal, RATE_HZ, mode), peaks)


@both_modes
@pytest.mark.parametrize("polarity", [1.0, -1.0])
def test_two_peaks_about_as_high_do_not_take_turns(polarity: float, mode: Mode) -> None:
    """An R and an S wave of which now one, now the other is larger: all marks are on the side of most beats."""
    rate_hz, random = 500.0, np.random.default_rng(3)
    time_s, beats_s = np.arange(round(60 * rate_hz)) / rate_hz, np.arange(1, 59, 0.8)
    signal = np.zeros(len(time_s))
    for beat_s in beats_s:
        r, s = 1 + random.uniform(-0.05, 0.2), 1 + random.uniform(-0.1, 0.1)
        signal += r * np.exp(-(((time_s - beat_s) / 0.012) ** 2)) - s * np.exp(
            -(((time_s - beat_s - 0.04) / 0.012) ** 2)
        )
    found = detect_beats((polarity * signal).astype(np.float32), rate_hz, mode)
    assert len(found) == len(beats_s)
    assert np.abs(np.diff(found) / rate_hz - 0.8).max() <= 0.01


@both_modes
@pytest.mark.parametrize("rate_hz", [100.0, 125.0, 128.0, 200.0, 257.0, 300.0, 360.0, 500.0, 1000.0])
def test_finds_beats_with_ectopic_ones_among_them_at_any_rate(rate_hz: float, mode: Mode) -> None:
    beats_s = beat_times_s(80)
    signal = ecg_mv(np.arange(int((beats_s[-1] + 1) * rate_hz)) / rate_hz, beats_s).astype(np.float32)
    found = detect_beats(signal, rate_hz, mode) / rate_hz
    assert len(found) == len(beats_s)
    assert np.abs(found - beats_s).max() <= 0.0125
    assert np.mean(np.abs(found - beats_s) <= 1.01 / rate_hz) > 0.8


def fast_lead(rate_bpm: float, alternans: float = 0.0, rate_hz: float = RATE_HZ) -> tuple[np.ndarray, np.ndarray]:
    """Half a minute of a fast regular rhythm with T waves a quarter as high as R, in noise; and the R peaks.

    Every second beat is lower by the fraction `alternans` than the others.
    """
    random, interval_s = np.random.default_rng(2), 60 / rate_bpm
    time_s, beats_s = np.arange(round(30 * rate_hz)) / rate_hz, np.arange(0.5, 29.5, interval_s)
    beats_s = beats_s + random.normal(0, 0.01 * interval_s, len(beats_s))
    signal = 0.05 * np.sin(1.6 * time_s) + random.normal(0, 0.01, len(time_s))
    for number, beat_s in enumerate(beats_s):
        waves = (
            (-0.022, -0.12, 0.009),
            (0, 1.1, 0.011),
            (0.025, -0.25, 0.01),
            (0.55 * interval_s, 0.3, 0.15 * interval_s),
        )
        for centre_s, height, width_s in waves:
            wave = height * np.exp(-0.5 * ((time_s - beat_s - centre_s) / width_s) ** 2)
            signal += (1 - alternans * (number % 2)) * wave
    return signal.astype(np.float32), np.rint(beats_s * rate_hz).astype(np.int64)


@both_modes
@pytest.mark.parametrize("rate_hz", [128.0, 250.0, 500.0])
@pytest.mark.parametrize("alternans", [0.0, 0.3])
@pytest.mark.parametrize("rate_bpm", [100, 150, 200, 238, 268, 300])
def test_fast_rhythms_are_found_beat_by_beat(rate_bpm: float, alternans: float, rate_hz: float, mode: Mode) -> None:
    signal, peaks = fast_lead(rate_bpm, alternans, rate_hz)
    match = match_beats(peaks, detect_beats(signal, rate_hz, mode), rate_hz, 0.05)
    assert len(match.extra) == 0
    # A live stream knows that a rhythm is fast after five beats of it.
    assert mode == "causal" or len(match.missed) == 0
    assert len(match.missed) <= 5 and np.all(match.missed < 10)


@both_modes
def test_a_t_wave_as_near_as_the_beats_of_a_fast_rhythm_is_none(mode: Mode) -> None:
    """Alternate waves of 0.2 s, the second of them half as high: a rate of 150 and not of 300."""
    time_s = np.arange(round(30 * RATE_HZ)) / RATE_HZ
    peaks = np.arange(100, len(time_s) - 100, 100)
    signal = np.zeros(len(time_s))
    for beat_s in peaks / RATE_HZ:
        for centre_s, height, width_s in (0, 1, 0.012), (0.2, 0.6, 0.03):
            signal += height * np.exp(-0.5 * ((time_s - beat_s - centre_s) / width_s) ** 2)
    np.testing.assert_array_equal(detect_beats(signal.astype(np.float32), RATE_HZ, mode), peaks)


@both_modes
@pytest.mark.parametrize("scale", [1e-6, 40.0, 1e6])
def test_the_scale_does_not_matter(scale: float, mode: Mode) -> None:
    signal, peaks = heart(30)
    np.testing.assert_array_equal(detect_beats((signal * scale + 3 * scale).astype(np.float32), RATE_HZ, mode), peaks)


@both_modes
def test_gaps_are_bridged_or_part_the_signal(mode: Mode) -> None:
    signal, peaks = heart(40)
    between = int(peaks[10] + 100)
    signal[between : between + 10] = np.nan
    signal[3000:4500] = np.nan
    signal[:20] = np.nan
    signal[-3:] = np.nan
    found = detect_beats(signal, RATE_HZ, mode)
    np.testing.assert_array_equal(found, peaks[np.isfinite(signal[peaks])])


@both_modes
@examples
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 900), min_size=1, max_size=5))
def test_chunks_do_not_matter(mode: Mode, seed: int, lengths: list[int]) -> None:
    random = np.random.default_rng(seed)
    signal = np.concatenate([heart(12)[0], fast_lead(270)[0][: round(12 * RATE_HZ)]])
    signal *= np.where(random.random(24) < 0.3, 0.1, 1).repeat(int(RATE_HZ)).astype(np.float32)
    signal += random.normal(0, 0.05, len(signal)).astype(np.float32)
    for length in (10, 25, 26, 400):
        start = int(random.integers(len(signal)))
        signal[start : start + length] = np.nan
    np.testing.assert_array_equal(stream(signal, RATE_HZ, mode, lengths), detect_beats(signal, RATE_HZ, mode))


@both_modes
def test_beats_come_out_within_the_delay(mode: Mode) -> None:
    signal, _ = heart(60)
    signal[3000:4000] *= np.float32(0.25)
    detector = StreamingDetector(RATE_HZ, mode)
    came = {int(beat): now for now in range(len(signal)) for beat in detector.push(signal[now : now + 1])}
    found = np.array(list(came))
    delay = np.array(list(came.values())) - found
    assert len(found) >= (60 - detector.longest_delay_s) / 0.8 - 1
    assert np.all(np.diff(found) > 0)
    assert delay.max() <= detector.longest_delay_s * RATE_HZ
    ordinary = (found > 2 * RATE_HZ) & (found < 3000)
    assert delay[ordinary].max() <= detector.delay_s * RATE_HZ
    assert mode == "offline" or detector.delay_s < 0.7


@both_modes
def test_a_decision_knows_nothing_beyond_the_delay(mode: Mode) -> None:
    signal, _ = heart(60)
    other = signal.copy()
    turn = 8000
    other[turn:] = np.random.default_rng(0).normal(size=len(signal) - turn)
    before = turn - int(StreamingDetector(RATE_HZ, mode).longest_delay_s * RATE_HZ) - 1
    known, same = detect_beats(signal, RATE_HZ, mode), detect_beats(other, RATE_HZ, mode)
    assert np.count_nonzero(known < before) > 20
    np.testing.assert_array_equal(known[known < before], same[same < before])


@both_modes
def test_one_beat_far_smaller_than_the_rest_is_found_by_looking_back(mode: Mode) -> None:
    signal, peaks = heart(40)
    small = slice(peaks[20] - 60, peaks[20] + 100)
    signal[small] *= np.float32(0.27)
    assert peaks[20] in detect_beats(signal, RATE_HZ, mode)


@both_modes
def test_a_spike_takes_no_beat_with_it(mode: Mode) -> None:
    signal, peaks = heart(40)
    signal[peaks[20] + 100] += 30
    found = detect_beats(signal, RATE_HZ, mode)
    assert not set(peaks) - set(found)


@both_modes
@pytest.mark.parametrize(
    "signal",
    [
        np.zeros(0, np.float32),
        np.zeros(5000, np.float32),
        np.full(5000, 1024.7, np.float32),
        np.full(5000, np.nan, np.float32),
        np.random.default_rng(0).normal(size=400).astype(np.float32),
        np.where(np.arange(5000) % 300 < 100, np.nan, np.sin(np.arange(5000) / 9)).astype(np.float32),
    ],
    ids=["empty", "flat", "flat, far from zero", "invalid", "too short", "nothing but short stretches"],
)
def test_signals_without_beats(signal: np.ndarray, mode: Mode) -> None:
    found = detect_beats(signal, RATE_HZ, mode)
    assert (found.dtype, len(found)) == (np.int64, 0)


@both_modes
@examples
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1.0, 1e30]), st.sampled_from([62.0, 100.0, 977.0]))
def test_noise_and_fibrillation_do_no_harm(mode: Mode, seed: int, scale: float, rate_hz: float) -> None:
    random = np.random.default_rng(seed)
    time_s = np.arange(int(20 * rate_hz)) / rate_hz
    waves = np.sin(2 * np.pi * np.cumsum(random.uniform(3, 8, len(time_s))) / rate_hz)
    signal = (scale * (waves + random.normal(0, 0.3, len(waves)))).astype(np.float32)
    found = detect_beats(signal, rate_hz, mode)
    assert np.all(np.diff(found) > 0) and np.all((found >= 0) & (found < len(signal)))


@pytest.mark.parametrize("rate_hz", [50.0, float("nan")])
def test_a_rate_below_the_detectors_band_is_refused(rate_hz: float) -> None:
    with pytest.raises(ValueError, match=f"rate_hz is {rate_hz:g}"):
        detect_beats(np.zeros(500, np.float32), rate_hz)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode is 'live', one of offline, causal expected"):
        StreamingDetector(360.0, "live")  # type: ignore[arg-type]


def matched(folder: Path, record: str, mode: Mode) -> tuple[BeatMatch, np.ndarray]:
    """The beats of a recording matched with the annotated ones, and how far each is from its partner in seconds.

    What is found in fibrillation, which has no beats, is left out.
    """
    database = open_database(folder)
    recording, annotated = database.recording(record), database.annotations(record)
    assert annotated is not None
    found = detect_beats(recording.signal(leads=[0])[0], recording.rate_hz, mode)
    found = found[annotated.rhythm_at(found) != RHYTHM_INDEX["VFIB"]]
    match = match_beats(annotated.sample, found, recording.rate_hz)
    return match, np.abs(found[match.detected] - annotated.sample[match.reference]) / recording.rate_hz


@both_modes
def test_finds_the_beats_of_the_simulator(tiny_database: Path, mode: Mode) -> None:
    missed = extra = paired = 0
    for record in open_database(tiny_database).record_ids:
        match, _ = matched(tiny_database, record, mode)
        missed, extra, paired = missed + len(match.missed), extra + len(match.extra), paired + len(match.reference)
    assert paired > 2000
    assert 2 * paired / (2 * paired + missed + extra) > 0.99


@both_modes
def test_record_100_is_found_to_the_beat(mode: Mode) -> None:
    match, away_s = matched(shared_data("mitdb"), "100", mode)
    assert len(match.missed) + len(match.extra) <= 2
    assert np.mean(away_s <= 0.010) > 0.999
