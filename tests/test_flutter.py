"""Atrial flutter, by its wave: on signals made for it, and on simulated patients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from heartlm import load_model
from heartlm.analysis.flutter import RATE_HZ, flutter, wave_share
from heartlm.analysis.p_denial import FLUTTER_SHARE
from heartlm.cli.main import main

RATE = 250.0


def ecg(
    rr_s: NDArray[np.float64], wave_hz: float, t_wave_mv: float = 0.15
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Two leads with QRS complexes and T waves at the intervals given, and P waves or a wave of the atria."""
    times = 0.4 + np.concatenate([[0.0], np.cumsum(rr_s)])
    time = np.arange(int((times[-1] + 0.4) * RATE)) / RATE
    turns = 2 * np.pi * wave_hz * time
    signal = 0.15 * (np.sin(turns) + 0.4 * np.sin(2 * turns))
    waves = ((-0.16, 0.1, 0.02), (0.0, 1.0, 0.012), (0.28, t_wave_mv, 0.04))
    for offset, size, width in waves if not wave_hz else waves[1:]:
        for beat in times:
            signal += size * np.exp(-0.5 * ((time - beat - offset) / width) ** 2)
    noise = np.random.default_rng(3).normal(0, 0.01, (2, len(time)))
    return (signal + noise).astype(np.float32), np.round(times * RATE).astype(np.int64)


def test_flutter_is_found_with_regular_and_irregular_conduction_and_nothing_in_sinus_rhythm() -> None:
    rng = np.random.default_rng(1)
    cases = {
        "2:1": (np.full(40, 0.42), 2 / 0.42, True),
        "irregular": (rng.choice([2, 3, 4], 40) * 0.21, 1 / 0.21, True),
        "sinus, 110/min": (0.545 + rng.normal(0, 0.003, 40), 0.0, False),
        "sinus, 72/min": (0.83 + rng.normal(0, 0.02, 24), 0.0, False),
        "irregular without a wave": (rng.uniform(0.4, 1.1, 24), 0.0, False),
        "a wave of 7 Hz": (rng.uniform(0.4, 1.1, 24), 7.0, False),
    }
    for name, (rr_s, wave_hz, is_flutter) in cases.items():
        found, _ = flutter(*ecg(rr_s, wave_hz), RATE)
        assert (found > 0).mean() > 0.8 if is_flutter else not found.any(), name


def test_high_t_waves_of_a_fast_rhythm_are_no_flutter() -> None:
    found, share = flutter(*ecg(np.full(40, 0.40), 0.0, t_wave_mv=1.5), RATE)
    assert not found.any()
    assert share.max() < FLUTTER_SHARE


def test_the_share_of_a_wave_is_that_of_a_least_squares_fit() -> None:
    rng = np.random.default_rng(2)
    signal, between = 0.005 * rng.normal(size=10 * RATE_HZ).cumsum(), rng.random(10 * RATE_HZ) < 0.7
    time = np.arange(len(signal))[between] / RATE_HZ
    kept = signal[between]
    share = wave_share(signal[None], between)
    for place, wave_hz in ((0, 3.85), (17, 4.7), (40, 5.85)):
        turns = 2 * np.pi * wave_hz * time
        parts = np.stack([np.ones_like(time), *(part(n * turns) for n in (1, 2) for part in (np.sin, np.cos))], axis=1)
        left = kept - parts @ np.linalg.lstsq(parts, kept, rcond=None)[0]
        assert share[place] == pytest.approx(1 - (left**2).sum() / ((kept - kept.mean()) ** 2).sum(), rel=1e-6)


def test_too_short_empty_and_invalid_signals_have_no_flutter() -> None:
    signals, sample = ecg(np.full(10, 0.42), 2 / 0.42)
    assert not flutter(signals, sample, RATE)[0].any()
    assert not np.any(flutter(np.full((1, 5000), np.nan, np.float32), np.arange(100, 5000, 105), RATE))
    assert not np.any(flutter(np.zeros((2, 5000), np.float32), np.arange(0), RATE))
    assert [len(each) for each in flutter(np.zeros((1, 2501), np.float32), np.arange(0), RATE)] == [11, 11]


@pytest.mark.slow
def test_simulated_flutter_is_found_by_analyze_and_named_in_the_annotations(tmp_path: Path) -> None:
    assert main(["data", "simulate", str(tmp_path / "ecg"), "--patients", "24", "--minutes", "10", "--seed", "4"]) == 0
    from heartlm.databases.database import open_database

    database, model, seconds = open_database(tmp_path / "ecg"), load_model(), []
    for record_id in database.record_ids:
        known = database.annotations(record_id)
        assert known is not None
        spans = [(span.start, span.stop) for span in known.rhythms if span.name == "AFL"]
        found = model.analyze(database.recording(record_id))
        called = np.zeros(found.recording.num_samples, np.bool_)
        truth = called.copy()
        for event in found.of_kind("flutter"):
            called[event.start : event.stop] = True
        for start, stop in spans:
            truth[start:stop] = True
        seconds.append([part.sum() / known.rate_hz for part in (truth, truth & called, called & ~truth)])
        if called.any():
            assert "AFL" in {span.name for span in found.annotations().rhythms}
    total = np.sum(seconds, axis=0)
    assert total[0] > 100 and total[1] > 0.6 * total[0] and total[2] < 0.2 * total[0]
