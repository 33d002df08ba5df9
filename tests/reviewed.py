"""A drawn recording with known beats, and its analysis as `heartlm review` stores it, made without a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import Event, Findings
from heartlm.databases.database import opened
from heartlm.ecg.recording import Recording
from heartlm.review.families import families_of
from heartlm.review.opening import SHIPPED, made_by
from heartlm.review.shapes import beat_waves, features_of
from heartlm.review.stored import Stored, file_digests, write_stored

RATE_HZ, NUM_BEATS = 250, 240
FALSE_VT = range(100, 105)
"""Beats of the normal shape that are named V."""
TRUE_V = (20, 21, 60, 150, 151, 152, 153, 200)


def drawn(folder: Path, name: str = "r1", seed: int = 1) -> Recording:
    """Write a recording of two leads, three minutes of sinus rhythm with ventricular beats, and noise of a seed."""
    places = beat_places()
    time_s = np.arange(places[-1] + 2 * RATE_HZ) / RATE_HZ
    signal = np.zeros((2, len(time_s)))
    rng = np.random.default_rng(seed)
    for number, place in enumerate(places):
        near = slice(max(0, place - RATE_HZ), place + RATE_HZ)
        after = time_s[near] - place / RATE_HZ
        if number in TRUE_V:
            waves = [(0.0, 0.05, 1.6, -1.2), (0.3, 0.06, -0.5, 0.4)]
        else:
            waves = [(-0.16, 0.025, 0.15, 0.1), (0.0, 0.012, 1.2, -0.7), (0.27, 0.05, 0.3, 0.2)]
        for at, width, *heights in waves:
            signal[:, near] += np.outer(heights, np.exp(-(((after - at) / width) ** 2) / 2))
    signal += 0.01 * rng.standard_normal(signal.shape)
    made = Recording.from_array(signal.astype(np.float32), rate_hz=RATE_HZ, leads=["II", "V1"], record_id=name)
    return opened(made.to_wfdb(folder, name))


def beat_places() -> NDArray[np.int64]:
    """Positions of the beats: 75/min, ventricular beats early, five fast beats."""
    rr_s = np.full(NUM_BEATS, 0.8)
    rr_s[list(TRUE_V)] = 0.5
    rr_s[list(FALSE_VT)] = 0.45
    places: NDArray[np.int64] = np.round(np.cumsum(rr_s) * RATE_HZ).astype(np.int64)
    return places


def store(recording: Recording, out: Path) -> Findings:
    """Write the analysis of a drawn recording: its beats, of which `FALSE_VT` are named V, and an AF that is none."""
    sample = beat_places()
    symbol = np.full(NUM_BEATS, "N")
    symbol[[*TRUE_V, *FALSE_VT]] = "V"
    probability = np.full(NUM_BEATS, 0.98, np.float32)
    probability[list(FALSE_VT)] = 0.6
    quality = np.ones((2, -(-recording.num_samples // (10 * RATE_HZ))), np.float32)
    af = Event("AF", int(sample[160]), int(sample[199]), 0.7, 40, 75.0)
    found = Findings(recording, (0, 1), sample, symbol, probability, (af,), quality, made_by=made_by(SHIPPED))
    found = found.corrected(sample, symbol, probability)
    waves = beat_waves(recording, sample, (0, 1))
    classes = np.full((NUM_BEATS, 4), 0.01, np.float32)
    classes[np.arange(NUM_BEATS), ["NSVF".index(each) for each in symbol]] = probability
    features = features_of(sample, RATE_HZ, waves, classes, classes)
    out.mkdir(exist_ok=True)
    stored = Stored(found, waves, features, classes, families_of(features, symbol), "drawn")
    write_stored(out / f"{recording.record_id}.analysis.safetensors", stored, file_digests(recording))
    return found
