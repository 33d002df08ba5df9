"""One lead of a live stream, second by second: its beats, and the window for the waveform network.

    samples of one second ─► detector ─► beats ─► waveform of each beat, for its token
                       └───► 100 Hz, baseline removed ─► last four seconds as voltage codes

Everything is a function of the seconds so far, and seconds are formed by counting samples, so nothing depends on the
chunks in which a stream arrives.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.detect import LONGEST_FILLED_GAP_S, SETTINGS, SHORTEST_STRETCH_S, StreamingDetector
from heartlm.kernels.live_seconds import SecondsKernel
from heartlm.tokenizers.millivolts import NUM_LEVELS, quantize
from heartlm.tokenizers.sample import BASELINE_S, GRID_HZ
from heartlm.tokenizers.waveform import hann_weights

Floats = NDArray[np.float32]

KEPT_S = 8
"""Seconds of samples that are kept: a beat is found at most about 4 s late, and its waveform begins before it."""
FLAT_S = 1.5
"""A lead that is constant for this time is disconnected or saturated: electrodes and amplifiers always have noise."""
_FURTHEST_MV, _BASELINE_S = 10.0, 4
"""A sample further than this from the median of the last seconds is a step or spike of an electrode. The detector would
take it for a high beat and miss the next ones. After a lasting step the median follows in half of this time."""
_STEP_MV, _STEEPEST_MV_PER_S, _STEP_S = 3.0, 750.0, 0.2
"""A change between two samples that exceeds both is a step of an electrode too. The signal is valid again after this
time."""
_GRID = int(GRID_HZ)


@lru_cache(maxsize=256)
def seconds_kernel(rate_hz: float, grid_hz: float, times_s: tuple[float, ...]) -> SecondsKernel:
    """Return the kernel for leads of one rate. It samples beats at `times_s`, low-passed for `grid_hz`.

    Raises:
        ValueError: the rate is too low for the detector.
    """
    StreamingDetector(rate_hz)
    offsets, weights = np.array(times_s) * rate_hz, hann_weights(rate_hz, grid_hz)
    keep = math.exp(-1 / (BASELINE_S * GRID_HZ))
    numbers = {
        "kept": round(KEPT_S * rate_hz),
        "raw_kept": round(_BASELINE_S * rate_hz),
        "longest_gap": int(LONGEST_FILLED_GAP_S * rate_hz),
        "step_length": round(_STEP_S * rate_hz),
        "flat_length": round(FLAT_S * rate_hz),
        "ahead": math.ceil(offsets[-1]) + len(weights) // 2 + 1,
        "shortest": SHORTEST_STRETCH_S * rate_hz,
        "quick": 1 - keep,
        "furthest": _FURTHEST_MV,
        "step": max(_STEP_MV, _STEEPEST_MV_PER_S / rate_hz),
    }
    tables = {
        "offsets": offsets,
        "weights": weights,
        "grid_weights": hann_weights(rate_hz, GRID_HZ),
        "power": keep ** np.arange(1, _GRID + 1),
        "levels": _lowest_voltages(),
    }
    return SecondsKernel(rate_hz, SETTINGS["causal"], tables, numbers)


@cache
def _lowest_voltages() -> Floats:
    """Return the lowest voltage of each code from 2 on, float32 `[NUM_LEVELS - 2]`, so that C needs no logarithm."""

    def voltage(rank: NDArray[np.int64]) -> Floats:
        """Return the float32 values of a rank in ascending order; rank 0 is zero."""
        size = np.abs(rank).astype(np.int32).view(np.float32)
        return np.where(rank < 0, -size, size)

    code = np.arange(2, NUM_LEVELS)
    high = np.full(len(code), int(np.float32(1000.0).view(np.int32)), np.int64)
    low = -high
    while (high - low > 1).any():
        middle = (low + high) // 2
        reached = quantize(voltage(middle)) >= code
        high, low = np.where(reached, middle, high), np.where(reached, low, middle)
    return voltage(high)
