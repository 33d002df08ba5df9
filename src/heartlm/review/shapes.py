"""What a beat looks like: its wave in each analysed lead, the model's vector, and the intervals around it.

recording ─► pieces of an hour ─► waves of the beats, float16 [num_beats, num_leads, 64]
                            └──► tokens of the best lead ─► hidden states ─► vectors and class probabilities
waves, vectors, intervals, probabilities ─► principal components ─► features, float32 [num_beats, num_features]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.matching import nearest
from heartlm.ecg.recording import ARTEFACT, Annotations, Recording
from heartlm.tokenizers.base import Lead

if TYPE_CHECKING:
    from heartlm.inference.finetuned import FineTuned

Floats = NDArray[np.float32]
Places = NDArray[np.int64]

BEFORE_S, AFTER_S = 0.28, 0.48
"""Seconds before and after a beat that its wave lasts: P wave to T wave."""
SAMPLES = 64
"""Samples of a wave."""
PIECE_S, MARGIN_S = 3600.0, 60.0
COMPONENTS = {"waves": 16, "vectors": 12}
"""Principal components that are features."""
WEIGHTS = {"waves": 1.0, "vectors": 0.7, "intervals": 0.6, "classes": 0.7}
"""Weight of each group of features in distances; each group has a variance of 1 before."""


def _pieces(recording: Recording, sample: Places) -> list[tuple[int, int, int, int]]:
    """Return first and last sample of each piece with its margin, and the first and last beat of the piece."""
    length, margin = round(PIECE_S * recording.rate_hz), round(MARGIN_S * recording.rate_hz)
    pieces = []
    for start in range(0, recording.num_samples, length):
        first, last = np.searchsorted(sample, [start, start + length])
        if last > first:
            stop = min(recording.num_samples, start + length + margin)
            pieces.append((max(0, start - margin), stop, int(first), int(last)))
    return pieces


def beat_waves(recording: Recording, sample: Places, leads: tuple[int, ...]) -> NDArray[np.float16]:
    """Return the wave of each beat in mV, without its median, float16 `[num_beats, num_leads, SAMPLES]`."""
    waves = np.zeros((len(sample), len(leads), SAMPLES), np.float16)
    offset = np.linspace(-BEFORE_S, AFTER_S, SAMPLES) * recording.rate_hz
    for start, stop, first, last in _pieces(recording, sample):
        signals = np.nan_to_num(recording.signal(start, stop, leads))
        place = np.clip(sample[first:last, None] - start + offset, 0, signals.shape[1] - 2)
        left = place.astype(np.int64)
        part = (place - left).astype(np.float32)
        for lead, signal in enumerate(signals):
            wave = signal[left] * (1 - part) + signal[left + 1] * part
            waves[first:last, lead] = np.clip(wave - np.median(wave, axis=1, keepdims=True), -100, 100)
    return waves


def beat_vectors(model: FineTuned, recording: Recording, sample: Places, lead: int) -> tuple[Floats, Floats]:
    """Return the hidden state of each beat in a lead, and the probabilities of the classes N, S, V and F.

    Returns:
        float32 `[num_beats, width]` and `[num_beats, 4]`.
    """
    from heartlm.analysis.embed import hidden_states

    vectors = np.zeros((len(sample), model.model.config.width or 0), np.float32)
    for start, stop, first, last in _pieces(recording, sample):
        begin, end = np.searchsorted(sample, [start, stop])
        own = sample[begin:end] - start
        if len(own) < 2:
            continue
        beats = Annotations(recording.rate_hz, own, np.full(len(own), "Q", "<U1"), beats_labelled=False)
        signal = recording.signal(start, stop, (lead,))[0]
        if np.nanmin(signal, initial=np.inf) >= np.nanmax(signal, initial=-np.inf):
            continue
        tokens = model.tokenizer.encode(Lead(beats, signal))
        if tokens.num_tokens:
            states = next(hidden_states(model.model, [tokens.codes], model.info.window))
            vectors[first:last] = states[nearest(own, tokens.sample)][first - begin : last - begin]
    probability = model.model.classified(vectors)
    kept = [index for index, name in enumerate(model.info.classes) if name != ARTEFACT]
    return vectors, np.asarray(probability[:, kept], np.float32)


def features_of(sample: Places, rate_hz: float, waves: NDArray[np.float16], vectors: Floats, classes: Floats) -> Floats:
    """Return what distances between beats are measured by, float32 `[num_beats, num_features]`.

    Args:
        sample: positions of the beats.
        rate_hz: sampling rate in Hz.
        waves, vectors: of each beat.
        classes: probability of each class, `[num_beats, num_classes]`.
    """
    flat = waves.astype(np.float32)
    # High leads would count for all: each is divided by its usual height.
    flat /= np.maximum(np.median(np.ptp(flat[:: max(1, len(flat) // 5000)], axis=2), axis=0), 0.05)[None, :, None]
    flat = np.clip(flat.reshape(len(flat), -1), -4, 4)
    groups = {
        "waves": _components(flat, COMPONENTS["waves"]),
        "vectors": _components(vectors, COMPONENTS["vectors"]),
        "intervals": intervals_of(sample, rate_hz),
        "classes": np.log(np.clip(classes, 1e-3, 1)) - np.log(1e-3),
    }
    return np.concatenate([WEIGHTS[name] * _unit(group) for name, group in groups.items()], axis=1).astype(np.float32)


def intervals_of(sample: Places, rate_hz: float) -> Floats:
    """Return logarithms of the interval before and after each beat by the local median, float32 `[num_beats, 2]`."""
    from scipy.ndimage import median_filter

    if len(sample) < 2:
        return np.zeros((len(sample), 2), np.float32)
    rr_s = np.clip(np.diff(sample) / rate_hz, 0.2, 3)
    usual = median_filter(rr_s, size=min(17, len(rr_s)), mode="nearest")
    ratio = np.log(rr_s / usual)
    return np.stack([np.append(0, ratio), np.append(ratio, 0)], axis=1).astype(np.float32)


def _components(values: Floats, number: int) -> Floats:
    """Return the first principal components, by at most 20,000 rows."""
    values = values - values.mean(axis=0)
    some = values[:: max(1, len(values) // 20_000)].astype(np.float64)
    _, directions = np.linalg.eigh(some.T @ some)
    chosen = directions[:, ::-1][:, :number]
    # The sign of a direction is arbitrary: the largest entry is positive.
    sign = np.sign(chosen[np.abs(chosen).argmax(axis=0), np.arange(chosen.shape[1])])
    return np.asarray(values @ (chosen * sign).astype(np.float32))


def _unit(group: Floats) -> Floats:
    """Scale a group so that its columns together have a variance of 1."""
    group = group - group.mean(axis=0)
    return np.asarray(group / max(float(np.sqrt(group.var(axis=0).sum())), 1e-6))
