"""The sample tokenizer: one token every 10 ms, whose code is an amplitude level.

It is a causal version of HeartGPT's tokenizer (100 Hz, about a hundred levels). Instead of the minimum and maximum of a
whole window, the baseline is a slow average of the past and the scale is the median peak-to-peak amplitude of the last
seconds. The only look-ahead is the low-pass of one grid step (10 ms, rounded up to a whole sample). The tokens also
represent signals without beats, such as fibrillation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import UNLABELLED, Annotations
from heartlm.kernels.library import kernel
from heartlm.tokenizers.base import Facet, Lead, Tokenizer, Tokens
from heartlm.tokenizers.rr import waves_of
from heartlm.tokenizers.waveform import LEAST_SCALE_MV, SPARE, fill_gaps, hann_weights

Floats = NDArray[np.float32]

GRID_HZ = 100.0
"""Grid points a second."""
NUM_LEVELS = 128
LIMIT = 1.5
"""Amplitude of the outermost levels' outer edge, in running amplitudes."""
STEP = 2 * LIMIT / NUM_LEVELS
"""Height of a level, in running amplitudes."""
BASELINE_S = 1.0
"""Time constant of the average that is taken away."""
KEEP = math.exp(-1 / (BASELINE_S * GRID_HZ))
"""What the average keeps of itself from a grid point to the next."""
SCALE_SECONDS = 8
"""How many whole past seconds the running amplitude looks back."""
FIRST_SCALE_MV = 1.5
"""What the first second is divided by, before any amplitude is known."""


@dataclass
class SampleTokenizer(Tokenizer):
    """Amplitude levels at 100 Hz. The levels are fixed in running amplitudes and need no fitting.

    The decoding error of an unclipped value is at most half a step, 1.2 % of the running peak-to-peak amplitude.
    """

    kind = "sample"
    needs_beats: ClassVar[bool] = False
    needs_fitting: ClassVar[bool] = False

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The single facet, with 128 amplitude levels."""
        return (Facet("amplitude", NUM_LEVELS),)

    def encode(self, lead: Lead) -> Tokens:
        """Encode all samples of one lead; a token has the label of the beat whose R peak it contains."""
        rate_hz, beats, signal = lead.rate_hz, lead.annotations, fill_gaps(lead.signal_mv)
        codes, sample, scale = amplitude_levels(signal, rate_hz)
        beat_class = classes_on_grid(beats, len(codes), len(signal), rate_hz)
        return Tokens(codes[:, None], sample, beat_class, beats.rhythm_at(sample), scale)

    def geometry(self) -> list[Floats]:
        """Return the amplitude of each level, and sines and cosines of it, slow to fast; `[128, 17]`."""
        return [waves_of(dequantize(np.arange(NUM_LEVELS, dtype=np.uint16)) / LIMIT).astype(np.float32)]


TOKENIZER = SampleTokenizer


def amplitude_levels(signal: Floats, rate_hz: float) -> tuple[NDArray[np.uint16], NDArray[np.int64], Floats]:
    """Return the level of a lead at every grid point.

    Args:
        signal: float32 `[num_samples]`, no NaN.
        rate_hz: sampling rate in Hz.

    Returns:
        Levels uint16 `[num_points]`, the nearest sample of each int64, and the amplitude it was divided by, float32.
    """
    second, num_samples, weights = round(GRID_HZ), len(signal), hann_weights(rate_hz, GRID_HZ)
    num_points = math.ceil(num_samples * GRID_HZ / rate_hz)
    codes, sample = np.empty(num_points, np.uint16), np.empty(num_points, np.int64)
    scale = np.empty(num_points, np.float32)
    signal = np.ascontiguousarray(signal, np.float32)
    stretches = np.empty((2, math.ceil(rate_hz) + len(weights) + SPARE), np.float32)
    ranges, ordered = np.empty(num_points // second + 1), np.empty(SCALE_SECONDS)
    kernel("amplitude_levels")(
        *(signal, num_samples, weights, len(weights)),
        *(rate_hz / GRID_HZ, second, KEEP, SCALE_SECONDS),
        *(FIRST_SCALE_MV, LEAST_SCALE_MV, LIMIT, STEP, NUM_LEVELS, num_points),
        *(*stretches, ranges, ordered, codes, sample, scale),
    )
    return codes, sample, scale


def classes_on_grid(beats: Annotations, num_tokens: int, num_samples: int, rate_hz: float) -> NDArray[np.int8]:
    """Return the AAMI class of the beat whose R peak each grid token contains, −1 if none; int8 `[num_tokens]`.

    Beats past the `num_samples` samples of the signal at `rate_hz` are left out.
    """
    beat_class = np.full(num_tokens, UNLABELLED, np.int8)
    inside = beats.sample < num_samples
    at = np.minimum(np.round(beats.sample[inside] * GRID_HZ / rate_hz).astype(np.int64), num_tokens - 1)
    beat_class[at] = beats.beat_classes()[inside]
    return beat_class


def dequantize(code: NDArray[np.uint16]) -> Floats:
    """Return the centre of each level, in running amplitudes."""
    centre: Floats = ((code.astype(np.float32) + 0.5) * STEP - LIMIT).astype(np.float32)
    return centre
