"""Morphology of simulated heartbeats: sums of Gaussian waves of a rotating dipole, projected on the leads.

A wave is a Gaussian in time, as in the dynamical model of McSharry et al. 2003 (IEEE Trans. Biomed. Eng. 50:289),
with an amplitude that is a vector in space (Sameni et al. 2007, EURASIP J. Adv. Signal Process. 043407), so that every
lead is a projection of the same beat. A `Template` is the list of waves of one kind of beat of one patient:
atrial (P) and ventricular (QRS and T) templates are separate, because ectopic beats, blocks and dissociation take
them apart. Axes: x to the patient's left, y to the feet, z to the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from heartlm.simulate.config import LEAD_VECTORS
from heartlm.simulate.randomness import log_uniform

Floats = NDArray[np.float64]
Wave = tuple[float, float, tuple[float, float, float]]
"""Offset from the beat's time (s), width as standard deviation (s), dipole (mV)."""

REPOLARISATION_S = 0.17
"""Time in seconds after the R peak from which waves are repolarisation: their timing depends on the RR interval."""


@dataclass(frozen=True)
class Template:
    """The waves of one kind of beat.

    Attributes:
        offset_s: centre of each wave after the beat's time, at an RR interval of one second; `[num_waves]`.
        width_s: standard deviation of each Gaussian in seconds; `[num_waves]`.
        dipole_mv: amplitude vector of each wave in mV; `[num_waves, 3]`.
    """

    offset_s: Floats
    width_s: Floats
    dipole_mv: Floats


def lead_vectors(leads: Sequence[str], rng: Generator) -> Floats:
    """Draw the directions and gains of `leads` on one patient, as electrode positions vary; `[num_leads, 3]`."""
    vectors = np.array([LEAD_VECTORS[lead] for lead in leads])
    gain = np.exp(rng.normal(0, 0.12, (len(leads), 1)))
    return np.asarray(gain * (vectors + rng.normal(0, 0.1, vectors.shape)))


def draw_templates(rng: Generator) -> dict[str, Template]:
    """Draw one patient's templates.

    Keys: `P` sinus, `A` ectopic and `J` retrograde P wave; `N`, `L`, `R` QRS-T as conducted normally and with left and
    right bundle branch block; `V0`, `V1` of two ventricular foci; `/` paced from the right ventricle, `spike` its
    stimulus.
    """
    size = log_uniform(rng, 0.75, 2.1)
    turn = _rotation(frontal=rng.normal(-0.05, 0.35), horizontal=rng.normal(0, 0.25))
    t_size = log_uniform(rng, 0.45, 1.3) * rng.choice([1.0, 1.0, 1.0, 1.0, 1.0, -0.4])
    st_mv = rng.normal(0, 0.03)
    normal: list[Wave] = [
        (-0.028, 0.0095, (-0.16, -0.1, 0.26)),
        (0.0, 0.0125, (0.8, 1.0, -0.45)),
        (0.026, 0.0125, (-0.12, -0.22, -0.42)),
        (0.10, 0.045, (st_mv, st_mv, 0.0)),
        *_t_wave((0.22, 0.24, 0.16), 0.29, t_size),
    ]
    width = rng.uniform(0.8, 1.15)
    left: list[Wave] = [
        (-0.03 * width, 0.021, (0.6, 0.5, -0.5)),
        (0.028 * width, 0.022, (0.75, 0.25, -0.75)),
        (0.12, 0.045, (-0.06, -0.03, 0.12)),
        *_t_wave((-0.2, -0.08, 0.25), 0.32, log_uniform(rng, 0.6, 1.4)),
    ]
    terminal = log_uniform(rng, 0.6, 1.4)
    right: list[Wave] = [
        (-0.028, 0.0095, (-0.16, -0.1, 0.26)),
        (0.0, 0.0125, (0.75, 0.9, -0.2)),
        (0.052, 0.021, (-0.42 * terminal, -0.16 * terminal, 0.72 * terminal)),
        *_t_wave((0.22, 0.2, -0.12), 0.3, t_size),
    ]
    p_size = log_uniform(rng, 0.6, 1.5)
    ectopic_p = rng.normal(0, 1, 3) * (0.06, 0.09, 0.04) + (0.02, 0.0, 0.04)
    templates = {
        "P": _vary(rng, _p_wave((0.07, 0.12, 0.03)), p_size, _rotation(rng.normal(0, 0.2), 0)),
        "A": _vary(rng, _p_wave(tuple(ectopic_p)), p_size, np.eye(3)),
        "J": _vary(rng, _p_wave((0.02, -0.11, 0.02)), p_size, np.eye(3)),
        "N": _vary(rng, normal, size, turn),
        "L": _vary(rng, left, size, turn),
        "R": _vary(rng, right, size, turn),
        "/": _vary(rng, _wide_qrs(np.array([0.5, -0.95, -0.4]), 1.1, 0.05, 0.45), log_uniform(rng, 0.7, 1.5), turn),
        "spike": _vary(rng, [(-0.055, 0.0016, (0.3, -0.9, -0.4))], log_uniform(rng, 0.25, 3.0), np.eye(3)),
    }
    for focus in ("V0", "V1"):
        focus_size = log_uniform(rng, 0.8, 2.2) * size**0.5
        direction = _FOCI[rng.integers(len(_FOCI))] + rng.normal(0, 0.25, 3)
        direction /= np.linalg.norm(direction)
        width = log_uniform(rng, 0.65, 1.3)
        waves = _wide_qrs(1.1 * direction, width, rng.uniform(0.025, 0.055), log_uniform(rng, 0.08, 0.6))
        templates[focus] = _vary(rng, waves, focus_size, np.eye(3))
    return templates


def _t_wave(dipole: tuple[float, float, float], peak_s: float, size: float) -> list[Wave]:
    """Two Gaussians: a T wave rises slower than it falls."""
    x, y, z = (size * value for value in dipole)
    return [(peak_s - 0.035, 0.05, (0.6 * x, 0.6 * y, 0.6 * z)), (peak_s + 0.005, 0.031, (0.6 * x, 0.6 * y, 0.6 * z))]


def _p_wave(dipole: tuple[float, ...]) -> list[Wave]:
    """The right atrium first (more to the front), then the left, around the time zero."""
    x, y, z = dipole
    return [(-0.016, 0.017, (0.5 * x, 0.7 * y, z + 0.03)), (0.016, 0.019, (0.9 * x, 0.7 * y, z - 0.05))]


# Main QRS direction of ectopy from the right ventricle's body and outflow tract, the left ventricle's anterior and
# inferior fascicle regions, and the septum. Those of the right ventricle resemble left bundle branch block, and the
# reverse.
_FOCI = np.array([(0.65, -0.5, -0.5), (0.35, 0.9, -0.4), (-0.5, 0.6, 0.7), (-0.55, -0.55, 0.6), (0.5, 0.7, 0.5)])


def _wide_qrs(dipole: Floats, width: float, notch_s: float, t_share: float) -> list[Wave]:
    """Slow activation from one place: two broad waves, a late opposing one, and a T wave against the QRS."""
    x, y, z = dipole
    return [
        (-0.5 * notch_s * width, 0.02 * width, (0.75 * x, 0.6 * y, 0.9 * z)),
        (0.5 * notch_s * width, 0.022 * width, (0.6 * x, 0.85 * y, 0.55 * z)),
        (0.085 * width, 0.02 * width, (-0.22 * y, -0.25 * x, -0.3 * z)),
        *_t_wave((-t_share * x, -t_share * y, -t_share * z), 0.31, 1.0),
    ]


def _vary(rng: Generator, waves: Sequence[Wave], size: float, turn: Floats) -> Template:
    """Make a template of `waves`, each a little different from anyone else's."""
    dipole = size * np.array([wave[2] for wave in waves]) @ turn.T
    num = len(waves)
    amplitude = np.exp(rng.normal(0, 0.15, (num, 1)))
    scatter = 0.12 * np.linalg.norm(dipole, axis=1, keepdims=True) * rng.normal(size=(num, 3))
    return Template(
        offset_s=np.array([wave[0] for wave in waves]) * np.exp(rng.normal(0, 0.06, num)),
        width_s=np.array([wave[1] for wave in waves]) * np.exp(rng.normal(0, 0.08, num)),
        dipole_mv=amplitude * dipole + scatter,
    )


def _rotation(frontal: float, horizontal: float) -> Floats:
    """Turn the axis in the frontal (x to y) and the horizontal (x to z) plane, by radians."""
    cos_f, sin_f, cos_h, sin_h = np.cos(frontal), np.sin(frontal), np.cos(horizontal), np.sin(horizontal)
    in_front = np.array([[cos_f, -sin_f, 0], [sin_f, cos_f, 0], [0, 0, 1]])
    across = np.array([[cos_h, 0, -sin_h], [0, 1, 0], [sin_h, 0, cos_h]])
    return np.asarray(in_front @ across)
