"""Mains hum, removed from leads in which it dominates.

    pieces of 30 s of a lead ─► a line of 50 or 60 Hz, a third as high as beats or more? ─► line and harmonics removed
                                    no: samples unchanged, to the last bit

A line is sought where sampling folds its frequency to. It is moved to 0 Hz, smoothed, moved back and subtracted: a
notch without delay that follows a frequency and an amplitude that drift. It is applied twice, so that of a line 0.3 Hz
from the assumed frequency 0.1 % is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import Recording

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

MAINS_HZ, HARMONICS = (50.0, 60.0), (2, 3, 4, 5)
PIECE_S, SHORTEST_S = 30.0, 2.0
LOWEST_HZ = 15.0
"""Lines that sampling folds below this frequency are left: a notch there would change P and T waves."""
DOMINATES, HARMONIC = 0.33, 0.03
"""Least height of a line from peak to peak, as a fraction of the height of beats, and of its harmonics. Less
harms nothing: a normal rhythm in hum of 0.37 is read without a fault, in 0.74 it is not (docs/log/signals.md)."""
LINE_HZ, AROUND_HZ, NARROW = 0.6, 6.0, 20.0
"""Half-widths of a line and of what surrounds it, and how many times denser the line is: muscle noise is as dense."""
SMOOTHED_S, PASSES = 0.5, 2
UNEVEN = 1.5
"""How many times larger a line may be than the taper of the spectrum shows it, where its height changes in a piece."""


class HumFree:
    """Samples of a recording without dominating mains hum.

    Args:
        recording: recording with a signal.

    Attributes:
        removed: frequencies of the mains in Hz that were removed from what was read so far, by lead.
    """

    def __init__(self, recording: Recording) -> None:
        self._source = recording
        self._lines = dict[tuple[int, int], list[float]]()  # by lead and piece
        self.removed = dict[int, set[float]]()

    def recording(self) -> Recording:
        """Return the recording with these samples."""
        return replace(self._source, samples=self.read)

    def read(self, start: int, stop: int, leads: Sequence[int]) -> Floats:
        """Return samples, float32 `[num_leads, stop - start]`; they do not depend on the range that is read at once."""
        assert self._source.samples is not None
        rate_hz, end = self._source.rate_hz, self._source.num_samples
        piece, margin = max(1, round(PIECE_S * rate_hz)), round(2 * PASSES * SMOOTHED_S * rate_hz)
        numbers = range(start // piece, -(-stop // piece))
        if all(self._lines.get((lead, number)) == [] for lead in leads for number in numbers):
            return self._source.samples(start, stop, leads)
        first, last = max(0, numbers.start * piece - margin), min(end, numbers.stop * piece + margin)
        signals = self._source.samples(first, last, leads)
        result = signals[:, start - first : stop - first].copy()
        for lead, signal, out in zip(leads, signals, result, strict=True):
            for number in numbers:
                own = slice(number * piece - first, min(end, (number + 1) * piece) - first)
                if (lead, number) not in self._lines:
                    self._lines[lead, number] = mains_lines(signal[own], rate_hz)
                lines = self._lines[lead, number]
                if not lines:
                    continue
                mains_hz = min(MAINS_HZ, key=lambda each: abs(folded(each, rate_hz) - lines[0]))
                self.removed.setdefault(lead, set()).add(mains_hz)
                near = slice(max(0, own.start - margin), own.stop + margin)
                clean = without_lines(signal[near], lines, rate_hz)[own.start - near.start :][: own.stop - own.start]
                low, high = max(start, own.start + first), min(stop, own.stop + first)
                out[low - start : high - start] = clean[low - first - own.start : high - first - own.start]
        return result


def folded(frequency_hz: float, rate_hz: float) -> float:
    """Return the frequency at which a line appears in samples."""
    return abs((frequency_hz + rate_hz / 2) % rate_hz - rate_hz / 2)


def mains_lines(signal_mv: Floats, rate_hz: float) -> list[float]:
    """Return the frequencies of the mains and its harmonics in samples if they dominate a piece of a lead, else none.

    Args:
        signal_mv: samples, float32 `[num_samples]`, NaN where invalid.
        rate_hz: sampling rate in Hz.
    """
    valid = np.isfinite(signal_mv)
    if valid.sum() < SHORTEST_S * rate_hz:
        return []
    centred = np.where(valid, signal_mv - signal_mv[valid].mean(dtype=np.float64), 0.0)
    power: Doubles = np.abs(np.fft.rfft(centred * np.hanning(len(centred)))).astype(np.float64) ** 2
    spectrum: tuple[Doubles, Doubles] = np.fft.rfftfreq(len(centred), 1 / rate_hz).astype(np.float64), power
    for mains_hz in MAINS_HZ:
        line = _line(spectrum, folded(mains_hz, rate_hz))
        if line is None or _is_low(spectrum, line, len(centred), _height(signal_mv, rate_hz)):
            continue
        height = _height(without_lines(signal_mv, [line], rate_hz), rate_hz)
        if _peak_to_peak(signal_mv, line, rate_hz) < DOMINATES * height:
            continue
        lines = [line]
        for harmonic in HARMONICS:
            other = _line(spectrum, folded(harmonic * mains_hz, rate_hz))
            is_new = other is not None and min(abs(other - known) for known in lines) > LINE_HZ
            if other is not None and is_new and _peak_to_peak(signal_mv, other, rate_hz) >= HARMONIC * height:
                lines.append(other)
        return lines
    return []


def _line(spectrum: tuple[Doubles, Doubles], frequency_hz: float) -> float | None:
    """Return the frequency of a narrow line near `frequency_hz`, None without one."""
    frequencies, power = spectrum
    away = np.abs(frequencies - frequency_hz)
    inside, around = away <= LINE_HZ, (away > 2 * LINE_HZ) & (away <= AROUND_HZ)
    if frequency_hz < LOWEST_HZ or not inside.any() or power[inside].mean() <= NARROW * power[around].mean():
        return None
    line = float(np.average(frequencies[inside], weights=power[inside]))
    half = float(frequencies[-1])
    return half if half - line < 1 else line  # at half of the rate a line is its own mirror


def _is_low(spectrum: tuple[Doubles, Doubles], line: float, num_samples: int, height: float) -> bool:
    """Return whether a line cannot dominate, by what the spectrum holds within the width of the notch.

    Removing a line takes seven times as long as this.
    """
    frequencies, power = spectrum
    mean_square = 2 * power[np.abs(frequencies - line) <= 2 / SMOOTHED_S].sum() / (0.375 * num_samples**2)
    most = UNEVEN * 2 * np.sqrt(2 * mean_square)
    return bool(most < DOMINATES * (height - most))


def without_lines(signal_mv: Floats, lines: Sequence[float], rate_hz: float) -> Floats:
    """Return the samples of a lead without the lines at some frequencies in Hz; invalid samples stay invalid."""
    valid = np.isfinite(signal_mv)
    result = np.where(valid, signal_mv, 0).astype(np.float64)
    window = np.hanning(2 * round(SMOOTHED_S * rate_hz / 2) + 3)[1:-1]
    share = np.maximum(_smoothed(valid.astype(np.float64), window), 1e-9)
    for line in lines:
        wave = np.exp(2j * np.pi * line / rate_hz * np.arange(len(result)))
        twice = 1 if line >= rate_hz / 2 - 0.5 else 2
        for _ in range(PASSES):
            # What is slow would leak into the line where the window is cut off.
            slow = _smoothed(result * valid, window) / share
            amplitude = _smoothed((result - slow) * valid * wave.conj(), window) / share
            result -= twice * (amplitude * wave).real
    return np.where(valid, result, signal_mv).astype(np.float32)


def _smoothed(values: NDArray[np.inexact], window: Doubles) -> NDArray[np.inexact]:
    """Return sums weighted by a window whose sum is one; nothing lies beyond the ends."""
    from scipy.signal import oaconvolve  # slow to import, and few recordings have hum

    smoothed: NDArray[np.inexact] = oaconvolve(values, window / window.sum(), mode="same")
    return smoothed


def _peak_to_peak(signal_mv: Floats, line: float, rate_hz: float) -> float:
    """Return the usual height of a line from peak to peak."""
    removed = signal_mv - without_lines(signal_mv, [line], rate_hz)
    return float(2 * np.sqrt(2 * np.nanmean(removed.astype(np.float64) ** 2)))


def _height(signal_mv: Floats, rate_hz: float) -> float:
    """Return the height of beats: the range within a second that three quarters of the seconds do not exceed."""
    length = max(1, round(rate_hz))
    seconds = signal_mv[: len(signal_mv) // length * length].reshape(-1, length)
    seconds = seconds[np.isfinite(seconds).all(axis=1)]
    return float(np.quantile(np.ptp(seconds, axis=1), 0.75)) if len(seconds) else 0.0
