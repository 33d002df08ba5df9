"""Finding heartbeats in a signal without annotations.

Two modes of one detector (`heartlm.kernels.detect`). Offline looks seconds ahead before it decides whether something
is a beat; causal decides at once, from the past, for live streams. Either gives the same beats however the signal is
cut into chunks. A beat is marked where the signal between about 5 and 20 Hz is farthest from zero, mostly the R peak:
at the same feature in every beat of a shape, because a beat cut out 25 ms off is another shape to the tokenizer.

The settings were tuned on DS1 of mitdb (`benchmarks/tune_detector.py`), where the mark is put on DS1 and on the odd
recordings of ludb.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.detect import Detector, Settings, plan_detector

Mode = Literal["offline", "causal"]
Floats = NDArray[np.float32]
Positions = NDArray[np.int64]

_OFFLINE = Settings(
    looks_ahead=True,
    window_s=7.45,
    threshold=0.271,
    search_threshold=0.204,
    search_gap=1.66,
    floor=0.195,
    decay_s=17.3,
    height_weight=0.033,
    rr_weight=0.144,
    refractory_s=0.24,
    slope_s=0.0049,
    smooth_s=0.044,
    even_weight=0.729,
)
_CAUSAL = replace(
    _OFFLINE,
    looks_ahead=False,
    window_s=4.4,
    threshold=0.327,
    search_threshold=0.22,
    search_gap=1.22,
    floor=0.021,
    decay_s=1.93,
    height_weight=0.606,
    rr_weight=0.057,
)
SETTINGS: dict[Mode, Settings] = {"offline": _OFFLINE, "causal": _CAUSAL}
"""Of each mode; the filters are the same."""

SHORTEST_STRETCH_S = 2.0
"""The first decision needs the level of two seconds; a stretch shorter than that gives no beats."""
LONGEST_FILLED_GAP_S = 0.1
LOWEST_RATE_HZ = 62.0
"""The detector's band ends near 30 Hz, which needs a little more than twice as many samples a second."""


def detect_beats(signal_mv: Floats, rate_hz: float, mode: Mode = "offline") -> Positions:
    """Find the beats of a lead.

    Gaps (NaN) of up to 100 ms are bridged by a straight line; longer ones part the signal into stretches, each searched
    by itself. A flat stretch, or one shorter than 2 s, has no beats.

    Args:
        signal_mv: float32 `[num_samples]`; its scale does not matter.
        rate_hz: samples a second.
        mode: offline, or causal for what a live stream would give.

    Returns:
        Positions of the beats, int64 `[num_beats]`, strictly ascending.

    Raises:
        ValueError: the rate is too low for the detector's pass band.
    """
    detector = StreamingDetector(rate_hz, mode)
    found = detector.push(signal_mv)
    return np.concatenate([found, detector.finish()])


class StreamingDetector:
    """Finds the beats of a lead that comes in chunks, the same beats whatever the chunks.

    Attributes:
        delay_s: a beat comes out at most so long after its sample, but for the beats
        longest_delay_s: that are found by looking back from a gap, and those of the first two seconds of a stretch: at
            most so long.
    """

    def __init__(self, rate_hz: float, mode: Mode = "causal") -> None:
        """Begin a stream.

        Raises:
            ValueError: the rate is too low for the detector's pass band, or the mode is none.
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
        self._longest_gap = int(LONGEST_FILLED_GAP_S * rate_hz)
        self._stretch: _Stretch | None = None
        self._num_samples = 0

    def push(self, samples_mv: Floats) -> Positions:
        """Take in samples; return the beats that are certain now.

        Args:
            samples_mv: float32 `[num_samples]`, NaN where invalid.

        Returns:
            Positions counted from the first sample of the stream, int64 `[num_beats]`, strictly ascending over all
            calls.
        """
        samples_mv = np.ascontiguousarray(samples_mv, np.float32)
        found = [np.zeros(0, np.int64)]
        for start, stop, valid in _runs(samples_mv):
            if valid:
                if self._stretch is None:
                    self._stretch = _Stretch(self.rate_hz, self._settings, self._num_samples + start)
                found.append(self._stretch.push(samples_mv[start:stop]))
            elif self._stretch is not None:
                self._stretch.gap += stop - start
                if self._stretch.gap > self._longest_gap:
                    found.append(self.finish())
        self._num_samples += len(samples_mv)
        return np.concatenate(found)

    def finish(self) -> Positions:
        """Return the beats still open; what is pushed from now on is searched by itself."""
        stretch, self._stretch = self._stretch, None
        return stretch.finish() if stretch else np.zeros(0, np.int64)


class _Stretch:
    """Valid samples, with short gaps that are bridged as soon as they end.

    Attributes:
        gap: invalid samples since the last valid one.
    """

    def __init__(self, rate_hz: float, settings: Settings, start: int) -> None:
        self._detector = Detector(rate_hz, settings)
        self._shortest = SHORTEST_STRETCH_S * rate_hz
        self._start = start
        self._num_samples = 0
        self._last = np.float32(0)
        self._bridged: list[tuple[int, int]] = []
        self.gap = 0

    def push(self, samples: Floats) -> Positions:
        """Take in valid samples, at least one; return beats as positions in the stream."""
        if self.gap:
            bridge = np.linspace(self._last, samples[0], self.gap + 2)[1:-1]
            samples = np.concatenate([bridge.astype(np.float32), samples])
            self._bridged.append((self._num_samples, self._num_samples + self.gap))
            self.gap = 0
        self._last = samples[-1]
        self._num_samples += len(samples)
        return self._kept(self._detector.push(samples))

    def finish(self) -> Positions:
        """Return the beats still open; none where the stretch is too short."""
        if self._num_samples < self._shortest:
            return np.zeros(0, np.int64)
        return self._kept(self._detector.push(np.zeros(0, np.float32), ends=True))

    def _kept(self, beats: Positions) -> Positions:
        """Positions in the stream of those beats that are not in a bridge."""
        for start, stop in self._bridged:
            beats = beats[(beats < start) | (beats >= stop)]
        if len(beats):
            self._bridged = [bridge for bridge in self._bridged if bridge[1] > beats[-1]]
        return self._start + beats


def _runs(samples: Floats) -> list[tuple[int, int, bool]]:
    """Start, stop and kind of every run of valid or invalid samples."""
    if len(samples) == 0:
        return []
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(samples.sum()):  # far quicker than looking at each; one that is not finite shows in the sum
            return [(0, len(samples), True)]
    valid = np.isfinite(samples)
    edges = [0, *(np.flatnonzero(np.diff(valid)) + 1).tolist(), len(valid)]
    return [(start, stop, bool(valid[start])) for start, stop in pairwise(edges)]
