"""What `heartlm.monitor.signal` does in C, in NumPy: one lead of a live stream."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.detect import StreamingDetector
from heartlm.ecg.spans import runs
from heartlm.labels.waveform import WINDOW
from heartlm.monitor.signal import (
    _BASELINE_S,
    _FURTHEST_MV,
    _GRID,
    _STEEPEST_MV_PER_S,
    _STEP_MV,
    _STEP_S,
    FLAT_S,
    KEPT_S,
    SecondsOfLeads,
)
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.millivolts import NO_SIGNAL, quantize
from heartlm.tokenizers.sample import BASELINE_S, GRID_HZ
from heartlm.tokenizers.waveform import fill_gaps, hann_weights, interpolate, smooth

Floats = NDArray[np.float32]


class PlainLead:
    """One second after the other of one lead in NumPy."""

    def __init__(self, tokenizer: BeatTokenizer, rate_hz: float) -> None:
        self.rate_hz = rate_hz
        self.detector = StreamingDetector(rate_hz)
        self._offsets = tokenizer.window.times_s * rate_hz
        self._weights = hann_weights(rate_hz, tokenizer.window.rate_hz)
        self._grid_weights = hann_weights(rate_hz, GRID_HZ)
        self._step_mv = max(_STEP_MV, _STEEPEST_MV_PER_S / rate_hz)
        self._ahead = math.ceil(self._offsets[-1]) + len(self._weights) // 2 + 1
        self.num_seconds = self.num_samples = 0
        self.recent = np.empty(0, np.float32)
        """The last samples, gaps filled; the last of them is sample `num_samples - 1` of the stream."""
        self.raw = np.empty(0, np.float32)
        """The last seconds as they came."""
        self.last_valid = np.float32(0)
        self.same = 0
        """Samples at the end that equal the one before each."""
        self.waiting = np.empty(0, np.int64)
        self.average: float | None = None
        self.grid = np.empty(0, np.uint16)

    def second(self, samples_mv: Floats) -> SecondsOfLeads:
        """Take in the next second; its beats are mostly of this second, now and then of the four before.

        Args:
            samples_mv: all its samples, float32, NaN where invalid.
        """
        self.raw = np.concatenate([self.raw, samples_mv])[-round(_BASELINE_S * self.rate_hz) :]
        known = np.isfinite(samples_mv)
        if known.any():
            median = np.median(self.raw)
            if np.isnan(median):  # nanmedian takes several times as long, so only where it is needed
                median = np.nanmedian(self.raw)
            known &= np.abs(samples_mv - median) <= _FURTHEST_MV
            last = self.raw[max(0, len(self.raw) - len(samples_mv) - 1)]
            for step in np.flatnonzero(np.abs(np.diff(samples_mv, prepend=last)) > self._step_mv):
                known[step : step + round(_STEP_S * self.rate_hz)] = False
            samples_mv = np.where(known, samples_mv, np.float32(np.nan))
        if not known.any():
            return self._nothing(samples_mv)
        valid = known & ~self._flat(samples_mv)
        filled = fill_gaps(np.append(self.last_valid, samples_mv))[1:]
        self.recent = np.concatenate([self.recent, filled])[-round(KEPT_S * self.rate_hz) :]
        self.last_valid = filled[-1]
        self.num_samples += len(samples_mv)
        found = self.detector.push(samples_mv)
        self.waiting = np.concatenate([self.waiting, found])
        ready = self.waiting + self._ahead < self.num_samples
        beats, self.waiting = self.waiting[ready], self.waiting[~ready]
        range_mv = self._extend_grid(samples_mv)
        self.num_seconds += 1
        return self._shown(beats, len(self.grid) == WINDOW, float(valid.mean()), range_mv)

    def _nothing(self, samples_mv: Floats) -> SecondsOfLeads:
        """A second without a signal; there may be hours of them."""
        self.num_samples += len(samples_mv)
        self.num_seconds += 1
        self.recent = np.concatenate([self.recent, np.full(len(samples_mv), self.last_valid, np.float32)])
        self.recent = self.recent[-round(KEPT_S * self.rate_hz) :]
        beats = np.concatenate([self.waiting, self.detector.push(samples_mv)])
        self.waiting, self.average, self.same = beats[:0], None, 0
        self.grid = np.concatenate([self.grid, np.full(_GRID, NO_SIGNAL, np.uint16)])[-WINDOW:]
        return self._shown(beats, False, 0.0, float("nan"))

    def _shown(self, beats: NDArray[np.int64], has_window: bool, valid: float, range_mv: float) -> SecondsOfLeads:
        start = self.num_samples - len(self.recent)
        waves = np.empty((len(beats), len(self._offsets)), np.float32)
        for row, sample in enumerate(beats.tolist()):
            first = max(sample + math.floor(self._offsets[0]) - len(self._weights) // 2 - 1, start)
            piece = smooth(self.recent[first - start : sample + self._ahead + 1 - start], self._weights)
            waves[row] = interpolate(piece, sample - first + self._offsets)
        windows = self.grid[None] if has_window else np.zeros((1, WINDOW), np.uint16)
        known, share, height = np.array([has_window]), np.array([valid]), np.array([range_mv])
        return SecondsOfLeads(windows, known, share, height, np.zeros(len(beats), np.int64), beats, waves)

    def _flat(self, samples_mv: Floats) -> NDArray[np.bool_]:
        """Samples in runs of equal ones, which may start before this second."""
        shortest = round(FLAT_S * self.rate_hz)
        before = self.recent[-1:] if self.num_samples else np.full(1, np.nan, np.float32)
        same = np.diff(samples_mv, prepend=before) == 0
        flat = np.zeros(len(same), np.bool_)
        for begin, end in runs(same).tolist():
            if end - begin + (self.same if begin == 0 else 0) >= shortest:
                flat[begin:end] = True
        changes = np.flatnonzero(~same)
        self.same = len(same) - 1 - int(changes[-1]) if len(changes) else self.same + len(same)
        return flat

    def _extend_grid(self, samples_mv: Floats) -> float:
        """Voltage codes of this second, whose range in mV is returned.

        At its end the low-pass takes the last sample for those that follow.
        """
        start = self.num_samples - len(samples_mv)
        halo = min(len(self._grid_weights), len(self.recent) - len(samples_mv))
        piece = smooth(self.recent[len(self.recent) - len(samples_mv) - halo :], self._grid_weights)
        place = (self.num_seconds * _GRID + np.arange(_GRID, dtype=np.float64)) * (self.rate_hz / GRID_HZ) - start
        voltage = interpolate(piece, place + halo).astype(np.float64)
        keep = math.exp(-1 / (BASELINE_S * GRID_HZ))
        if self.average is None:
            self.average = float(voltage[0])
        power = keep ** np.arange(
            1, _GRID + 1
        )  # what lfilter does, without the seconds that scipy.signal takes to import
        slow = power * (self.average + (1 - keep) * np.cumsum(voltage / power))
        self.average = float(slow[-1])
        codes = quantize((voltage - slow).astype(np.float32))
        nearest = np.clip(np.round(place).astype(np.int64), 0, len(samples_mv) - 1)
        codes[np.isnan(samples_mv[nearest])] = NO_SIGNAL
        self.grid = np.concatenate([self.grid, codes])[-WINDOW:]
        return float(np.ptp(voltage - slow))


def take_plain_seconds(leads: Sequence[PlainLead], samples: Sequence[Floats]) -> SecondsOfLeads:
    """The next second of each lead, one after the other."""
    parts = [lead.second(own) for lead, own in zip(leads, samples, strict=True)]
    of_lead = np.repeat(np.arange(len(parts)), [len(part.beats) for part in parts])
    names = "windows", "has_window", "valid", "range_mv", "beats", "waves"
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return SecondsOfLeads(of_lead=of_lead, **columns)
