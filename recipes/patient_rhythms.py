"""Simulated rhythms based on a patient's sinus intervals: time, code and P wave of each beat.

Stretches of sinus rhythm with premature and blocked beats alternate with stretches of arrhythmias, and of rhythms that
resemble arrhythmias. The kinds are drawn at random for each patient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

NORMAL, ATRIAL, VENTRICULAR = "N", "A", "V"
OWN, INVERTED, LATE, NONE = range(4)
"""Kinds of P wave."""


class PlannedBeat(NamedTuple):
    """A beat to place: time in seconds, WFDB code and kind of P wave."""

    at_s: float
    symbol: str
    p_wave: int


class PatientRhythms:
    """Draw a patient's beats in order; each method adds a stretch of a rhythm.

    Args:
        intervals_s: sinus intervals of the patient, in order, `[num_intervals]`.
        ventricular: whether to draw ventricular premature beats.
        rng: random generator.
    """

    def __init__(self, intervals_s: Doubles, ventricular: bool, rng: Generator) -> None:
        self.rng, self.beats, self.at_s = rng, list[PlannedBeat](), 0.0
        median = float(np.median(intervals_s))
        self.base_s = float(np.clip(median * rng.uniform(0.85, 1.2), 0.55, 1.3))
        self._deviation = (intervals_s / median - 1) * rng.uniform(0.6, 1.6)
        self._place = int(rng.integers(len(intervals_s)))
        self.slowing = 1.0
        self.premature = np.exp(rng.uniform(np.log(0.01), np.log(0.2))) * (rng.random() < 0.6)
        self.ventricular = np.exp(rng.uniform(np.log(0.005), np.log(0.1))) * (ventricular and rng.random() < 0.6)
        self.blocked = 0.015 * (rng.random() < 0.35)
        self.coupling = rng.uniform(0.5, 0.85)
        self.premature_p, self.run_p = rng.integers(1, 4, 2).tolist()
        self.tachycardia_s = min(rng.uniform(0.32, 0.55), 0.72 * self.base_s)
        self.tachycardia_beats = np.exp(rng.normal(3.3, 1.4))
        self.incessant = rng.uniform(0.05, 0.8)
        self.run_s = min(rng.uniform(0.55, 0.85), 0.85 * self.base_s)
        stretches: list[tuple[Callable[[], None], float]] = [
            (self.tachycardia, 0.6),
            (self.runs_and_pauses, 0.35),
            (self.fibrillation, 0.35),
            (self.sinus_tachycardia, 0.5),
            (self.arousal, 0.4),
            (self.breathing, 0.35),
        ]
        self.stretches = [stretch for stretch, share in stretches if rng.random() < share]

    def draw(self, num_beats: int) -> list[PlannedBeat]:
        """Draw at least `num_beats` beats."""
        while len(self.beats) < num_beats:
            self.sinus(int(self.rng.integers(20, 150)))
            if self.stretches:
                self.stretches[self.rng.integers(len(self.stretches))]()
        return self.beats

    def _beat(self, interval_s: float, symbol: str = NORMAL, p_wave: int = OWN) -> None:
        self.at_s += interval_s
        self.beats.append(PlannedBeat(self.at_s, symbol, p_wave))

    def _interval_s(self, variability: float = 1.0) -> float:
        self._place = (self._place + 1) % len(self._deviation)
        return max(self.base_s * self.slowing * (1 + variability * float(self._deviation[self._place])), 0.33)

    def sinus(self, num_beats: int) -> None:
        """Add sinus rhythm with this patient's premature and blocked beats."""
        for _ in range(num_beats):
            chance = self.rng.random()
            if chance < self.premature:
                self.premature_atrial()
            elif (chance := chance - self.premature) < self.ventricular:
                interval_s, early = self._interval_s(), self.rng.uniform(0.45, 0.8)
                self._beat(interval_s * early, VENTRICULAR, NONE)
                self._beat(max(interval_s * (2 - early) + self.rng.normal(0, 0.02), 0.4))
            elif chance - self.ventricular < self.blocked:
                pause = self.rng.choice([2, 2, 2, 3]) if self.rng.random() < 0.6 else self.rng.uniform(1.3, 2.5)
                self._beat(self._interval_s() * pause)
            else:
                self._beat(self._interval_s())

    def premature_atrial(self) -> None:
        """Add one premature atrial beat, a few in a row, or bigeminy or trigeminy."""
        kind = self.rng.random()
        if kind < 0.15:
            between, times, row = int(self.rng.integers(1, 3)), int(self.rng.integers(3, 15)), 1
        else:
            between, times, row = 0, 1, 1 if kind < 0.85 else int(self.rng.integers(2, 6))
        for _ in range(times):
            for _ in range(between):
                self._beat(self._interval_s())
            for _ in range(row):
                early = np.clip(self.coupling + self.rng.normal(0, 0.05), 0.42, 0.93)
                self._beat(self._interval_s() * early, ATRIAL, self.premature_p)
            self._beat(self._interval_s() * self.rng.uniform(1.0, 1.25))

    def tachycardia(self) -> None:
        """Add supraventricular tachycardia: sudden onset, steady rate, beats to minutes long, once or repeated."""
        while True:
            num_beats = int(np.clip(self.tachycardia_beats * np.exp(self.rng.normal(0, 0.8)), 2, 600))
            interval_s, drift = self.tachycardia_s * self.rng.normal(1, 0.02), self.rng.normal(0, 0.01)
            self._beat(interval_s * self.rng.uniform(0.9, 1.05), ATRIAL, self.run_p)
            for place in range(num_beats):
                factor = (1 + drift * place / num_beats) * (1 + self.rng.normal(0, 0.008))
                self._beat(interval_s * factor, ATRIAL, self.run_p)
            self._beat(max(self.base_s * self.rng.uniform(0.9, 1.5), 1.2 * interval_s))
            if self.rng.random() > self.incessant:
                return
            self.sinus(int(self.rng.integers(1, 40)))

    def runs_and_pauses(self) -> None:
        """Add atrial runs slightly faster than sinus rhythm, separated by pauses, as in sick sinus syndrome."""
        for _ in range(self.rng.integers(3, 40)):
            for _ in range(self.rng.integers(1, 25)):
                self._beat(self.run_s * (1 + self.rng.normal(0, 0.03)), ATRIAL, self.run_p)
            for _ in range(self.rng.integers(1, 3)):
                self._beat(self.base_s * self.rng.uniform(1.2, 3.0))

    def fibrillation(self) -> None:
        """Add atrial fibrillation: no P waves, irregular (less at high rates); early beats are not premature."""
        mean_s = self.rng.uniform(0.38, 0.9)
        spread = self.rng.uniform(0.05, 0.15) if mean_s < 0.5 else self.rng.uniform(0.1, 0.28)
        for _ in range(self.rng.integers(20, 400)):
            self._beat(float(np.clip(mean_s * np.exp(self.rng.normal(0, spread)), 0.3, 2.0)), NORMAL, NONE)

    def arousal(self) -> None:
        """Add sinus rhythm that accelerates within a few beats and slows down over minutes, as after standing up."""
        faster = self.rng.uniform(0.62, 0.9)
        onset, hold, back = (int(self.rng.integers(low, high)) for low, high in ((2, 6), (5, 150), (15, 150)))
        for self.slowing in (*np.linspace(1, faster, onset), *np.full(hold, faster), *np.linspace(faster, 1, back)):
            self._beat(self._interval_s(0.5))

    def sinus_tachycardia(self) -> None:
        """Add sinus tachycardia with onset and end over half a minute or more."""
        fastest = max(self.rng.uniform(0.45, 0.85), 0.38 / self.base_s)
        change, hold = int(self.rng.integers(30, 120)), int(self.rng.integers(10, 200))
        there = np.linspace(1, fastest, change)
        for self.slowing in (*there, *np.full(hold, fastest), *there[::-1]):
            self._beat(self._interval_s(0.5))

    def breathing(self) -> None:
        """Add respiratory arrhythmia."""
        depth, period_s = self.rng.uniform(0.08, 0.25), self.rng.uniform(3, 6)
        for _ in range(self.rng.integers(30, 150)):
            self._beat(self._interval_s() * (1 + depth * np.sin(2 * np.pi * self.at_s / period_s)))
