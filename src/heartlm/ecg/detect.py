"""Detect heartbeats in a signal without annotations.

    samples ─► decimated ─► even and odd filter ─► power ─► smooth height ─► candidates ─► beats

The even filter is the difference of two bells and passes about 5 to 20 Hz; the odd filter is the slope of a bell. The
smoothed sum of their powers is high at a QRS complex. Local maxima of this height are candidates, and candidates that
are high enough relative to the level around them are beats. After a long gap a lower candidate is accepted. Of two
candidates within the refractory time only the higher one counts, as T waves and the ends of wide QRS complexes are that
near; but five or more candidates in a row that are near, alike and about as high are the beats of a fast rhythm. A beat
is marked where the output of the even filter is farthest from zero. If it is about as far above as below zero, the mark
is on the side on which most beats of this shape have it, as RR intervals would otherwise jump.

The detector has two modes. The offline mode uses seconds of later signal for each decision;
the causal mode, for live streams, uses only the past. In both modes the beats do not depend on how the signal is
divided into chunks.

The settings in `detect.json` were tuned on DS1 of mitdb (`recipes/tune_detector.py`). Those of the beat's mark were
tuned on DS1 and on the odd-numbered recordings of ludb.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel, struct_fields
from heartlm.storage.reading import read_json

Mode = Literal["offline", "causal"]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Positions = NDArray[np.int64]

DECIMATED_HZ = 110.0
"""Samples are averaged as long as at least this number a second remains."""

# Widths (standard deviations) of the two bells. Chosen so that their mark lies where DS1's annotators put it.
_EVEN_S = (0.012, 0.025)
_REACH_S = 0.06
_APART_S = 0.25
_WARM_UP_S = 2.0
# Chosen by the RR intervals of DS1 and of ludb's odd recordings.
_DOUBT, _SHAPE_S, _SAME_SHAPE, _SHAPE_WEIGHT = 0.33, 0.08, 0.7, 0.03
# Settings without a unit of time.
_AS_THEY_ARE = "threshold", "search_gap", "search_threshold", "floor", "height_weight", "rr_weight"
_RR_START_S, _RR_LOW_S, _RR_HIGH_S, _RR_PAUSE_S = 0.8, 0.25, 1.8, 2.2
# Fast rhythms: shortest and longest interval, number of intervals in a row, least ratio of heights and correlation of
# adjacent beats. Chosen on DS1, svdb, cudb, ludb and cinc2017 (docs/log/signals.md).
_CLOSEST_S, _FAST_S, _FAST_BEATS, _FAST_HEIGHT, _FAST_SHAPE = 0.16, 0.34, 4, 0.5, 0.7


@dataclass(frozen=True)
class DetectorSettings:
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
        refractory_s: minimum interval between beats in seconds, except in a fast rhythm.
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


SETTINGS = cast(
    dict[Mode, DetectorSettings], read_json(Path(__file__).with_suffix(".json"), dict[str, DetectorSettings])
)
"""Settings of each mode; both modes use the same filters."""

SHORTEST_STRETCH_S = 2.0
"""Minimum length of a valid stretch in seconds: the first decision needs the signal level of two seconds."""
LONGEST_FILLED_GAP_S = 0.1
LOWEST_RATE_HZ = 62.0
"""Minimum sampling rate in Hz: slightly above twice the upper end of the detector's band, which is near 30 Hz."""


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


@lru_cache(maxsize=64)
def plan_detector(rate_hz: float, settings: DetectorSettings) -> tuple[DetectorPlan, Floats]:
    """Return the plan for a rate, and the right halves of its filters one after another, float32 `[num_taps]`."""
    factor = max(1, int(rate_hz / DECIMATED_HZ))
    decimated_hz = rate_hz / factor
    even = _even_filter(decimated_hz) * np.sqrt(settings.even_weight)
    odd = _odd_filter(settings.slope_s, decimated_hz)
    smooth = _bell(settings.smooth_s, decimated_hz, 2.5 * settings.smooth_s)
    fine = _even_filter(rate_hz)
    new_places = 1024 if settings.looks_ahead else 256  # thousands of live leads are to fit in memory
    waiting_s = settings.search_gap * _RR_HIGH_S + new_places / decimated_hz
    open_s = waiting_s + settings.refractory_s + settings.looks_ahead * settings.window_s
    most, most_open = (
        int(each_s / _CLOSEST_S) + 2 for each_s in (2 * settings.window_s + _APART_S + waiting_s, open_s)
    )
    plan = DetectorPlan(
        factor=factor,
        even_taps=len(even) - 1,
        odd_taps=len(odd) - 1,
        smooth_taps=len(smooth) - 1,
        fine_taps=len(fine) - 1,
        reach=round(_REACH_S * decimated_hz),
        refractory=round(settings.refractory_s * decimated_hz),
        closest=round(_CLOSEST_S * decimated_hz),
        window=round(settings.window_s * decimated_hz),
        looks_ahead=int(settings.looks_ahead),
        apart=round(_APART_S * decimated_hz),
        warm_up=round(_WARM_UP_S * decimated_hz),
        shape=round(_SHAPE_S * decimated_hz),
        new_places=new_places,
        num_candidates=1 << most.bit_length(),
        num_shapes=1 << most_open.bit_length(),
        fast=round(_FAST_S * decimated_hz),
        fast_beats=_FAST_BEATS,
        decay=settings.decay_s * decimated_hz,
        **{name: getattr(settings, name) for name in _AS_THEY_ARE},
        rr_start=_RR_START_S * decimated_hz,
        rr_low=_RR_LOW_S * decimated_hz,
        rr_high=_RR_HIGH_S * decimated_hz,
        rr_pause=_RR_PAUSE_S * decimated_hz,
        doubt=_DOUBT,
        same_shape=_SAME_SHAPE,
        shape_weight=_SHAPE_WEIGHT,
        fast_height=_FAST_HEIGHT,
        fast_shape=_FAST_SHAPE,
    )
    return plan, np.concatenate([even, odd, smooth, fine]).astype(np.float32)


def _bell(width_s: float, rate_hz: float, half_s: float) -> Doubles:
    """Right half of a bell whose whole sums to one."""
    time_s = np.arange(int(np.ceil(half_s * rate_hz)) + 1) / rate_hz
    bell = np.exp(-0.5 * (time_s / width_s) ** 2)
    half: Doubles = bell / (2 * bell.sum() - bell[0])
    return half


def _even_filter(rate_hz: float) -> Doubles:
    """Right half of the difference of two bells."""
    narrow, wide = _EVEN_S
    return _normed(_bell(narrow, rate_hz, 3 * wide) - _bell(wide, rate_hz, 3 * wide))


def _odd_filter(width_s: float, rate_hz: float) -> Doubles:
    """Right half of the slope of a bell."""
    time_s = np.arange(int(np.ceil(3 * width_s * rate_hz)) + 1) / rate_hz
    return _normed(time_s * np.exp(-0.5 * (time_s / width_s) ** 2))


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

    def __init__(self, rate_hz: float, settings: DetectorSettings) -> None:
        self._push = kernel("detect_push")
        self._plan, self._taps = plan_detector(rate_hz, settings)
        plan = ctypes.addressof(self._plan)
        self._state = np.zeros(kernel("detect_bytes")(plan), np.uint8)
        kernel("detect_begin")(plan, self._state.ctypes.data)

    def push(self, samples: Floats, ends: bool = False) -> Positions:
        """Take in `samples`; return the beats that are certain now, positions from the first sample on, ascending.

        With `ends` there are no more samples, and all beats come out; then nothing can be pushed any more.
        """
        samples = np.ascontiguousarray(samples, np.float32)
        beats = np.empty(len(samples) // (self._plan.closest * self._plan.factor) + 256, np.int64)
        plan = ctypes.addressof(self._plan)
        num_beats = self._push(plan, self._state.ctypes.data, self._taps, samples, len(samples), ends, beats)
        return beats[:num_beats].copy()


def detect_beats(signal_mv: Floats, rate_hz: float, mode: Mode = "offline") -> Positions:
    """Detect the beats of a lead.

    Gaps (NaN) of up to 100 ms are interpolated linearly. Longer gaps divide the signal into stretches that are searched
    independently. A flat stretch, or one shorter than 2 s, has no beats.

    Args:
        signal_mv: samples of the lead at any scale, float32 `[num_samples]`.
        rate_hz: sampling rate in Hz.
        mode: offline, or causal for the same result as a live stream.

    Returns:
        Positions of the beats, int64 `[num_beats]`, strictly ascending.

    Raises:
        ValueError: the rate is too low for the detector's pass band.
    """
    detector = StreamingDetector(rate_hz, mode)
    return np.concatenate([detector.push(signal_mv), detector.finish()])


class StreamingDetector:
    """Detect the beats of a lead that arrives in chunks; the result does not depend on the chunks.

    Attributes:
        delay_s: maximum delay in seconds from a beat's sample to its output, with the exception below.
        longest_delay_s: maximum delay in seconds of beats found by searching back from a gap, and of beats in the first
            two seconds of a stretch.
    """

    def __init__(self, rate_hz: float, mode: Mode = "causal") -> None:
        """Start a stream.

        Raises:
            ValueError: the rate is too low for the detector's pass band, or the mode is unknown.
        """
        if not rate_hz >= LOWEST_RATE_HZ:
            raise ValueError(f"rate_hz is {rate_hz:g}, beats can be detected from {LOWEST_RATE_HZ:g} Hz on")
        if mode not in SETTINGS:
            raise ValueError(f"mode is {mode!r}, one of {', '.join(get_args(Mode))} expected")
        self.rate_hz = rate_hz
        self._settings = SETTINGS[mode]
        plan, _ = plan_detector(rate_hz, self._settings)
        self.delay_s = plan.delay / rate_hz
        self.longest_delay_s = plan.longest_delay / rate_hz
        self._num_samples = 0
        self._detector: Detector | None = None
        """Detector of the current stretch of valid samples; the fields below hold its range, last value and gaps."""
        self._start = self._stop = 0
        self._last = np.float32(0)
        self._bridges: list[tuple[int, int]] = []

    def push(self, samples_mv: Floats) -> Positions:
        """Process samples and return the beats that are now final.

        Args:
            samples_mv: next samples, float32 `[num_samples]`, NaN where invalid.

        Returns:
            Positions counted from the first sample of the stream, int64 `[num_beats]`, strictly ascending over all
            calls.
        """
        samples_mv = np.ascontiguousarray(samples_mv, np.float32)
        beats = [np.zeros(0, np.int64)]
        for start, stop, valid in _runs(samples_mv):
            if valid:
                beats.append(self._take(samples_mv[start:stop], self._num_samples + start))
            elif self._num_samples + stop - self._stop > int(LONGEST_FILLED_GAP_S * self.rate_hz):
                beats.append(self.finish())
        self._num_samples += len(samples_mv)
        return np.concatenate(beats)

    def finish(self) -> Positions:
        """End the stretch and return its remaining beats, none if it is too short; later samples start another one."""
        detector, self._detector = self._detector, None
        if detector is None or self._stop - self._start < SHORTEST_STRETCH_S * self.rate_hz:
            return np.zeros(0, np.int64)
        return self._kept(detector.push(np.zeros(0, np.float32), ends=True))

    def _take(self, samples: Floats, start: int) -> Positions:
        """Process one or more valid samples starting at `start`; interpolate a short gap before them."""
        stop = start + len(samples)
        if self._detector is None:
            self._detector, self._bridges = Detector(self.rate_hz, self._settings), []
            self._start = self._stop = start
        if start > self._stop:
            bridge = np.linspace(self._last, samples[0], start - self._stop + 2)[1:-1]
            samples = np.concatenate([bridge.astype(np.float32), samples])
            self._bridges.append((self._stop, start))
        self._last, self._stop = samples[-1], stop
        return self._kept(self._detector.push(samples))

    def _kept(self, beats: Positions) -> Positions:
        """Return the stream positions of the beats that are not in an interpolated gap."""
        beats = self._start + beats
        for start, stop in self._bridges:
            beats = beats[(beats < start) | (beats >= stop)]
        if len(beats):
            self._bridges = [bridge for bridge in self._bridges if bridge[1] > beats[-1]]
        return beats


def _runs(samples: Floats) -> list[tuple[int, int, bool]]:
    """Return start, stop and kind of every run of valid or invalid samples."""
    if len(samples) == 0:
        return []
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(samples.sum()):  # much faster than checking each sample; the sum is not finite if one is not
            return [(0, len(samples), True)]
    valid = np.isfinite(samples)
    edges = [0, *(np.flatnonzero(np.diff(valid)) + 1).tolist(), len(valid)]
    return [(start, stop, bool(valid[start])) for start, stop in pairwise(edges)]
