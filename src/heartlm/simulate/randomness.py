"""Seeded randomness: one independent stream for each purpose, and processes with a wanted spectrum.

Every stream follows from the seed and a key (patient, recording, purpose) alone, through NumPy's counter-based
Philox, so a patient is the same whichever other patients are simulated, and in whatever order.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator, Philox, SeedSequence
from numpy.typing import NDArray


def stream(seed: int, *key: int) -> Generator:
    """Return the random generator that belongs to `key`."""
    return Generator(Philox(SeedSequence(entropy=seed, spawn_key=key)))


def log_uniform(rng: Generator, low: float, high: float) -> float:
    """Draw a number between `low` and `high` whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def band_process(rng: Generator, num: int, rate_hz: float, low_hz: float, high_hz: float) -> NDArray[np.float64]:
    """Gaussian noise with a flat spectrum between two frequencies and unit variance; `[num]`."""
    frequency = np.fft.rfftfreq(num, 1 / rate_hz)
    return _shaped(rng, num, ((frequency >= low_hz) & (frequency <= high_hz)).astype(float))


def peaked_process(rng: Generator, num: int, rate_hz: float, centre_hz: float, width_hz: float) -> NDArray[np.float64]:
    """Gaussian noise whose power spectrum is a Gaussian around `centre_hz`, unit variance; `[num]`.

    The ingredient of the RR process of McSharry et al. 2003 (IEEE Trans. Biomed. Eng. 50:289).
    """
    frequency = np.fft.rfftfreq(num, 1 / rate_hz)
    return _shaped(rng, num, np.exp(-0.5 * ((frequency - centre_hz) / width_hz) ** 2))


def slow_process(rng: Generator, num: int, rate_hz: float, cutoff_hz: float) -> NDArray[np.float64]:
    """A drift with power falling as 1/f² from one cycle a minute to `cutoff_hz`, unit variance; `[num]`.

    It is made at eight times the cutoff and interpolated, as it has nothing faster in it.
    """
    step = max(1, int(rate_hz / (8 * cutoff_hz)))
    coarse = num // step + 2
    frequency = np.fft.rfftfreq(coarse, step / rate_hz)
    power = np.where((frequency > 0) & (frequency <= cutoff_hz), 1 / np.maximum(frequency, 1 / 60) ** 2, 0.0)
    drift = _shaped(rng, coarse, power)
    return np.interp(np.arange(num), step * np.arange(coarse), drift)


def _shaped(rng: Generator, num: int, power: NDArray[np.float64]) -> NDArray[np.float64]:
    """Noise `[num]` with the given power per `rfft` bin, scaled to unit variance (zeros where no bin has power)."""
    phases = rng.standard_normal((2, len(power)))
    signal = np.fft.irfft((phases[0] + 1j * phases[1]) * np.sqrt(power), num)
    deviation = signal.std()
    return np.asarray(signal / deviation if deviation > 0 else signal)
