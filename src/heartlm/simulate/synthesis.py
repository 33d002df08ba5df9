"""Synthesis of the leads in millivolts, and of the annotations, from a simulated heart.

The leads contain baseline wander, mains, muscle and motion noise, electrode pops and detachments.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from heartlm.ecg.recording import Annotations, RhythmSpan
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.heart import Activity, Heart
from heartlm.simulate.morphology import REPOLARISATION_S, lead_vectors
from heartlm.simulate.patients import SimulatedPatient
from heartlm.simulate.randomness import band_process, log_uniform, peaked_process, slow_process, stream
from heartlm.simulate.rhythms import simulate_rhythm

Floats = NDArray[np.float64]

_REACH_SIGMAS = 4.5
_PEAK_SEARCH_S = 0.09
_NOT_VENTRICULAR = {"P", "A", "J", "spike"}
_F_WAVE_DIPOLES = np.array([(0.1, 0.5, 1.1), (0.3, -0.8, 0.3)])
_FLUTTER_DIPOLE = np.array([0.15, -1.0, 0.5])


def simulate_recording(
    config: SimulationConfig, patient_index: int, session: int = 0, rhythm: str | None = None
) -> tuple[NDArray[np.float32], Annotations]:
    """Simulate one recording of one patient.

    Args:
        config: settings of the database; `config.patients` does not limit `patient_index`.
        patient_index: index of the patient, from 0.
        session: index of the patient's recording, from 0. Electrode positions and events differ between recordings.
        rhythm: a key of `heartlm.simulate.rhythms.RHYTHM_FUNCTIONS` for the whole recording, instead of the rhythms of
            the patient's profile.

    Returns:
        The signal in mV, float32 `[num_leads, num_samples]`, before any analogue-to-digital conversion, and its
        annotations, with beats at the main deflection of the QRS complex in the first lead.
    """
    patient = SimulatedPatient(config.seed, patient_index)
    rng = stream(config.seed, patient_index, 2, session)
    num, rate_hz = config.num_samples, float(config.rate_hz)
    heart = simulate_rhythm(patient, num / rate_hz, rng, rhythm)
    vectors = lead_vectors(config.leads, rng)
    # how each lead's amplitude goes with breath and posture
    breath = peaked_process(rng, num, rate_hz, patient.breath_hz, 0.015)
    gain = np.empty((len(vectors), num))
    for lead in gain:
        posture = 0.07 * slow_process(rng, num, rate_hz, 0.01)
        lead[:] = np.maximum(1 + rng.uniform(-0.06, 0.06) * breath + posture, 0.3)
    complexes = _render(heart, vectors, num, rate_hz, qrs=True)
    annotations = _annotate(heart, complexes[0], rate_hz)
    signal = gain * (complexes + _render(heart, vectors, num, rate_hz, qrs=False))
    for activity in heart.activity:
        _add_activity(signal, activity, patient, vectors, rate_hz, rng)
    if config.noise > 0:
        for lead in signal:
            noise = _electrode_noise(rng, num, rate_hz, patient.mains_hz, patient.breath_hz)
            lead += config.noise * patient.noise * noise
            _detach(rng, lead, rate_hz)
    return signal.astype(np.float32), annotations


def _render(heart: Heart, vectors: Floats, num: int, rate_hz: float, *, qrs: bool) -> Floats:
    """Add up the Gaussians of QRS complexes, or all others, as leads with `vectors` see them; `[num_leads, num]`."""
    signal = np.zeros((len(vectors), num))
    for name, waves in heart.waves.items():
        template = heart.patient.templates[name]
        at, weight, stretch = np.array(waves, dtype=np.float64).T
        for offset_s, width_s, dipole in zip(template.offset_s, template.width_s, template.dipole_mv, strict=True):
            repolarises = offset_s > REPOLARISATION_S
            if qrs != (name not in _NOT_VENTRICULAR and not repolarises):
                continue
            centre_s = at + offset_s * (stretch if repolarises else 1.0)
            reach = int(np.ceil(_REACH_SIGMAS * width_s * rate_hz))
            nearest = np.rint(centre_s * rate_hz).astype(np.int64)
            place = nearest[:, None] + np.arange(-reach, reach + 1)
            value = weight[:, None] * np.exp(-0.5 * ((place / rate_hz - centre_s[:, None]) / width_s) ** 2)
            inside = (place >= 0) & (place < num)
            signal += np.outer(vectors @ dipole, np.bincount(place[inside], value[inside], minlength=num))
    return signal


def _annotate(heart: Heart, first_lead: Floats, rate_hz: float) -> Annotations:
    """Place each beat at the main deflection of its QRS complex, each rhythm change where it happened."""
    num = len(first_lead)
    nominal = np.rint([rate_hz * at for at, _ in heart.beats]).astype(np.int64)
    reach = int(_PEAK_SEARCH_S * rate_hz)
    place = np.clip(nominal[:, None] + np.arange(-reach, reach + 1), 0, num - 1)
    peak = place[np.arange(len(place)), np.abs(first_lead[place]).argmax(axis=1)]
    symbol = np.array([code for _, code in heart.beats], dtype="<U1")
    kept = (nominal >= reach) & (nominal < num - reach)
    changes = [(round(at * rate_hz), name) for at, name in heart.rhythms if at * rate_hz < num - reach]
    stops = [*(start for start, _ in changes[1:]), num]
    spans = (RhythmSpan(start, stop, name) for (start, name), stop in zip(changes, stops, strict=True))
    return Annotations(rate_hz, peak[kept], symbol[kept], tuple(spans), source="simulator")


def _add_activity(
    signal: Floats, activity: Activity, patient: SimulatedPatient, vectors: Floats, rate_hz: float, rng: Generator
) -> None:
    """Add fibrillation or flutter to the span it lasts, faded in and out over a fifth of a second."""
    first = max(int(activity.start * rate_hz), 0)
    num = min(int(activity.stop * rate_hz), signal.shape[1]) - first
    if num <= 1:
        return
    waves = _ACTIVITIES[activity.rhythm](patient, num, rate_hz, rng)
    time = np.arange(num) / rate_hz
    fade = np.clip(np.minimum(time, time[-1] - time) / 0.2, 0, 1)
    signal[:, first : first + num] += vectors @ waves * fade


def _fibrillatory_waves(patient: SimulatedPatient, num: int, rate_hz: float, rng: Generator) -> Floats:
    """Saw-teeth wandering in frequency and amplitude (the model of Stridh and Sörnmo 2001), from two sources.

    Returns the dipole `[3, num]` in mV.
    """
    dipole = np.zeros((3, num))
    for direction in _F_WAVE_DIPOLES:
        frequency = rng.uniform(5.0, 7.5) + 0.7 * slow_process(rng, num, rate_hz, 0.5)
        phase = rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.cumsum(np.maximum(frequency, 2)) / rate_hz
        strength = np.maximum(1 + 0.5 * slow_process(rng, num, rate_hz, 0.5), 0.2)
        dipole += np.outer(direction, 0.5 * patient.f_wave_mv * strength * _saw_tooth(phase, 3))
    return dipole


def _flutter_waves(patient: SimulatedPatient, num: int, rate_hz: float, rng: Generator) -> Floats:
    """One regular saw-tooth, negative in the inferior leads; dipole `[3, num]` in mV."""
    turns = np.arange(num) / rate_hz / patient.flutter_cycle_s
    size = 1.2 * patient.f_wave_mv + 0.04
    return np.outer(_FLUTTER_DIPOLE, size * _saw_tooth(np.asarray(2 * np.pi * turns), 5))


def _ventricular_fibrillation(patient: SimulatedPatient, num: int, rate_hz: float, rng: Generator) -> Floats:
    """Narrow-band noise from several wandering wavelets, coarse at first and finer with time; `[3, num]` in mV."""
    decay = np.exp(-np.arange(num) / rate_hz / rng.uniform(40, 120))
    size, centre_hz = rng.uniform(0.25, 0.6), rng.uniform(3.8, 6.0)
    wavelets = [peaked_process(rng, num, rate_hz, centre_hz * rng.normal(1, 0.1), 0.8) for _ in range(4)]
    return np.asarray(size * decay * (rng.normal(0, 0.6, (3, 4)) @ np.array(wavelets)))


_ACTIVITIES = {"AFIB": _fibrillatory_waves, "AFL": _flutter_waves, "VFIB": _ventricular_fibrillation}


def _saw_tooth(phase: Floats, num_harmonics: int) -> Floats:
    """A rounded saw-tooth of about unit amplitude."""
    return np.asarray(sum(np.sin(order * phase) / order for order in range(1, num_harmonics + 1)) / 1.5)


def _electrode_noise(rng: Generator, num: int, rate_hz: float, mains_hz: float, breath_hz: float) -> Floats:
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


def _detach(rng: Generator, signal: Floats, rate_hz: float) -> None:
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
