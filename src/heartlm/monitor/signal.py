"""One lead of a live stream, second by second: its beats, and the window that the waveform network reads.

    samples of one second ─► detector ─► beats ─► waveform of each, for its token
                       └───► 100 Hz, without the slow average ─► the last four seconds as voltage codes

Everything is a function of the seconds before, and a second is cut off by counting samples, so nothing depends on the
chunks in which a stream comes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.detect import LONGEST_FILLED_GAP_S, SETTINGS, SHORTEST_STRETCH_S, StreamingDetector
from heartlm.kernels.live_seconds import SecondsKernel, SecondsOfLeads
from heartlm.tokenizers.millivolts import NUM_LEVELS, quantize
from heartlm.tokenizers.sample import BASELINE_S, GRID_HZ
from heartlm.tokenizers.waveform import hann_weights

Floats = NDArray[np.float32]

KEPT_S = 8
"""Seconds of samples that are kept: a beat is known at most about 4 s late, and its waveform begins before it."""
FLAT_S = 1.5
"""A lead that does not change for so long is off, or saturated: an electrode and an amplifier always have noise."""
_FURTHEST_MV, _BASELINE_S = 10.0, 4
"""What is further from the median of the last seconds is the step or the spike of an electrode; the detector would
take it for a high beat, and miss the next ones. A step that stays is the new baseline after half of these seconds."""
_STEP_MV, _STEEPEST_MV_PER_S, _STEP_S = 3.0, 750.0, 0.2
"""A step from a sample to the next that is greater and steeper than both is of an electrode, too: the signal counts
again after this time."""
_GRID = int(GRID_HZ)


@lru_cache(maxsize=256)
def seconds_kernel(
    rate_hz: float, grid_hz: float, times_s: tuple[float, ...], variant: str | None = None
) -> SecondsKernel:
    """Takes in seconds of leads of one rate; beats are read off at `times_s`, low-passed for `grid_hz`.

    Raises:
        ValueError: the rate is too low for the detector.
    """
    StreamingDetector(rate_hz)
    offsets, weights = np.array(times_s) * rate_hz, hann_weights(rate_hz, grid_hz)
    keep = math.exp(-1 / (BASELINE_S * GRID_HZ))
    counts = {
        "kept": round(KEPT_S * rate_hz),
        "raw_kept": round(_BASELINE_S * rate_hz),
        "longest_gap": int(LONGEST_FILLED_GAP_S * rate_hz),
        "step_length": round(_STEP_S * rate_hz),
        "flat_length": round(FLAT_S * rate_hz),
        "ahead": math.ceil(offsets[-1]) + len(weights) // 2 + 1,
    }
    tables = {
        "offsets": offsets,
        "weights": weights,
        "grid_weights": hann_weights(rate_hz, GRID_HZ),
        "power": keep ** np.arange(1, _GRID + 1),
        "levels": _least_of_levels(),
    }
    numbers = {
        "shortest": SHORTEST_STRETCH_S * rate_hz,
        "quick": 1 - keep,
        "furthest": _FURTHEST_MV,
        "step": max(_STEP_MV, _STEEPEST_MV_PER_S / rate_hz),
    }
    return SecondsKernel(rate_hz, SETTINGS["causal"], counts, tables, numbers, variant)


@cache
def _least_of_levels() -> Floats:
    """The least voltage of each code from 2 on, float32 `[NUM_LEVELS - 2]`: bisected, so that C has no logarithm."""

    def voltage(place: NDArray[np.int64]) -> Floats:
        """Floats in their order, by counting them from zero."""
        size = np.abs(place).astype(np.int32).view(np.float32)
        return np.where(place < 0, -size, size)

    code = np.arange(2, NUM_LEVELS)
    high = np.full(len(code), int(np.float32(1000.0).view(np.int32)), np.int64)
    low = -high
    while (high - low > 1).any():
        middle = (low + high) // 2
        reached = quantize(voltage(middle)) >= code
        high, low = np.where(reached, middle, high), np.where(reached, low, middle)
    return voltage(high)


def take_seconds(
    kernels: Sequence[SecondsKernel], addresses: NDArray[np.int64], samples: Sequence[Floats]
) -> SecondsOfLeads:
    """Take in the next second of each lead.

    Args:
        kernels: for the rate of each of at least one lead.
        addresses: of the memory of each.
        samples: all of the second, float32, NaN where invalid.
    """
    groups, parts = dict[SecondsKernel, list[int]](), list[tuple[NDArray[np.int64], SecondsOfLeads]]()
    for place, kernel in enumerate(kernels):
        groups.setdefault(kernel, []).append(place)
    for kernel, places in groups.items():
        parts.append((np.array(places), kernel.take(addresses[places], [samples[place] for place in places])))
    if len(parts) == 1:
        return parts[0][1]
    of_leads = ((places, own.windows, own.has_window, own.valid, own.range_mv) for places, own in parts)
    of_beats = ((places[own.of_lead], own.beats, own.waves) for places, own in parts)
    order, *columns = (np.concatenate(each) for each in zip(*of_leads, strict=True))
    of_lead, *beats = (np.concatenate(each) for each in zip(*of_beats, strict=True))
    by_place, by_lead = np.argsort(order), np.argsort(of_lead, kind="stable")
    return SecondsOfLeads(*(own[by_place] for own in columns), *(own[by_lead] for own in (of_lead, *beats)))
