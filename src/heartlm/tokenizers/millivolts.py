"""The millivolt tokenizer: one token every 10 ms, whose code is an absolute voltage.

The sample tokenizer divides by a running amplitude, which hides the difference between asystole and fibrillation. Here
each level is a voltage; levels are closely spaced near zero and widely spaced far from it. A slow average of the past
is subtracted, so that an electrode offset does not use up the levels; this keeps 99 % of a 1 Hz wave. The only
look-ahead is the low-pass of one grid step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.filters import filtered
from heartlm.tokenizers.base import Facet, Lead, Tokenizer, Tokens
from heartlm.tokenizers.sample import GRID_HZ, KEEP, classes_on_grid
from heartlm.tokenizers.waveform import fill_gaps, hann_weights, interpolate, smooth

Floats = NDArray[np.float32]

NUM_LEVELS = 1024
NO_SIGNAL = 0
"""Code of a grid point without a valid sample; it decodes to 0 mV."""
KNEE_MV = 0.05
"""Voltage well below which the levels are evenly spaced, and well above which they are logarithmically spaced."""
LIMIT_MV = 20.0
"""Voltage of the outermost levels in mV."""
STEP = math.asinh(LIMIT_MV / KNEE_MV) / (NUM_LEVELS // 2 - 1)
"""Spacing of the levels: 0.7 µV near zero, 1.3 % of the voltage far from it."""


@dataclass
class MillivoltTokenizer(Tokenizer):
    """Voltages at 100 Hz. The levels are fixed and need no fitting."""

    kind = "millivolts"
    needs_beats: ClassVar[bool] = False
    needs_fitting: ClassVar[bool] = False

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The single facet, with 1,024 voltages."""
        return (Facet("voltage", NUM_LEVELS),)

    def encode(self, lead: Lead) -> Tokens:
        """Encode all samples of one lead; a token has the label of the beat whose R peak it contains."""
        rate_hz, beats = lead.rate_hz, lead.annotations
        position, sample = grid(len(lead.signal_mv), rate_hz)
        codes = voltage_codes(lead.signal_mv, rate_hz, position, sample)
        beat_class = classes_on_grid(beats, len(codes), len(lead.signal_mv), rate_hz)
        return Tokens(codes[:, None], sample, beat_class, beats.rhythm_at(sample), np.ones(len(codes), np.float32))

    def geometry(self) -> list[Floats]:
        """Return each level's voltage in mV, its position from −1 to 1, and whether there is a signal; `[1024, 3]`."""
        level = np.arange(NUM_LEVELS, dtype=np.uint16)
        position, known = np.where(level == NO_SIGNAL, 0, level / (NUM_LEVELS / 2) - 1), level != NO_SIGNAL
        return [np.stack([dequantize(level), position, known], axis=1).astype(np.float32)]


TOKENIZER = MillivoltTokenizer


def grid(num_samples: int, rate_hz: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the position of each grid point in samples, float64 `[num_tokens]`, and the nearest sample, int64."""
    num_points = math.ceil(num_samples * GRID_HZ / rate_hz)
    position = np.arange(num_points, dtype=np.float64) * (rate_hz / GRID_HZ)
    return position, np.minimum(np.round(position).astype(np.int64), num_samples - 1)


def voltage_codes(
    signal_mv: Floats, rate_hz: float, position: NDArray[np.float64], sample: NDArray[np.int64]
) -> NDArray[np.uint16]:
    """Return the level of a lead at each grid point; `position` and `sample` are those of `grid`."""
    filtered = smooth(fill_gaps(signal_mv), hann_weights(rate_hz, GRID_HZ))
    codes = quantize(high_pass(interpolate(filtered, position)))
    codes[np.isnan(signal_mv[sample])] = NO_SIGNAL
    return codes


def high_pass(grid: Floats) -> Floats:
    """Subtract the running average of `grid` `[num_tokens]`, which starts at the first value."""
    average = filtered(grid, np.array([[1 - KEEP, 0, 0, -KEEP, 0]]), np.array([[KEEP, 0.0]]))
    centred: Floats = (grid - average).astype(np.float32)
    return centred


def quantize(voltage_mv: Floats) -> NDArray[np.uint16]:
    """Return the level of each voltage: 512 for 0 mV, the outermost levels beyond ±`LIMIT_MV`."""
    level = np.rint(np.arcsinh(voltage_mv / KNEE_MV) / STEP) + NUM_LEVELS // 2
    code: NDArray[np.uint16] = np.clip(level, 1, NUM_LEVELS - 1).astype(np.uint16)
    return code


def dequantize(code: NDArray[np.uint16]) -> Floats:
    """Return the voltage of each level in millivolts, 0 without a signal."""
    level = np.where(code == NO_SIGNAL, 0, code.astype(np.float32) - NUM_LEVELS // 2)
    voltage: Floats = (KNEE_MV * np.sinh(level * STEP)).astype(np.float32)
    return voltage
