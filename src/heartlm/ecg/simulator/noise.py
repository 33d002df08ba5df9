"""What the electrodes add: baseline wander, mains, muscle, motion, pops, saturation and leads that fall off."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from heartlm.ecg.simulator.randomness import band_process, log_uniform, peaked_process, slow_process

Floats = NDArray[np.float64]


def electrode_noise(rng: Generator, num: int, rate_hz: float, mains_hz: float, breath_hz: float) -> Floats:
    """Noise of one lead in mV at level 1; `[num]`."""
    noise = log_uniform(rng, 0.04, 0.2) * slow_process(rng, num, rate_hz, 0.7)
    noise += log_uniform(rng, 0.01, 0.1) * peaked_process(rng, num, rate_hz, breath_hz, 0.015)
    size, strength = log_uniform(rng, 0.001, 0.02), 1 + 0.5 * slow_process(rng, num, rate_hz, 0.05)
    phase = rng.uniform(0, 2 * np.pi) + 2 * np.pi * mains_hz * (np.arange(num) / rate_hz)
    noise += size * (strength * np.sin(phase + 0.3 * slow_process(rng, num, rate_hz, 0.1)))
    muscle = band_process(rng, num, rate_hz, 15.0, min(110.0, 0.48 * rate_hz))
    noise += log_uniform(rng, 0.006, 0.02) * muscle * (1 + 4 * _bursts(rng, num, rate_hz, every_s=90, length_s=6))
    motion = band_process(rng, num, rate_hz, 0.8, 9.0)
    noise += log_uniform(rng, 0.1, 0.35) * motion * _bursts(rng, num, rate_hz, every_s=150, length_s=5)
    noise += _pops(rng, num, rate_hz)
    return np.asarray(noise)


def detach(rng: Generator, signal: Floats, rate_hz: float) -> None:
    """Let the lead `[num]` fall off, now and then: it reads the same value for some seconds."""
    for _ in range(rng.poisson(len(signal) / rate_hz / 1200)):
        start = int(rng.integers(len(signal)))
        signal[start : start + int(rng.uniform(0.5, 4) * rate_hz)] = signal[start]


def _bursts(rng: Generator, num: int, rate_hz: float, every_s: float, length_s: float) -> Floats:
    """An envelope from 0 to about 1 that is up for some seconds, now and then; `[num]`."""
    envelope = np.zeros(num)
    for _ in range(rng.poisson(num / rate_hz / every_s)):
        length = int(log_uniform(rng, length_s / 3, length_s * 3) * rate_hz)
        start = int(rng.integers(num))
        shape = np.hanning(length) * rng.uniform(0.4, 1.2)
        envelope[start : start + length] += shape[: num - start]
    return envelope


def _pops(rng: Generator, num: int, rate_hz: float) -> Floats:
    """Steps of the electrode potential that the amplifier's high-pass lets decay; large ones saturate it."""
    pops = np.zeros(num)
    for _ in range(rng.poisson(num / rate_hz / 600)):
        start = int(rng.integers(num))
        decay_s = rng.uniform(0.1, 0.7)
        time = np.arange(min(num - start, int(8 * decay_s * rate_hz))) / rate_hz
        pops[start : start + len(time)] += rng.choice([-1, 1]) * log_uniform(rng, 0.3, 9.0) * np.exp(-time / decay_s)
    return pops
