"""Detect heartbeats in a signal that arrives in chunks.

    samples ─► decimated ─► even and odd filter ─► power ─► smooth height ─► candidates ─► beats

The even filter is the difference of two bells and passes about 5 to 20 Hz, the odd one is the slope of a bell. Their
powers together, smoothed, are high where a QRS complex is. Places of highest height are candidates; those high enough
over the level around them are beats. Where none came for long, the best of the others will do. A beat's mark is where
the even filter's output is farthest from zero. Where it is about as far above as below, beats of the usual shape have
it on the side where most of them are: the two peaks would otherwise take turns, and RR intervals jump.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel, struct_fields

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Positions = NDArray[np.int64]

DECIMATED_HZ = 110.0
"""Samples are averaged as long as at least this number a second remains."""

_EVEN_S = (0.012, 0.025)
"""Widths (standard deviations) of the two bells. Chosen so that their mark lies where DS1's annotators put it."""
_REACH_S = 0.06
_APART_S = 0.25
_WARM_UP_S = 2.0
_DOUBT, _SHAPE_S, _SAME_SHAPE, _SHAPE_WEIGHT = 0.33, 0.08, 0.7, 0.03
"""Chosen by the RR intervals of DS1 and of ludb's odd recordings."""
_AS_THEY_ARE = "threshold", "search_gap", "search_threshold", "floor", "height_weight", "rr_weight"
"""Settings without a unit of time."""
_RR_START_S, _RR_LOW_S, _RR_HIGH_S, _RR_PAUSE_S = 0.8, 0.25, 1.8, 2.2


@dataclass(frozen=True)
class Settings:
    """What decides which candidate is a beat.

    Attributes:
        looks_ahead: whether the level is measured in windows on both sides of a candidate instead of two in the past.
        window_s: length of a window in seconds.
        threshold: minimum height of a beat as a fraction of the level.
        search_threshold: minimum height of a beat after a gap, as a fraction of the level.
        search_gap: minimum length of such a gap in mean RR intervals.
        floor: minimum level as a fraction of the mean height of earlier beats.
        decay_s: time in seconds in which this mean height halves without a beat.
        height_weight: weight of a new beat in the mean height.
        rr_weight: weight of a new interval in the mean RR interval.
        refractory_s: minimum interval between beats in seconds.
        slope_s: width of the odd filter in seconds.
        smooth_s: width of the smoothing in seconds.
        even_weight: power of the even filter relative to the odd one.
    """

    looks_ahead: bool
    window_s: float
    threshold: float
    search_threshold: float
    search_gap: float
    floor: float
    decay_s: float
    height_weight: float
    rr_weight: float
    refractory_s: float
    slope_s: float
    smooth_s: float
    even_weight: float


class DetectorPlan(ctypes.Structure):
    """The settings in samples at one rate, as `struct plan` of c/detect.h, which says what each means."""

    _fields_ = struct_fields("plan")

    @property
    def delay(self) -> int:
        """Samples from a beat's mark to the decision, at most; search-back and warm-up left out."""
        ahead = self.window if self.looks_ahead else 0
        filters = max(self.even_taps, self.odd_taps) + self.smooth_taps
        return int((ahead + self.refractory + filters + self.reach + 2) * self.factor)

    @property
    def longest_delay(self) -> int:
        """The same of any beat."""
        search = int(self.search_gap * self.rr_high) + 1
        return self.delay + int(max(search, self.warm_up) * self.factor)


@dataclass(frozen=True)
class Filters:
    """Right halves of the filters, from the tap in the middle on; float32."""

    even: Floats
    odd: Floats
    smooth: Floats
    fine: Floats


@lru_cache(maxsize=64)
def plan_detector(rate_hz: float, settings: Settings) -> tuple[DetectorPlan, Filters]:
    """Work out the settings and the filters for a rate."""
    factor = max(1, int(rate_hz / DECIMATED_HZ))
    decimated_hz = rate_hz / factor
    filters = Filters(
        even=(_even_filter(decimated_hz) * np.sqrt(settings.even_weight)).astype(np.float32),
        odd=_odd_filter(settings.slope_s, decimated_hz).astype(np.float32),
        smooth=_bell(settings.smooth_s, decimated_hz, 2.5 * settings.smooth_s).astype(np.float32),
        fine=_even_filter(rate_hz).astype(np.float32),
    )
    new_places = 1024 if settings.looks_ahead else 256  # thousands of live leads are to fit in memory
    seen = 2 * settings.window_s + _APART_S + settings.search_gap * _RR_HIGH_S + new_places / decimated_hz
    most = int(seen / settings.refractory_s) + 2
    plan = DetectorPlan(
        factor=factor,
        even_taps=len(filters.even) - 1,
        odd_taps=len(filters.odd) - 1,
        smooth_taps=len(filters.smooth) - 1,
        fine_taps=len(filters.fine) - 1,
        reach=round(_REACH_S * decimated_hz),
        refractory=round(settings.refractory_s * decimated_hz),
        window=round(settings.window_s * decimated_hz),
        looks_ahead=int(settings.looks_ahead),
        apart=round(_APART_S * decimated_hz),
        warm_up=round(_WARM_UP_S * decimated_hz),
        shape=round(_SHAPE_S * decimated_hz),
        new_places=new_places,
        num_candidates=1 << most.bit_length(),
        decay=settings.decay_s * decimated_hz,
        **{name: getattr(settings, name) for name in _AS_THEY_ARE},
        rr_start=_RR_START_S * decimated_hz,
        rr_low=_RR_LOW_S * decimated_hz,
        rr_high=_RR_HIGH_S * decimated_hz,
        rr_pause=_RR_PAUSE_S * decimated_hz,
        doubt=_DOUBT,
        same_shape=_SAME_SHAPE,
        shape_weight=_SHAPE_WEIGHT,
    )
    return plan, filters


def _bell(width_s: float, rate_hz: float, half_s: float) -> Doubles:
    """Right half of a bell whose whole sums to one."""
    time_s = np.arange(int(np.ceil(half_s * rate_hz)) + 1) / rate_hz
    bell = np.exp(-0.5 * (time_s / width_s) ** 2)
    half: Doubles = bell / (2 * bell.sum() - bell[0])
    return half


def _even_filter(rate_hz: float) -> Doubles:
    """Right half of the difference of two bells."""
    narrow, wide = _EVEN_S
    half = _bell(narrow, rate_hz, 3 * wide) - _bell(wide, rate_hz, 3 * wide)
    return _normed(half)


def _odd_filter(width_s: float, rate_hz: float) -> Doubles:
    """Right half of the slope of a bell."""
    time_s = np.arange(int(np.ceil(3 * width_s * rate_hz)) + 1) / rate_hz
    half = time_s * np.exp(-0.5 * (time_s / width_s) ** 2)
    return _normed(half)


def _normed(half: Doubles) -> Doubles:
    """A filter of energy one."""
    normed: Doubles = half / np.sqrt(2 * (half**2).sum() - half[0] ** 2)
    return normed


class Detector:
    """The detector of c/detect.c.

    Args:
        rate_hz: samples a second.
        settings: which candidates are beats.
    """

    def __init__(self, rate_hz: float, settings: Settings) -> None:
        num_bytes = kernel("detect_bytes")
        self._push = kernel("detect_push")
        self._plan, filters = plan_detector(rate_hz, settings)
        self._taps = np.concatenate([filters.even, filters.odd, filters.smooth, filters.fine])
        self._state = np.zeros(num_bytes(ctypes.addressof(self._plan)), np.uint8)
        kernel("detect_begin")(ctypes.addressof(self._plan), self._state.ctypes.data)

    def push(self, samples: Floats, ends: bool = False) -> Positions:
        """Take in `samples`; return the beats that are certain now, positions from the first sample on, ascending.

        With `ends` there are no more samples, and all beats come out; then nothing can be pushed any more.
        """
        samples = np.ascontiguousarray(samples, np.float32)
        beats = np.empty(len(samples) // (self._plan.refractory * self._plan.factor) + 256, np.int64)
        plan = ctypes.addressof(self._plan)
        found = self._push(plan, self._state.ctypes.data, self._taps, samples, len(samples), ends, beats)
        return beats[:found].copy()
