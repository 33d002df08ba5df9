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
        self._num_samples = 0
        self._detector: Detector | None = None
        """Of the stretch of valid samples under way, which has these first sample and end, last value and bridges."""
        self._start = self._stop = 0
        self._last = np.float32(0)
        self._bridges: list[tuple[int, int]] = []

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
                found.append(self._take(samples_mv[start:stop], self._num_samples + start))
            elif self._num_samples + stop - self._stop > int(LONGEST_FILLED_GAP_S * self.rate_hz):
                found.append(self.finish())
        self._num_samples += len(samples_mv)
        return np.concatenate(found)

    def finish(self) -> Positions:
        """Return the beats still open, none of a stretch that is too short; what follows is searched by itself."""
        detector, self._detector = self._detector, None
        if detector is None or self._stop - self._start < SHORTEST_STRETCH_S * self.rate_hz:
            return np.zeros(0, np.int64)
        return self._kept(detector.push(np.zeros(0, np.float32), ends=True))

    def _take(self, samples: Floats, start: int) -> Positions:
        """Take in valid samples, at least one, from `start` on; a short gap before them is bridged."""
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
        """Positions in the stream of those beats that are not in a bridge."""
        beats = self._start + beats
        for start, stop in self._bridges:
            beats = beats[(beats < start) | (beats >= stop)]
        if len(beats):
            self._bridges = [bridge for bridge in self._bridges if bridge[1] > beats[-1]]
        return beats


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
