"""Small in-memory recordings for the tests of tokenizers and corpora: one heart, seen at any rate, gain and length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import Annotations, RhythmSpan
from heartlm.tokenizers.base import Lead

WAVES = ((-0.17, 0.12, 0.025), (-0.03, -0.12, 0.012), (0.0, 1.1, 0.014), (0.032, -0.25, 0.014), (0.26, 0.3, 0.05))
"""Time after the R peak in seconds, amplitude in mV and width in seconds: P, Q, R, S and T of a normal beat."""
VENTRICULAR = ((0.0, 1.4, 0.04), (0.09, -0.6, 0.05), (0.3, -0.35, 0.06))
EVERY = 6
"""Each sixth beat is ventricular, early, and followed by a pause."""


def beat_times_s(num_beats: int, seed: int = 0) -> NDArray[np.float64]:
    """R peaks in seconds, sinus rhythm of about 75/min with early beats; float64 `[num_beats]`.

    They fall on tenths of a second, so that they are whole samples at every rate the tests use.
    """
    random = np.random.default_rng(seed)
    place = np.arange(num_beats)
    factor = np.where(is_ventricular(place), 0.62, np.where(is_ventricular(place - 1), 1.38, 1.0))
    return np.round(0.5 + np.cumsum(factor * random.normal(0.8, 0.03, num_beats)), 1)


def is_ventricular(place: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which beats of `place` are ventricular; bool, the shape of `place`."""
    return place % EVERY == EVERY - 1


def ecg_mv(time_s: NDArray[np.float64], beats_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """The heart's voltage at any times, baseline wander and respiration included; the shape of `time_s`."""
    voltage = 0.1 * np.sin(2 * np.pi * 0.21 * time_s)
    for place, at_s in enumerate(beats_s):
        near = slice(*np.searchsorted(time_s, [at_s - 0.5, at_s + 0.8]))
        since = time_s[near] - at_s
        breath = 1 + 0.1 * np.sin(1.3 * place)
        for centre_s, amplitude_mv, width_s in VENTRICULAR if is_ventricular(np.int64(place)) else WAVES:
            voltage[near] += breath * amplitude_mv * np.exp(-0.5 * ((since - centre_s) / width_s) ** 2)
    return voltage


def lead_of(
    signal_mv: NDArray[np.floating], sample: NDArray[np.int64], rate_hz: float = 250.0, symbol: str | None = None
) -> Lead:
    """A lead of `signal_mv` with beats at `sample`, their codes the letters of `symbol` (default: all N)."""
    signal = np.asarray(signal_mv, np.float32)
    symbols = np.array(list(symbol or "N" * len(sample)), "<U1")
    rhythms = (RhythmSpan(0, len(signal), "N"),)
    return Lead(Annotations(rate_hz, np.asarray(sample, np.int64), symbols, rhythms), signal)


def heart_lead(num_beats: int = 60, *, rate_hz: float = 250.0, seed: int = 0, noise_mv: float = 0.0) -> Lead:
    """One lead of the heart of `seed`: the same heart at every rate."""
    beats_s = beat_times_s(num_beats, seed)
    num_samples = round((beats_s[-1] + 1.0) * rate_hz)
    signal = ecg_mv(np.arange(num_samples) / rate_hz, beats_s)
    signal += noise_mv * np.random.default_rng([seed, 1]).normal(size=num_samples)
    symbol = "".join("V" if early else "N" for early in is_ventricular(np.arange(num_beats)))
    return lead_of(signal, np.round(beats_s * rate_hz).astype(np.int64), rate_hz, symbol)


def rhythm_lead(rr_s: NDArray[np.float64], rate_hz: float = 250.0) -> Lead:
    """Beats `rr_s` seconds apart and no signal at all."""
    sample = np.round(np.concatenate([[0.1], 0.1 + np.cumsum(rr_s)]) * rate_hz).astype(np.int64)
    return Lead(Annotations(rate_hz, sample, np.full(len(sample), "N", "<U1"), beats_labelled=False))
