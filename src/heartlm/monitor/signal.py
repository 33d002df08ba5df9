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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.detect import LONGEST_FILLED_GAP_S, SETTINGS, SHORTEST_STRETCH_S, StreamingDetector
from heartlm.ecg.spans import runs
from heartlm.errors import HeartlmError
from heartlm.kernels.library import library
from heartlm.kernels.live_seconds import SecondsKernel, SecondsOfLeads
from heartlm.kernels.waveform import interpolate, smooth
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.live import LiveBeats
from heartlm.tokenizers.millivolts import NO_SIGNAL, NUM_LEVELS, quantize
from heartlm.tokenizers.sample import BASELINE_S, GRID_HZ
from heartlm.tokenizers.waveform import fill_gaps, hann_weights
from heartlm.training.waveform import WINDOW

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


class LiveLead:
    """What is remembered of one lead, without compiled kernels.

    Args:
        tokenizer: of the model of beats.
        rate_hz: samples a second.

    Raises:
        ValueError: the rate is too low for the detector.
    """

    def __init__(self, tokenizer: BeatTokenizer, rate_hz: float) -> None:
        self.rate_hz = rate_hz
        self.detector = StreamingDetector(rate_hz)
        self.tokens = LiveBeats(tokenizer, rate_hz)
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

    def state(self) -> dict[str, Any]:
        """Only a lead in C can be kept; see `check_kept`."""
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        """See `state`."""
        self.state()


class CompiledLead:
    """What is remembered of one lead, for `take_seconds` in C; see `LiveLead`."""

    def __init__(self, tokenizer: BeatTokenizer, rate_hz: float) -> None:
        StreamingDetector(rate_hz)  # refuses a rate that is too low
        window = tokenizer.window
        self.kernel = seconds_kernel(rate_hz, window.rate_hz, tuple(window.times_s.tolist()))
        self.tokens = LiveBeats(tokenizer, rate_hz)
        self.memory = np.zeros(self.kernel.num_bytes, np.uint8)
        self.address = self.memory.ctypes.data
        assert self.address % 16 == 0, "numpy aligns its arrays"

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs: arrays, and dictionaries of them."""
        return {"memory": self.memory.copy(), "tokens": self.tokens.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which a lead of the same rate and tokenizer gave.

        Raises:
            HeartlmError: another build made the state.
        """
        if state["memory"].shape != self.memory.shape:
            sizes = f"{state['memory'].size} bytes found, {self.memory.size} expected"
            raise HeartlmError(f"state of a lead: {sizes}: written by another build of heartlm: choose another --out")
        self.memory[:] = state["memory"]
        self.tokens.restore(state["tokens"])


def check_kept() -> None:
    """Raise a HeartlmError unless leads have a state that can be kept."""
    if library() is None:
        raise HeartlmError("streams can only be kept with the compiled kernels: install a C compiler, then heartlm")


def make_lead(tokenizer: BeatTokenizer, rate_hz: float) -> LiveLead | CompiledLead:
    """Begin a lead; see `LiveLead`."""
    return LiveLead(tokenizer, rate_hz) if library() is None else CompiledLead(tokenizer, rate_hz)


@lru_cache(maxsize=256)
def seconds_kernel(
    rate_hz: float, grid_hz: float, times_s: tuple[float, ...], variant: str | None = None
) -> SecondsKernel:
    """What `LiveLead` does, in C, for leads of one rate; beats are read off at `times_s`, low-passed for `grid_hz`."""
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


def take_seconds(leads: Sequence[LiveLead | CompiledLead], samples: Sequence[Floats]) -> SecondsOfLeads:
    """Take in the next second of each lead.

    Args:
        leads: at least one.
        samples: all of the second, float32, NaN where invalid.
    """
    groups, parts = dict[SecondsKernel, list[int]](), list[tuple[NDArray[np.int64], SecondsOfLeads]]()
    for place, lead in enumerate(leads):
        if isinstance(lead, CompiledLead):
            groups.setdefault(lead.kernel, []).append(place)
        else:
            parts.append((np.array([place]), lead.second(samples[place])))
    addresses = np.array([lead.address for lead in leads if isinstance(lead, CompiledLead)])
    for kernel, places in groups.items():  # all leads are compiled, or none is
        parts.append((np.array(places), kernel.take(addresses[places], [samples[place] for place in places])))
    if len(parts) == 1:
        return parts[0][1]
    of_leads = ((places, own.windows, own.has_window, own.valid, own.range_mv) for places, own in parts)
    of_beats = ((places[own.of_lead], own.beats, own.waves) for places, own in parts)
    order, *columns = (np.concatenate(each) for each in zip(*of_leads, strict=True))
    of_lead, *beats = (np.concatenate(each) for each in zip(*of_beats, strict=True))
    by_place, by_lead = np.argsort(order), np.argsort(of_lead, kind="stable")
    return SecondsOfLeads(*(own[by_place] for own in columns), *(own[by_lead] for own in (of_lead, *beats)))
