"""The millivolt tokenizer: one token each hundredth of a second, its code an absolute voltage.

The sample tokenizer divides by a running amplitude, which hides what tells asystole from fibrillation. Here a level is
a voltage, finely spaced near zero and widely far from it. A slow average of the past is taken away, so that an
electrode's offset does not use up the levels; it keeps 99 % of a wave of 1 Hz. The only look ahead is the low-pass of
one grid step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.amplitude import GRID_HZ, KEEP
from heartlm.kernels.waveform import interpolate, smooth
from heartlm.tokenizers.base import Facet, Lead, Tokenizer, Tokens
from heartlm.tokenizers.sample import classes_on_grid
from heartlm.tokenizers.waveform import fill_gaps, hann_weights

Floats = NDArray[np.float32]

NUM_LEVELS = 1024
NO_SIGNAL = 0
"""The code where no sample is valid; it decodes to 0 mV."""
KNEE_MV = 0.05
"""Levels are evenly spaced well below this voltage and evenly spaced in its logarithm well above."""
LIMIT_MV = 20.0
"""Voltage of the outermost levels."""
STEP = math.asinh(LIMIT_MV / KNEE_MV) / (NUM_LEVELS // 2 - 1)
"""Distance of two levels: 0.7 µV near zero, 1.3 % of the voltage far from it."""


@dataclass
class MillivoltTokenizer(Tokenizer):
    """Voltages at 100 Hz. Levels are fixed, so there is nothing to fit."""

    kind: ClassVar[str] = "millivolts"
    needs_beats: ClassVar[bool] = False
    needs_fitting: ClassVar[bool] = False

    @property
    def facets(self) -> tuple[Facet, ...]:
        """One facet of 1,024 voltages."""
        return (Facet("voltage", NUM_LEVELS),)

    def encode(self, lead: Lead) -> Tokens:
        """Encode all samples of one lead; a token carries the label of the beat whose R peak falls into it."""
        rate_hz, beats, raw = lead.rate_hz, lead.annotations, lead.signal_mv
        signal = fill_gaps(raw)
        num_points = math.ceil(len(signal) * GRID_HZ / rate_hz)
        position = np.arange(num_points, dtype=np.float64) * (rate_hz / GRID_HZ)
        sample = np.minimum(np.round(position).astype(np.int64), len(signal) - 1)
        codes = quantize(high_pass(interpolate(smooth(signal, hann_weights(rate_hz, GRID_HZ)), position)))
        codes[np.isnan(raw[sample])] = NO_SIGNAL
        beat_class = classes_on_grid(beats, len(codes), len(signal), rate_hz)
        return Tokens(codes[:, None], sample, beat_class, beats.rhythm_at(sample), np.ones(len(codes), np.float32))

    def decode(self, codes: NDArray[np.uint16], scale_mv: float | Floats = 1.0) -> Floats:
        """Waveform at 100 Hz in millivolts, without its slow average; float32 `[num_tokens]`."""
        waveform: Floats = (dequantize(codes[:, 0]) * scale_mv).astype(np.float32)
        return waveform

    def geometry(self) -> list[Floats]:
        """The level's voltage in millivolts, its place between −1 and 1, and whether there is a signal: `[1024, 3]`."""
        level = np.arange(NUM_LEVELS, dtype=np.uint16)
        place, known = np.where(level == NO_SIGNAL, 0, level / (NUM_LEVELS / 2) - 1), level != NO_SIGNAL
        return [np.stack([dequantize(level), place, known], axis=1).astype(np.float32)]


def high_pass(grid: Floats) -> Floats:
    """Take the running average of `grid` `[num_tokens]` away; it starts at the first value."""
    from scipy.signal import lfilter

    if len(grid) == 0:
        return grid
    average, _ = lfilter([1 - KEEP], [1, -KEEP], grid, zi=[KEEP * float(grid[0])])
    centred: Floats = (grid - average).astype(np.float32)
    return centred


def quantize(voltage_mv: Floats) -> NDArray[np.uint16]:
    """Level of each voltage, 512 for 0 mV; what lies beyond ±`LIMIT_MV` falls into the outermost levels."""
    level = np.rint(np.arcsinh(voltage_mv / KNEE_MV) / STEP) + NUM_LEVELS // 2
    code: NDArray[np.uint16] = np.clip(level, 1, NUM_LEVELS - 1).astype(np.uint16)
    return code


def dequantize(code: NDArray[np.uint16]) -> Floats:
    """Voltage of each level in millivolts, 0 without a signal."""
    level = np.where(code == NO_SIGNAL, 0, code.astype(np.float32) - NUM_LEVELS // 2)
    voltage: Floats = (KNEE_MV * np.sinh(level * STEP)).astype(np.float32)
    return voltage
