"""Simulated heart: sinus node, ectopic foci and their effects on later beats.

A `Heart` simulates one recording. It has two clocks: `node` is the time at which the sinus node's last impulse reached
(or would have reached) the ventricles, and `last` is the time of the last ventricular beat. Compensatory pauses follow
from these clocks: a ventricular beat does not change the node's clock, and an atrial beat resets it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from heartlm.simulate.patients import SimulatedPatient
from heartlm.simulate.randomness import peaked_process, slow_process

_STATE_HZ = 8.0
_LF_HZ = 0.1
_REFRACTORY_S = 0.33


class Activity(NamedTuple):
    """Continuous activity without single waves: fibrillation or flutter from `start` to `stop` (s)."""

    rhythm: str
    start: float
    stop: float


class Heart:
    """One patient's heart over one recording; the methods advance the simulation.

    Attributes:
        beats: time (s) and WFDB code of every ventricular beat, ascending.
        waves: uses of each template by its name: time (s), amplitude, and stretch factor of the repolarisation.
        rhythms: time (s) and name of every rhythm change, ascending.
        activity: spans of fibrillation and flutter.
    """

    def __init__(self, patient: SimulatedPatient, duration_s: float, rng: Generator) -> None:
        self.patient = patient
        self.rng = rng
        self.last = -0.3
        self.node = -0.3 + rng.uniform(0, 0.3)
        self.beats: list[tuple[float, str]] = []
        self.waves: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        self.rhythms: list[tuple[float, str]] = []
        self.activity: list[Activity] = []
        self._pending: str | None = None
        num = int(duration_s * _STATE_HZ) + 80
        self._variability = rr_variability(patient, num, _STATE_HZ, rng)
        self._irritability = np.exp(0.8 * slow_process(rng, num, _STATE_HZ, 0.02) - 0.32)
        block = slow_process(rng, num, _STATE_HZ, 0.02)
        self._blocked = block <= np.quantile(block, patient.block_share)

    def _now(self, at: float) -> int:
        return min(max(int(at * _STATE_HZ), 0), len(self._variability) - 1)

    def begin(self, rhythm: str, at: float | None = None) -> None:
        """Change the rhythm, at a time or with the next beat."""
        self._pending = rhythm
        if at is not None:
            self._mark(at)

    def _mark(self, at: float) -> None:
        if self._pending and (not self.rhythms or self.rhythms[-1][1] != self._pending):
            self.rhythms.append((max(at, 0.0) if self.rhythms else 0.0, self._pending))
        self._pending = None

    def atria(self, at: float, template: str = "P") -> None:
        """Let the atria fire: a P wave centred at `at`."""
        self.waves[template].append((at, self.rng.normal(1, 0.06), 1.0))

    def ventricles(self, at: float, symbol: str, *parts: tuple[str, float, float]) -> None:
        """Let the ventricles fire at `at`; `parts` are (template, time, weight), several where activations fuse."""
        interval = np.clip(at - self.last, 0.3, 1.5)
        stretch = float(np.clip(np.sqrt(0.6 * self.patient.rr_s + 0.4 * interval), 0.62, 1.2))
        size = self.rng.normal(1, 0.03)
        for template, time, weight in parts:
            self.waves[template].append((time, size * weight, stretch))
        self._mark(max(at - 0.3, 0.5 * (at + self.last)))
        self.beats.append((at, symbol))
        self.last = at

    def sinus_interval(self, at: float) -> float:
        """The interval from the node's impulse at `at` to its next."""
        return float(max(0.36, self.patient.rr_s + self._variability[self._now(at)] + self.rng.normal(0, 0.004)))

    def conduction(self, at: float) -> str:
        """The template of a beat conducted at `at`: the patient's block, where it holds then."""
        return self.patient.conduction if self._blocked[self._now(at)] else "N"

    def conduct(self, due: float) -> None:
        """A sinus beat: P wave, then the ventricles at `due`."""
        self.atria(due - self.patient.pr_s)
        template = self.conduction(due)
        self.ventricles(due, template, (template, due, 1.0))
        self.node = due

    def sinus(self, until: float, pattern: int = 0) -> None:
        """Sinus rhythm with this patient's ectopy; every `pattern`-th beat is ventricular where that is not 0."""
        since_ectopic = 0
        while (due := self.node + (interval := self.sinus_interval(self.node))) < until:
            chance = self.rng.random() / self._irritability[self._now(due)]
            since_ectopic += 1
            ventricular = since_ectopic == pattern if pattern else since_ectopic > 1 and chance < self.patient.pvc
            if due < self.last + _REFRACTORY_S:
                self.atria(due - self.patient.pr_s)
                self.node = due
            elif ventricular:
                since_ectopic = 0
                self.premature_ventricular(due, interval, alone=pattern > 0)
            elif not pattern and 0 <= chance - self.patient.pvc < self.patient.pac:
                self.premature_atrial(interval)
            else:
                self.conduct(due)

    def focus(self) -> int:
        """Draw the ventricular focus of the next ectopic beat."""
        return int(self.rng.random() < self.patient.second_focus)

    def premature_ventricular(self, due: float, interval: float, *, alone: bool = False) -> None:
        """A ventricular ectopic beat before the sinus beat `due`; unless `alone`, it may fuse or bring a second."""
        if not alone and self.rng.random() < self.patient.fusion:
            self._fuse(due)
            return
        focus = self.focus()
        coupling = self.patient.coupling_s[focus] + self.rng.normal(0, 0.02)
        at = self.last + max(_REFRACTORY_S, min(coupling, 0.92 * interval))
        self.ventricles(at, "V", (f"V{focus}", at, 1.0))
        if not alone and self.rng.random() < self.patient.couplet:
            focus = self.focus()
            at = self.last + self.rng.uniform(0.34, 0.55)
            self.ventricles(at, "V", (f"V{focus}", at, 1.0))
        if self.rng.random() < self.patient.retrograde:  # the beat runs back up and resets the node
            self.atria(self.last + 0.16, "J")
            self.node = self.last + 0.12
            return
        self.node = due
        if due - self.last > 0.5 and self.rng.random() < 0.1:  # interpolated
            self.conduct(due + 0.03)
            return
        # the node fires on, and its impulses find the ventricles refractory
        self.atria(due - self.patient.pr_s)
        while (due := due + self.sinus_interval(due)) < self.last + 0.25:
            self.atria(due - self.patient.pr_s)
            self.node = due

    def _fuse(self, due: float) -> None:
        """A late ventricular beat: the sinus impulse activates the rest, more of it the later the ectopic one is."""
        early = self.rng.uniform(-0.035, 0.075)
        share = float(np.clip(0.35 + early / 0.1, 0.05, 0.98))
        symbol = "F" if 0.2 <= share <= 0.8 else "V" if share > 0.8 else self.conduction(due)
        at = due - share * max(early, 0.0)
        self.atria(due - self.patient.pr_s)
        self.ventricles(at, symbol, (f"V{self.focus()}", due - early, share), (self.conduction(due), due, 1 - share))
        self.node = due

    def premature_atrial(self, interval: float) -> None:
        """An atrial (or junctional) ectopic beat: it resets the node, and may be blocked or conducted aberrantly."""
        patient = self.patient
        early = float(np.clip(self.rng.normal(patient.prematurity, 0.06), 0.42, 0.96))
        atrial = self.node - patient.pr_s + early * interval
        at = max(atrial + patient.pr_s * (1 + 1.2 * max(0.0, 0.75 - early)), self.last + 0.25)
        self.node = atrial + patient.pr_s + self.rng.uniform(0.0, 0.2) * interval
        junctional = self.rng.random() < patient.junctional
        self.atria(at + 0.09 if junctional else atrial, "J" if junctional else "A")
        if at - self.last < _REFRACTORY_S:
            return
        aberrant = self.aberration(early)
        symbol = "J" if junctional else "a" if aberrant > 0.45 else "A"
        self.ventricles(at, symbol, *self.mixed(at, aberrant))

    def aberration(self, early: float) -> float:
        """How far a beat of this prematurity (0 to 1) is conducted with right bundle branch block, 0 to 1."""
        readiness = self.patient.aberrancy / (1 + np.exp(18 * (early - 0.64)))
        return float(self.rng.uniform(0.3, 1.0)) if self.rng.random() < readiness else 0.0

    def mixed(self, at: float, aberrant: float) -> list[tuple[str, float, float]]:
        """The parts of a conducted beat with some aberration."""
        template = self.conduction(at)
        if not aberrant or template != "N":
            return [(template, at, 1.0)]
        return [("N", at, 1 - aberrant), ("R", at, aberrant)]


def rr_variability(patient: SimulatedPatient, num: int, rate_hz: float, rng: Generator) -> NDArray[np.float64]:
    """Deviation of the sinus RR interval from its mean, in seconds; `[num]`.

    Two Gaussian spectral peaks, at 0.1 Hz and at the breathing rate, as in McSharry et al. 2003, and a slow
    drift (activity, sleep) of the same size.
    """
    low = peaked_process(rng, num, rate_hz, _LF_HZ, 0.01)
    high = peaked_process(rng, num, rate_hz, patient.breath_hz, 0.012)
    drift = slow_process(rng, num, rate_hz, 0.03)
    share = patient.lf_hf / (1 + patient.lf_hf)
    fast = np.sqrt(share) * low + np.sqrt(1 - share) * high
    return np.asarray(patient.hrv_s * (fast + drift) / np.sqrt(2))
