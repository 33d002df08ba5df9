"""Simulated patients, drawn from profiles that are typical of a Holter clinic.

Profiles are assigned from shuffled decks of twenty, so that even a small database contains rare profiles. All other
properties of a patient (age, rates, morphology, burdens) are drawn from wide, overlapping distributions. A patient
depends only on the seed and its index.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heartlm.simulate.morphology import draw_templates
from heartlm.simulate.randomness import log_uniform, stream
from heartlm.storage.reading import read_json

Range = tuple[float, float]


@dataclass(frozen=True)
class Episode:
    """An episodic rhythm: mean time between episodes and the range of their lengths, in seconds."""

    rhythm: str
    gap_s: float
    length_s: Range


@dataclass(frozen=True)
class Profile:
    """Common properties of patients with one diagnosis.

    Attributes:
        diagnosis: diagnosis in the header.
        share: number of patients in a deck of twenty.
        age: range of the age in years.
        rate_bpm: range of the mean sinus (or paced, or ventricular) rate in beats per minute.
        pvc: range of the probability of a premature ventricular beat.
        pac: range of the probability of a premature atrial beat.
        background: rhythm outside episodes.
        episodes: episodic rhythms.
        conduction: bundle branch blocks to draw from; N is none.
    """

    diagnosis: str
    share: int
    age: Range = (45, 85)
    rate_bpm: Range = (55, 95)
    pvc: Range = (0.001, 0.02)
    pac: Range = (0.001, 0.015)
    background: str = "N"
    episodes: tuple[Episode, ...] = ()
    conduction: str = "N"


PROFILES = read_json(Path(__file__).with_name("profiles.json"), dict[str, Profile])
"""By name; their order is that of the deck."""


class SimulatedPatient:
    """One simulated patient, drawn from the seed of the database and an index; times in seconds, probabilities a beat.

    Attributes:
        profile: key into `PROFILES`.
        age: in years.
        sex: `"F"` or `"M"`.
        rr_s: mean RR interval of the sinus node (or of the pacemaker).
        hrv_s: standard deviation of sinus RR intervals.
        breath_hz: breathing rate, where the high-frequency peak of the RR spectrum lies.
        lf_hf: power of the 0.1 Hz peak over that of the breathing peak.
        pr_s: time from the P wave's centre to the R peak.
        conduction: ventricular template of conducted beats; also their WFDB code.
        block_share: fraction of the time with `conduction`; conduction is normal otherwise.
        pvc, pac: probability of a premature ventricular and atrial beat.
        couplet: probability that another premature ventricular beat follows one.
        fusion: fraction of ventricular beats that are late and fuse with the conducted beat.
        retrograde: probability that a ventricular beat resets the sinus node, so that no compensatory pause follows.
        coupling_s: interval from the previous beat, one per ventricular focus.
        second_focus: fraction of ventricular beats from the second focus.
        prematurity: mean PP interval of a premature atrial beat as a fraction of the sinus interval.
        aberrancy: tendency of early atrial beats to aberrant conduction, 0 to 1.
        junctional: fraction of premature supraventricular beats from the junction.
        af_rr_s, flutter_cycle_s, vt_rr_s, svt_rr_s: mean intervals of the tachyarrhythmias.
        f_wave_mv: size of fibrillatory and flutter waves.
        mains_hz: mains frequency, 50 or 60 Hz.
        noise: factor of all noise of this patient.
        templates: beat morphologies, see `draw_templates`.
    """

    def __init__(self, seed: int, index: int) -> None:
        self.profile = profile_of(seed, index)
        shared = PROFILES[self.profile]
        rng = stream(seed, index, 0)
        self.age = int(rng.integers(int(shared.age[0]), int(shared.age[1]) + 1))
        self.rr_s = 60 / rng.uniform(*shared.rate_bpm)
        self.sex = str(rng.choice(["F", "M"]))
        self.hrv_s = self.rr_s * log_uniform(rng, 0.02, 0.085) * (1.25 - self.age / 160)
        self.breath_hz = rng.uniform(0.2, 0.32)
        self.lf_hf = log_uniform(rng, 0.4, 2.0)
        self.pr_s = rng.uniform(0.13, 0.19)
        self.conduction = str(rng.choice(list(shared.conduction)))
        self.block_share = float(rng.choice([1.0, 0.85, 0.5]))
        self.pvc = log_uniform(rng, *shared.pvc)
        self.pac = log_uniform(rng, *shared.pac)
        self.couplet = log_uniform(rng, 0.01, 0.2)
        self.fusion = log_uniform(rng, 0.08, 0.9)
        self.retrograde = rng.uniform(0, 0.2)
        self.coupling_s = (rng.uniform(0.42, 0.74), rng.uniform(0.4, 0.7))
        self.second_focus = float(rng.choice([0.0, 0.05, 0.3]))
        self.prematurity = rng.uniform(0.6, 0.88)
        self.aberrancy = rng.uniform(0.05, 0.95)
        self.junctional = float(rng.choice([0.0, 0.0, 0.05, 0.3]))
        self.af_rr_s = rng.uniform(0.48, 0.9)
        self.flutter_cycle_s = rng.uniform(0.19, 0.245)
        self.vt_rr_s = rng.uniform(0.3, 0.48)
        self.svt_rr_s = rng.uniform(0.33, 0.46)
        self.f_wave_mv = log_uniform(rng, 0.05, 0.2)
        self.mains_hz = float(rng.choice([50.0, 60.0]))
        self.noise = log_uniform(rng, 0.4, 2.0)
        self.templates = draw_templates(rng)


def profile_of(seed: int, index: int) -> str:
    """Return the profile of a patient: a card of the shuffled deck that its block of twenty is dealt from."""
    deck = [name for name, profile in PROFILES.items() for _ in range(profile.share)]
    block, card = divmod(index, len(deck))
    order = stream(seed, 2**31 + block).permutation(len(deck))
    return str(deck[order[card]])


def num_recordings(seed: int, index: int) -> int:
    """Return how many recordings a patient has: two for one in ten, else one."""
    return 1 + int(stream(seed, index, 1).random() < 0.1)


_DEAL = ("train", "test", "validation", "train", "train")


def draw_splits(seed: int, num_patients: int) -> list[str]:
    """Return the split of every patient: about 60 % train, the rest test and validation.

    Each profile is dealt out by itself, so that every split holds all common ones; profiles with a single patient are
    dealt together. All of it follows from the seed and the number of patients.
    """
    profiles = np.array([profile_of(seed, index) for index in range(num_patients)])
    splits = [""] * num_patients
    groups = [np.flatnonzero(profiles == name).tolist() for name in PROFILES]
    single = [index for members in groups if len(members) == 1 for index in members]
    for members in (*(members for members in groups if len(members) > 1), single):
        for place, index in enumerate(members):
            splits[index] = _DEAL[place % len(_DEAL)]
    return splits
