"""Noise and electrode faults over rhythms of every kind, and long VT: by these VF, VT and noise are told apart.

    recording of DS1, svdb, cudb or the simulator ─► a fault of 12 to 25 s every minute, of a kind and strength each
    sinus rhythm, V beats of the same patient     ─► VT of 20 s at 120 to 250/min, without and with a fault

Noise is that of nstdb (muscle, baseline wander), the faults are those of electrodes: steps, a lead that falls off and
swings back, one that saturates, and movements at the rates of VF. Two of three faults hit all leads. Rhythms are those
of the annotations. No recording of DS2 is used.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import heartlm.databases.splits as splits
from heartlm.databases.database import open_database
from heartlm.ecg.recording import Recording, RhythmSpan
from heartlm.monitor.stream import watched_leads
from lab.bedside_cases import MOVEMENTS, Case, Noises, add_noise, moved, noises_of, simulated_patients
from lab.places import DATA, annotations_of

FAULTS = ("muscle", "wander", "muscle and wander", "steps", "off and back", "saturated", *MOVEMENTS)
STRENGTHS_DB = (6, 0, -6)
"""Heartbeats to noise, as nstdb counts. Synthetic faults are half, once and twice as high as a QRS complex."""
EVERY_S, LENGTH_S = 45, (12, 25)
MOST_S = 240
VT_BPM = (120, 150, 180, 210, 240)
VT_S, AROUND_S = 20, 30


@dataclass(frozen=True)
class Fault:
    """A fault from sample `start` to `stop`: one of `FAULTS`, how strong, and whether all leads have it."""

    start: int
    stop: int
    what: str
    strength_db: int
    everywhere: bool


@dataclass
class NoisyRhythm:
    """A case without and with faults. `rhythms` are annotated; those of a made VT are N and VT."""

    case: Case
    clean_mv: np.ndarray
    faults: list[Fault]
    rhythms: list[RhythmSpan]


def noisy_rhythms(noise: Path, work: Path) -> Iterator[NoisyRhythm]:
    """All recordings with faults, the same ones each time."""
    noises = noises_of(noise)
    mitdb, svdb, cudb = (open_database(DATA / name) for name in ("mitdb", "svdb", "cudb"))
    simulated = simulated_patients(work / "simulated", 60, 2026)
    sources = [("mitdb", mitdb, splits.DS1), ("svdb", svdb, svdb.record_ids)]
    sources += [("cudb", cudb, cudb.record_ids), ("simulated", simulated, simulated.record_ids)]
    for name, database, record_ids in sources:
        for record_id in record_ids:
            yield _with_faults(f"{name}/{record_id}", database.recording(record_id), noises)


def ventricular_tachycardias(noise: Path) -> Iterator[NoisyRhythm]:
    """Sinus rhythm, and VT made of the V beats of the same patient, at each rate; every second one with a fault."""
    noises = noises_of(noise)
    database = open_database(DATA / "mitdb")
    for record_id in splits.DS1:
        for place, bpm in enumerate(VT_BPM):
            made = _tachycardia(f"mitdb/{record_id}", database.recording(record_id), bpm, noises, place % 2 == 1)
            if made is not None:
                yield made


def _with_faults(name: str, recording: Recording, noises: Noises) -> NoisyRhythm:
    choose, rate_hz, annotations = random.Random(name), recording.rate_hz, annotations_of(recording)
    length = min(recording.num_samples, round(MOST_S * rate_hz))
    first = choose.randrange(recording.num_samples - length + 1)
    clean = np.nan_to_num(recording.signal(first, first + length, watched_leads(recording)))
    signal, faults = clean.copy(), list[Fault]()
    stop = round(60 * rate_hz)
    while (stop := stop + round((EVERY_S + choose.uniform(0, 10)) * rate_hz)) < length:
        faults.append(_disturb(signal, stop, rate_hz, choose, noises))
    rhythms = [
        RhythmSpan(max(0, span.start - first), min(length, span.stop - first), span.name)
        for span in annotations.rhythms
        if span.start < first + length and span.stop > first
    ]
    return NoisyRhythm(Case(name, name, "noise", (), rate_hz, signal), clean, faults, rhythms)


def _disturb(signal: np.ndarray, stop: int, rate_hz: float, choose: random.Random, noises: Noises) -> Fault:
    """Add a fault that ends at `stop`."""
    what, strength_db, everywhere = choose.choice(FAULTS), choose.choice(STRENGTHS_DB), choose.random() < 2 / 3
    num = round(choose.uniform(*LENGTH_S) * rate_hz)
    own, size = signal[:, stop - num : stop], 10 ** (-strength_db / 20)
    leads = range(len(own)) if everywhere else [choose.randrange(len(own))]
    times = np.arange(num) / rate_hz
    for lead in leads:
        line = own[lead]
        height = float(np.percentile(np.abs(line - np.median(line)), 99))
        if what in ("muscle", "wander", "muscle and wander"):
            for kind, noise in (("muscle", "ma"), ("wander", "bw")):
                if kind in what:
                    add_noise(line, noises[noise], lead, height, rate_hz, choose, strength_db)
        elif what == "steps":  # contacts that come and go, each step decays by the filter of the recorder
            for _ in range(round(times[-1] * choose.uniform(0.3, 2))):
                place = choose.randrange(num)
                decay_s = choose.uniform(0.05, 0.6)
                line[place:] += size * height * choose.uniform(-2, 2) * np.exp(-times[: num - place] / decay_s)
        elif what == "off and back":  # nothing but hum, then the baseline swings back
            back = round(num * choose.uniform(0.3, 0.7))
            line[:back] = 0.02 * height * np.sin(2 * np.pi * 50 * times[:back])
            after, hz = times[: num - back], choose.uniform(0.5, 3)
            swing = np.exp(-after / choose.uniform(0.5, 3)) * np.cos(2 * np.pi * hz * after)
            line[back:] += 4 * size * height * choose.choice([-1, 1]) * swing
        elif what == "saturated":  # gain or offset too high for the recorder: cut on both sides
            wander = np.sin(2 * np.pi * choose.uniform(0.2, 2) * times + choose.uniform(0, 6))
            middle, most = np.median(line), height * choose.uniform(0.8, 1.2)
            line[:] = middle + np.clip(4 * size * (line - middle + 0.7 * height * wander), -most, most)
        else:
            line[:] = moved(line[None], what, rate_hz, choose, size)[0]
    return Fault(stop - num, stop, what, strength_db, everywhere)


def _tachycardia(name: str, recording: Recording, bpm: int, noises: Noises, disturbed: bool) -> NoisyRhythm | None:
    choose, rate_hz = random.Random(f"{name} {bpm}"), recording.rate_hz
    beats = annotations_of(recording)
    symbols = np.array(list("NSVFQ?"))[beats.beat_classes()]
    around = round(AROUND_S * rate_hz)
    before, after = round(0.22 * rate_hz), round(0.42 * rate_hz)
    v = beats.sample[(symbols == "V") & (beats.sample > before) & (beats.sample < recording.num_samples - after)]
    if len(v) < 3:
        return None
    leads = watched_leads(recording)
    start = choose.randrange(around, recording.num_samples - around)
    sinus = np.nan_to_num(recording.signal(start - around, start + around, leads))
    focus = int(choose.choice(v.tolist()))
    nearest = v[np.argsort(np.abs(v - focus))[:3]]  # shapes of one focus, most likely
    fade = np.interp(np.arange(-before, after), [-before, -before // 2, after // 2, after], [0, 1, 1, 0])
    pieces = []
    for place in nearest.tolist():
        piece = np.nan_to_num(recording.signal(place - before, place + after, leads))
        ends = np.linspace(piece[:, 0], piece[:, -1], before + after, axis=1)
        pieces.append((piece - ends) * fade)
    num = round(VT_S * rate_hz)
    run, at = np.zeros((len(leads), num + before + after)), 0.0
    while at < num:
        place = round(at)
        run[:, place : place + before + after] += pieces[choose.randrange(len(pieces))] * choose.uniform(0.9, 1.1)
        at += 60 / bpm * rate_hz * choose.uniform(0.97, 1.03)
    run = run[:, before : before + num] + np.linspace(sinus[:, around - 1], sinus[:, around], num, axis=1)
    clean = np.hstack([sinus[:, :around], run, sinus[:, around:]]).astype(np.float32)
    signal, faults = clean.copy(), list[Fault]()
    if disturbed:
        faults.append(_disturb(signal, around + num, rate_hz, choose, noises))
    rhythms = [RhythmSpan(around, around + num, "VT")]
    case = Case(f"{name} {bpm}", name, f"VT of {bpm}/min", ("VT",), rate_hz, signal)
    return NoisyRhythm(case, clean, faults, rhythms)
