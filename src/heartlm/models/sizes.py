"""Fixed sizes of the convolutional networks and directions of the leads, for their forms in torch and in NumPy.

Imports no torch.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.models.config import ModelConfig
from heartlm.storage.reading import read_json

EPSILON = 1e-5
"""Added to a mean square or a variance before its root."""

WAVEFORM_KERNELS, WAVEFORM_STRIDES = (11, 7, 5, 5), (4, 2, 2, 2)
NUM_BANDS, SPECTRUM_KERNELS, SPECTRUM_STRIDES, SPECTRUM_CHANNELS = 100, (9, 5), (2, 2), 16
"""Number of spectral lines, 0.25 Hz apart; kernels, strides and channels of the convolutions over them."""
NUM_HIDDEN = 48
SMALL_MV = 0.1
"""Amplitude in mV at which the second input channel of the waveform network saturates."""
LEAST_MV = 0.003
"""Offset in mV added to an amplitude before division: about the noise of an amplifier."""

STRIDES = (1, 2, 2, 2)
"""Stride of each residual block of a network over leads; the stem halves the rate too."""
KERNEL, STEM_KERNEL, NUM_FILTERS = 9, 15, 16
"""Samples of a convolution and of the stem's filters, 10 ms each; number of filters that every lead passes."""
MIX_HIDDEN = 64
"""Width of the layer between the direction of a lead and its weights in the stem."""
NUM_TREES, NUM_LEAVES = 100, 15
"""Trees of each class, and leaves of a tree."""
NUM_NODES = 2 * NUM_LEAVES - 1

SCALES = read_json(Path(__file__).with_name("statistics.json"), dict[str, tuple[float, float]])
"""Names of the measures of a window of RR intervals, with the centre and spread that scale them: about the median and
spread over windows of 16 to 512 beats of afdb, ltafdb, nsrdb and VitalDB. `filtered`: after the ectopic filter;
`median`: after a running median of three. Sums of two and three intervals are constant in bigeminy and trigeminy."""
SHORTEST_S, LONGEST_S = 0.15, 4.0
EARLY, AROUND = 0.87, 7
"""An interval below `EARLY` times the median of `AROUND` intervals is early.

The ectopic filter replaces early intervals and late ones after them."""
TOLERANCE_MS = 30
STEP_S = 0.05
RUN = 8


def waveform_channels(config: ModelConfig) -> tuple[int, ...]:
    """Return the number of channels of each convolution of a waveform network."""
    assert config.width, "resolve the config first"
    return tuple(8 * max(1, round(config.width * share / 8)) for share in (1 / 3, 1 / 2, 2 / 3, 1))


def leads_channels(config: ModelConfig) -> list[int]:
    """Return the channels of all members of a network over leads: of the stem and of each residual block."""
    assert config.width, "resolve the config first"
    return [config.members * (config.width * share // 4 // 8 * 8) for share in (1, 1, 2, 3, 4)]


def directions() -> NDArray[np.float32]:
    """Return the direction of each place of the leads tokenizer, float32 `[18, 6]`.

    Left, down and front of a unit vector (limb leads in the frontal plane, chest leads in the horizontal one), whether
    it is a limb lead, a chest lead, or of unknown direction. The three of Frank are axes.
    """

    def turned(degrees: float) -> tuple[float, float]:
        return math.cos(math.radians(degrees)), math.sin(math.radians(degrees))

    limb = [(*turned(angle), 0.0, 1.0, 0.0, 0.0) for angle in (0, 60, 120, -150, -30, 90)]
    chest = [(left, 0.1, front, 0.0, 1.0, 0.0) for left, front in map(turned, (120, 90, 75, 60, 30, 0))]
    frank = [(1.0, 0.0, 0.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0, 0.0, 0.0), (0.0, 0.0, -1.0, 0.0, 0.0, 0.0)]
    return np.array(limb + chest + frank + [(0.0, 0.0, 0.0, 0.0, 0.0, 1.0)] * 3, np.float32)
