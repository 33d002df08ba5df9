"""P waves that deny AF in long recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heartlm.analysis.analyze import SHORTEST_AF_S, Analyst
from heartlm.analysis.findings import Event, Findings
from heartlm.analysis.flutter import flutter
from heartlm.analysis.p_denial import NEAR_BEATS, denied_by_p, without_p
from heartlm.delineation.delineate import delineate
from heartlm.delineation.intervals import measure
from heartlm.ecg.recording import Recording

RATE_HZ, SECONDS, HALF_S = 250.0, 240, 120.0


def recording_of(p_until_s: float) -> Recording:
    """Irregular beats, with P waves 0.16 s before those up to `p_until_s` and fibrillatory waves afterwards."""
    time_s = np.arange(round(SECONDS * RATE_HZ)) / RATE_HZ
    beats_s = 0.5 + np.cumsum(np.random.default_rng(1).uniform(0.45, 1.15, 400))
    signal = np.random.default_rng(0).normal(0, 0.005, len(time_s))
    signal += 0.04 * np.sin(2 * np.pi * 6 * time_s) * (time_s > p_until_s)
    for at in beats_s[beats_s < SECONDS - 1]:
        p_mv = 0.15 * (at <= p_until_s)
        for place, width, height in ((0, 0.012, 1), (0.03, 0.012, -0.4), (0.25, 0.05, 0.25), (-0.16, 0.025, p_mv)):
            around = slice(max(0, round((at + place - 0.3) * RATE_HZ)), round((at + place + 0.3) * RATE_HZ))
            signal[around] += height * np.exp(-(((time_s[around] - at - place) / width) ** 2))
    signals = signal.astype(np.float32)[None]
    return Recording(
        rate_hz=RATE_HZ,
        num_samples=len(signal),
        lead_names=("II",),
        units=("mV",),
        path=Path("r"),
        samples=lambda start, stop, leads: signals[list(leads), start:stop],
    )


def af_s(findings: Findings) -> list[tuple[float, float]]:
    return [(each.start / RATE_HZ, each.stop / RATE_HZ) for each in findings.events if each.kind == "AF"]


def test_irregular_beats_with_p_waves_are_no_af(analyst: Analyst) -> None:
    findings = analyst.analyze(recording_of(SECONDS))
    assert af_s(findings) == []
    assert any("P waves at a steady PR deny it" in note for note in findings.notes)


def test_irregular_beats_without_p_waves_stay_af(analyst: Analyst) -> None:
    findings = analyst.analyze(recording_of(0.0))
    assert sum(stop - start for start, stop in af_s(findings)) > 0.9 * SECONDS
    assert not any("P waves" in note for note in findings.notes)


def test_part_with_p_waves_is_cut_out_of_af(analyst: Analyst) -> None:
    [(start, stop)] = af_s(analyst.analyze(recording_of(HALF_S)))
    assert start == pytest.approx(HALF_S, abs=10)
    assert stop > SECONDS - 5
    assert stop - start > SHORTEST_AF_S


def test_waves_of_flutter_at_a_steady_interval_before_the_beats_are_no_p_waves() -> None:
    cycle_s, size = 0.23, round(SECONDS * RATE_HZ)
    rng, time_s, signal = (
        np.random.default_rng(1),
        np.arange(size) / RATE_HZ,
        np.random.default_rng(0).normal(0, 0.01, size),
    )
    beats_s = 0.5 + np.cumsum(rng.choice([2, 3, 4, 5], 400) * cycle_s) + rng.uniform(-0.008, 0.008, 400)
    beats_s = beats_s[beats_s < SECONDS - 1]
    bumps = [(at, 0.03, 0.06) for at in np.arange(0.34, SECONDS, cycle_s)]
    bumps += [(at + place, width, mv) for at in beats_s for place, width, mv in ((0, 0.012, 1), (0.25, 0.05, 0.2))]
    for at, width, mv in bumps:
        around = slice(max(0, round((at - 0.3) * RATE_HZ)), round((at + 0.3) * RATE_HZ))
        signal[around] += mv * np.exp(-(((time_s[around] - at) / width) ** 2))
    recording = Recording.from_array(signal.astype(np.float32), rate_hz=RATE_HZ, leads=["II"])
    sample = np.round(beats_s * RATE_HZ).astype(np.int64)
    waves, (_, share) = measure(delineate(recording, sample)), flutter(recording.signal(), sample, RATE_HZ)
    event, normal = Event("AF", int(sample[0]), int(sample[-1]) + 1, 0.9), np.ones(len(sample), np.bool_)
    atrial = share[(sample // RATE_HZ).astype(np.int64)]
    assert without_p([event], waves, normal, atrial, 30 * RATE_HZ) == ([event], 0)
    left, denied = without_p([event], waves, normal, np.zeros(len(sample)), 30 * RATE_HZ)
    assert left == []
    assert denied == event.stop - event.start


@pytest.mark.parametrize(
    ("share", "spread_ms", "denied"), [(0.8, 10.0, True), (0.2, 10.0, False), (1.0, 200.0, False), (0.0, 0.0, False)]
)
def test_p_waves_deny_if_most_beats_have_them_at_a_steady_pr(share: float, spread_ms: float, denied: bool) -> None:
    has_p = np.arange(100) % 10 < 10 * share
    pr = np.where(has_p, 160 + np.random.default_rng(0).uniform(-spread_ms, spread_ms, 100), np.nan)
    normal = np.arange(100) % 3 < 2
    assert (denied_by_p(has_p, pr, normal) == denied).all()
    assert not denied_by_p(has_p[:NEAR_BEATS], pr[:NEAR_BEATS], normal[:NEAR_BEATS]).any()
