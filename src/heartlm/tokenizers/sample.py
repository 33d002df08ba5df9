"""The sample tokenizer: one token every 10 ms, whose code is an amplitude level.

It is a causal version of HeartGPT's tokenizer (100 Hz, about a hundred levels). Instead of the minimum and maximum of a
whole window, the baseline is a slow average of the past and the scale is the median peak-to-peak amplitude of the last
seconds. The only look-ahead is the low-pass of one grid step (10 ms, rounded up to a whole sample). The tokens also
represent signals without beats, such as fibrillation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.beats import UNLABELLED
from heartlm.ecg.recording import Annotations
from heartlm.kernels.amplitude import BASELINE_S as BASELINE_S
from heartlm.kernels.amplitude import GRID_HZ as GRID_HZ
from heartlm.kernels.amplitude import LIMIT, NUM_LEVELS, STEP, amplitude_levels
from heartlm.tokenizers.base import Facet, Lead, Tokenizer, Tokens
from heartlm.tokenizers.rr import waves_of
from heartlm.tokenizers.waveform import fill_gaps, hann_weights

Floats = NDArray[np.float32]


@dataclass
class SampleTokenizer(Tokenizer):
    """Amplitude levels at 100 Hz. The levels are fixed in running amplitudes and need no fitting.

    The decoding error of an unclipped value is at most half a step, 1.2 % of the running peak-to-peak amplitude.
    """

    kind: ClassVar[str] = "sample"
    needs_beats: ClassVar[bool] = False
    needs_fitting: ClassVar[bool] = False

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The single facet, with 128 amplitude levels."""
        return (Facet("amplitude", NUM_LEVELS),)

    def encode(self, lead: Lead) -> Tokens:
        """Encode all samples of one lead; a token has the label of the beat whose R peak it contains."""
        rate_hz, beats, signal = lead.rate_hz, lead.annotations, fill_gaps(lead.signal_mv)
        codes, sample, scale = amplitude_levels(signal, rate_hz, hann_weights(rate_hz, GRID_HZ))
        beat_class = classes_on_grid(beats, len(codes), len(signal), rate_hz)
        return Tokens(codes[:, None], sample, beat_class, beats.rhythm_at(sample), scale)

    def decode(self, codes: NDArray[np.uint16], scale_mv: float | Floats = 1.0) -> Floats:
        """Decode the baseline-free waveform at 100 Hz in millivolts; float32 `[num_tokens]`."""
        waveform: Floats = (dequantize(codes[:, 0]) * scale_mv).astype(np.float32)
        return waveform

    def geometry(self) -> list[Floats]:
        """Return the amplitude of each level, and sines and cosines of it, slow to fast; `[128, 17]`."""
        return [waves_of(dequantize(np.arange(NUM_LEVELS, dtype=np.uint16)) / LIMIT).astype(np.float32)]


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
