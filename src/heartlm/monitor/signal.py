"""One second of each of many leads of live streams in one call of C: beats, and windows for the waveform network.

    samples of one second ─► detector ─► beats ─► waveform of each beat, for its token
                       └───► 100 Hz, baseline removed ─► last four seconds as voltage codes

Everything is a function of the seconds so far, and seconds are formed by counting samples, so nothing depends on the
chunks in which a stream arrives. What a lead remembers is one block of memory, which a snapshot holds as it is.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.detect import LONGEST_FILLED_GAP_S, SETTINGS, SHORTEST_STRETCH_S, StreamingDetector, plan_detector
from heartlm.kernels.library import kernel, structure
from heartlm.tokenizers.millivolts import NUM_LEVELS, quantize
from heartlm.tokenizers.sample import GRID_HZ, KEEP
from heartlm.tokenizers.waveform import hann_weights

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

KEPT_S = 8
"""Seconds of samples that are kept: a beat is found at most about 4 s late, and its waveform begins before it."""
FLAT_S = 1.5
"""A lead that is constant for this time is disconnected or saturated: electrodes and amplifiers always have noise."""
# A sample further than this from the median of the last seconds is a step or spike of an electrode. The detector would
# take it for a high beat and miss the next ones. After a lasting step the median follows in half of this time.
_FURTHEST_MV, _BASELINE_S = 10.0, 4
# A change between two samples that exceeds both is a step of an electrode too. The signal is valid again after this
# time.
_STEP_MV, _STEEPEST_MV_PER_S, _STEP_S = 3.0, 750.0, 0.2
_GRID = int(GRID_HZ)
_WINDOW, _MOST_BEATS = 400, 320


@dataclass(frozen=True)
class SecondsOfLeads:
    """What the seconds of some leads give; leads in the order in which they were given.

    Attributes:
        windows: codes of the last four seconds, uint16 `[num_leads, 400]`,
        has_window: valid where this is true, `[num_leads]`.
        valid: share of valid samples, `[num_leads]`.
        range_mv: range without the slow average, NaN where unknown, `[num_leads]`.
        of_lead: whose each beat is, ascending, `[num_beats]`.
        beats: their samples, `[num_beats]`.
        waves: float32 `[num_beats, num_points]`.
    """

    windows: NDArray[np.uint16]
    has_window: NDArray[np.bool_]
    valid: Doubles
    range_mv: Doubles
    of_lead: NDArray[np.int64]
    beats: NDArray[np.int64]
    waves: Floats


class SecondsKernel:
    """Processes seconds of leads of one rate.

    Args:
        rate_hz: sampling rate in Hz.
        grid_hz: rate of the points of a beat's waveform, for the low-pass before it.
        times_s: times of these points from the R peak.

    Raises:
        ValueError: the rate is too low for the detector.
    """

    def __init__(self, rate_hz: float, grid_hz: float, times_s: tuple[float, ...]) -> None:
        StreamingDetector(rate_hz)
        self.rate_hz = rate_hz
        self._plan, self._taps = plan_detector(rate_hz, SETTINGS["causal"])
        offsets, weights = np.array(times_s) * rate_hz, hann_weights(rate_hz, grid_hz)
        grid_weights, levels = hann_weights(rate_hz, GRID_HZ), _lowest_voltages()
        self._arrays = offsets, weights, grid_weights, KEEP ** np.arange(1, _GRID + 1), levels
        plan, addresses = ctypes.addressof(self._plan), [each.ctypes.data for each in self._arrays]
        seconds: Any = structure("seconds")(  # c/live_seconds.c says what each field is
            plan=plan,
            taps=self._taps.ctypes.data,
            detector_bytes=kernel("detect_bytes")(plan),
            kept=round(KEPT_S * rate_hz),
            raw_kept=round(_BASELINE_S * rate_hz),
            longest_gap=int(LONGEST_FILLED_GAP_S * rate_hz),
            step_length=round(_STEP_S * rate_hz),
            flat_length=round(FLAT_S * rate_hz),
            ahead=math.ceil(offsets[-1]) + len(weights) // 2 + 1,
            num_points=len(offsets),
            num_weights=len(weights),
            num_grid_weights=len(grid_weights),
            num_levels=len(levels),
            **dict(zip(("offsets", "weights", "grid_weights", "power", "levels"), addresses, strict=True)),
            rate_hz=rate_hz,
            shortest=SHORTEST_STRETCH_S * rate_hz,
            quick=1 - KEEP,
            furthest=_FURTHEST_MV,
            step=max(_STEP_MV, _STEEPEST_MV_PER_S / rate_hz),
        )
        self._seconds, self._run = seconds, kernel("live_seconds")
        self.num_bytes: int = kernel("live_seconds_bytes")(ctypes.addressof(seconds))
        third = seconds.kept + seconds.raw_kept + seconds.num_weights + seconds.num_grid_weights + 256
        self._scratch = np.empty(3 * third, np.float32)

    def take(self, leads: NDArray[np.int64], samples: Sequence[Floats]) -> SecondsOfLeads:
        """Take in the next second of each lead.

        Args:
            leads: address of the memory of each, `num_bytes` that began as zeros, `[num_leads]`.
            samples: all of the second, float32, NaN where invalid.
        """
        num, done, most = len(leads), 0, _MOST_BEATS + 8 * len(leads)
        counts, joined = np.array([len(each) for each in samples]), np.concatenate(samples)
        addresses = joined.ctypes.data + joined.itemsize * (np.cumsum(counts) - counts)
        windows, has_window = np.empty((num, _WINDOW), np.uint16), np.empty(num, np.uint8)
        numbers, parts = np.empty((2, num)), list[tuple[NDArray[np.int64], NDArray[np.int64], Floats]]()
        while done < num:
            of_lead, beats, num_beats = np.empty(most, np.int64), np.empty(most, np.int64), np.zeros(1, np.int64)
            waves = np.empty((most, self._seconds.num_points), np.float32)
            done = self._run(
                *(ctypes.addressof(self._seconds), leads, addresses, counts, done, num, windows, has_window, *numbers),
                *(num_beats, most, of_lead, beats, waves, self._scratch, len(self._scratch)),
            )
            parts.append((of_lead[: num_beats[0]], beats[: num_beats[0]], waves[: num_beats[0]]))
        of_lead, beats, waves = (np.concatenate(each) for each in zip(*parts, strict=True))
        return SecondsOfLeads(windows, has_window.view(np.bool_), numbers[0], numbers[1], of_lead, beats, waves)


seconds_kernel = lru_cache(maxsize=256)(SecondsKernel)
"""`SecondsKernel`, one for all leads of a rate."""


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
