"""Detect heartbeats in a signal without annotations.

The detector (`heartlm.kernels.detect`) has two modes. The offline mode uses seconds of later signal for each decision;
the causal mode, for live streams, uses only the past. In both modes the beats do not depend on how the signal is
divided into chunks. A beat is marked where the signal between about 5 and 20 Hz is farthest from zero, usually at the
R peak. Beats of one shape are marked at the same feature, because the tokenizer sees a beat shifted by 25 ms as
another shape.

The settings in `detect.json` were tuned on DS1 of mitdb (`benchmarks/tune_detector.py`). Those of the beat's mark were
tuned on DS1 and on the odd-numbered recordings of ludb.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from heartlm.files import read_json
from heartlm.kernels.detect import Detector, Settings, plan_detector

Mode = Literal["offline", "causal"]
Floats = NDArray[np.float32]
Positions = NDArray[np.int64]

SETTINGS = cast(dict[Mode, Settings], read_json(Path(__file__).with_suffix(".json"), dict[str, Settings]))
"""Settings of each mode; both modes use the same filters."""

SHORTEST_STRETCH_S = 2.0
"""Minimum length of a valid stretch in seconds: the first decision needs the signal level of two seconds."""
LONGEST_FILLED_GAP_S = 0.1
LOWEST_RATE_HZ = 62.0
"""Minimum sampling rate in Hz: slightly above twice the upper end of the detector's band, which is near 30 Hz."""


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
    found = detector.push(signal_mv)
    return np.concatenate([found, detector.finish()])


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
        found = [np.zeros(0, np.int64)]
        for start, stop, valid in _runs(samples_mv):
            if valid:
                found.append(self._take(samples_mv[start:stop], self._num_samples + start))
            elif self._num_samples + stop - self._stop > int(LONGEST_FILLED_GAP_S * self.rate_hz):
                found.append(self.finish())
        self._num_samples += len(samples_mv)
        return np.concatenate(found)

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
