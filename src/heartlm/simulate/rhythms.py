"""Rhythms of the simulated heart: each function simulates one rhythm until a given time.

`simulate_rhythm` combines them: the patient's background rhythm, interrupted by episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.random import Generator

from heartlm.simulate.heart import Activity, Heart
from heartlm.simulate.patients import PROFILES, SimulatedPatient

_SLOWEST_AF_RR_S = 2.2
_FASTEST_AF_RR_S = 0.32


def simulate_rhythm(patient: SimulatedPatient, duration_s: float, rng: Generator, rhythm: str | None = None) -> Heart:
    """Simulate a patient's heart for `duration_s` seconds, by default in the rhythms of its profile."""
    heart, profile = Heart(patient, duration_s, rng), PROFILES[patient.profile]
    if rhythm is not None:
        heart.begin(rhythm.partition(" ")[0])
        RHYTHM_FUNCTIONS[rhythm](heart, duration_s)
        return heart
    # (start, stop, rhythm) of the episodes, which do not overlap; a profile's first kind has precedence
    episodes: list[tuple[float, float, str]] = []
    for kind in profile.episodes:
        start = rng.uniform(0.08, 0.6) * duration_s
        while (stop := start + min(rng.uniform(*kind.length_s), 0.35 * duration_s)) < duration_s - 2:
            if all(stop + 4 < other[0] or other[1] + 4 < start for other in episodes):
                episodes.append((start, stop, kind.rhythm))
            start = stop + rng.exponential(kind.gap_s)
    changes = list[tuple[str, float]]()
    for start, stop, rhythm in sorted(episodes):
        changes += [(profile.background, start), (rhythm, stop)]
    for rhythm, until in (*changes, (profile.background, duration_s)):
        heart.begin(rhythm)
        RHYTHM_FUNCTIONS[rhythm](heart, until)
    return heart


def _atrial_fibrillation(heart: Heart, until: float) -> None:
    """Simulate irregular conduction with occasional ventricular beats, and f waves instead of P waves."""
    patient, rng = heart.patient, heart.rng
    start = heart.last + 0.15
    while True:
        spread = patient.af_rr_s - _FASTEST_AF_RR_S
        interval = min(_FASTEST_AF_RR_S + rng.gamma(2.6, spread / 2.6), _SLOWEST_AF_RR_S)
        at = heart.last + interval
        if at >= until:
            break
        if rng.random() < patient.pvc:
            focus = heart.focus()
            at = heart.last + max(_FASTEST_AF_RR_S, patient.coupling_s[focus] + rng.normal(0, 0.03))
            heart.ventricles(at, "V", (f"V{focus}", at, 1.0))
        else:
            aberrant = 0.8 * heart.aberration(min(interval / patient.af_rr_s, 1.0))
            heart.ventricles(at, heart.conduction(at), *heart.mixed(at, aberrant))
    _leave_atrial_tachyarrhythmia(heart, "AFIB", start)


def _flutter(heart: Heart, until: float) -> None:
    """Simulate a regular atrial circuit; every second to fourth cycle is conducted."""
    patient, rng = heart.patient, heart.rng
    start = heart.last + 0.15
    ratio, atrial_round = 2, 2
    while (at := start + atrial_round * patient.flutter_cycle_s + rng.normal(0, 0.006)) < until:
        template = heart.conduction(at)
        heart.ventricles(at, template, (template, at, 1.0))
        if rng.random() < 0.15:
            ratio = int(rng.choice([2, 3, 4], p=[0.45, 0.15, 0.4]))
        atrial_round += ratio
    _leave_atrial_tachyarrhythmia(heart, "AFL", start)


def _leave_atrial_tachyarrhythmia(heart: Heart, rhythm: str, start: float) -> None:
    """Record the f waves of the episode; the overdriven sinus node recovers after a short delay."""
    heart.activity.append(Activity(rhythm, start, heart.last + 0.3))
    heart.node = heart.last + heart.rng.uniform(0.1, 0.5)


def _supraventricular_tachycardia(heart: Heart, until: float) -> None:
    patient, rng = heart.patient, heart.rng
    aberrant = heart.aberration(0.6)
    until = max(until, heart.last + 4 * patient.svt_rr_s)
    while (at := heart.last + patient.svt_rr_s * rng.normal(1, 0.02)) < until:
        heart.atria(at - 0.8 * patient.pr_s, "A")
        heart.ventricles(at, "a" if aberrant > 0.45 else "A", *heart.mixed(at, aberrant))
    heart.node = heart.last + rng.uniform(0.0, 0.3)


def _ventricular_tachycardia(heart: Heart, until: float) -> None:
    """Simulate a rapid ventricular focus; the atria continue at their own rate."""
    patient, rng = heart.patient, heart.rng
    focus = heart.focus()
    until = max(until, heart.last + 4 * patient.vt_rr_s)
    while (at := heart.last + patient.vt_rr_s * rng.normal(1, 0.025)) < until:
        heart.ventricles(at, "V", (f"V{focus}", at, 1.0))
        while (due := heart.node + heart.sinus_interval(heart.node)) < at + 0.2:
            heart.atria(due - patient.pr_s)
            heart.node = due


def _ventricular_fibrillation(heart: Heart, until: float) -> None:
    """Simulate a short tachycardia that degenerates into fibrillation; a shock ends it and a pause follows."""
    rng = heart.rng
    heart.begin("VT")
    _ventricular_tachycardia(heart, heart.last + min(rng.uniform(1.5, 5), 0.3 * (until - heart.last)))
    start = heart.last + 0.25
    until = max(until, start + 2)
    heart.begin("VFIB", start)
    heart.activity.append(Activity("VFIB", start, until))
    heart.begin("ASYS", until)
    heart.last = until
    heart.node = until + rng.uniform(0.8, 2.5)


def _pause(heart: Heart, until: float) -> None:
    """Simulate sinus arrest; a junctional or ventricular escape beat may end it."""
    start = heart.last
    until = max(until, start + 1.5)
    if until - start >= 3:
        heart.begin("ASYS", start + 0.5)
    else:
        heart.begin(PROFILES[heart.patient.profile].background)
    escape = heart.rng.choice(["j", "E", "none"], p=[0.4, 0.2, 0.4])
    heart.node = until
    if escape == "none":
        return
    heart.begin(PROFILES[heart.patient.profile].background)
    template = "V1" if escape == "E" else heart.conduction(until)
    heart.ventricles(until, str(escape), (template, until, 1.0))


def _junctional(heart: Heart, until: float) -> None:
    rng = heart.rng
    interval = rng.uniform(1.0, 1.4)
    while (at := heart.last + interval * rng.normal(1, 0.02)) < until:
        heart.atria(at + 0.1, "J")
        template = heart.conduction(at)
        heart.ventricles(at, "j", (template, at, 1.0))
    heart.node = heart.last


def _wenckebach(heart: Heart, until: float) -> None:
    """Simulate second-degree block: the PR interval grows until one P wave is not conducted."""
    patient = heart.patient
    group, place = int(heart.rng.integers(3, 6)), 0
    while (due := heart.node + 0.85 * heart.sinus_interval(heart.node)) < until:
        place = (place + 1) % group
        heart.node = due
        heart.atria(due - patient.pr_s)
        if place:
            at = due + 0.25 * (1 - 0.6**place)
            template = heart.conduction(at)
            heart.ventricles(at, template, (template, at, 1.0))


def _mobitz(heart: Heart, until: float, conducted: int) -> None:
    """Simulate second-degree block: after some conducted beats at one PR interval a P wave is not conducted."""
    patient, place, ratio = heart.patient, 0, conducted
    while (due := heart.node + (0.6 if conducted == 1 else 0.85) * heart.sinus_interval(heart.node)) < until:
        if place < ratio:
            heart.conduct(due)
            place += 1
            continue
        heart.atria(due - patient.pr_s)
        heart.node, place = due, 0
        ratio = conducted if conducted == 1 else int(heart.rng.integers(conducted, conducted + 3))


def _complete_block(heart: Heart, until: float) -> None:
    """Simulate third-degree block: an escape rhythm of the junction or the ventricles, independent of P waves."""
    escape = heart.rng.uniform(1.2, 1.8)
    template = "V1" if heart.rng.random() < 0.4 else "N"
    while (at := heart.last + escape * heart.rng.normal(1, 0.015)) < until:
        heart.ventricles(at, "E" if template == "V1" else "j", (template, at, 1.0))
        while (due := heart.node + 0.8 * heart.sinus_interval(heart.node)) < at + 0.3:
            heart.atria(due - heart.patient.pr_s)
            heart.node = due


def _paced(heart: Heart, until: float) -> None:
    """Simulate a pacemaker that fires if no beat occurs within its escape interval; the atria are independent."""
    patient, rng = heart.patient, heart.rng
    own_share = rng.uniform(0.0, 0.12)
    while (at := heart.last + patient.rr_s + rng.normal(0, 0.001)) < until:
        chance = rng.random()
        if chance < patient.pvc:
            at = heart.last + patient.coupling_s[0] + rng.normal(0, 0.02)
            heart.ventricles(at, "V", ("V0", at, 1.0))
        elif chance < patient.pvc + own_share:
            _intrinsic_beat(heart, at)
        else:
            heart.ventricles(at, "/", ("/", at, 1.0), ("spike", at, 1.0))
        while (due := heart.node + 1.17 * heart.sinus_interval(heart.node)) < heart.last + 0.3:
            heart.atria(due - patient.pr_s)
            heart.node = due


def _intrinsic_beat(heart: Heart, paced_at: float) -> None:
    """Add an intrinsic beat before the stimulus due at `paced_at`, or a fusion beat (code f) if it is late."""
    early = heart.rng.uniform(-0.03, 0.16)
    share = float(np.clip(0.7 - early / 0.1, 0.0, 0.9))
    at = paced_at - early
    heart.atria(at - heart.patient.pr_s)
    heart.node = at
    if share == 0:
        heart.ventricles(at, "N", ("N", at, 1.0))
    else:
        heart.ventricles(at, "f", ("/", paced_at, share), ("N", at, 1 - share), ("spike", paced_at, 1.0))


RHYTHM_FUNCTIONS: dict[str, Callable[[Heart, float], None]] = {
    "N": Heart.sinus,
    "B": partial(Heart.sinus, pattern=2),
    "T": partial(Heart.sinus, pattern=3),
    "AFIB": _atrial_fibrillation,
    "AFL": _flutter,
    "SVTA": _supraventricular_tachycardia,
    "VT": _ventricular_tachycardia,
    "VFIB": _ventricular_fibrillation,
    "ASYS": _pause,
    "NOD": _junctional,
    "BII": _wenckebach,
    "BII Mobitz": partial(_mobitz, conducted=2),
    "BII 2:1": partial(_mobitz, conducted=1),
    "BIII": _complete_block,
    "P": _paced,
}
"""Functions by rhythm, its WFDB code first; each simulates the heart until about the given time."""
