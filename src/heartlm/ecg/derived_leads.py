"""Limb leads that follow from I and II, which carts do not store (Einthoven 1908; Goldberger 1942).

Both leads are of the same three electrodes, so the other four are sums of them, sample by sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import ReadSamples, Recording

OF_LIMBS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"III": (-1.0, 1.0), "aVR": (-0.5, -0.5), "aVL": (1.0, -0.5), "aVF": (-0.5, 1.0)}
)
"""Parts of I and II in each lead that follows from them."""

STORED = ("I", "II", "V1", "V2", "V3", "V4", "V5", "V6")
"""Leads of a resting ECG of which the others follow."""


def derive_leads(recording: Recording) -> Recording:
    """Return the recording with those of III, aVR, aVL and aVF that it lacks, computed from I and II.

    They come after its own leads, and a comment names them. A recording without I and II in millivolts, or without a
    signal, is returned as it is.
    """
    places = {name.lower(): place for place, name in enumerate(recording.lead_names)}
    first, second = places.get("i"), places.get("ii")
    missing = [name for name in OF_LIMBS if name.lower() not in places]
    if recording.samples is None or first is None or second is None or not missing:
        return recording
    if any(recording.units[place] != "mV" for place in (first, second)):
        return recording
    weights = np.array([OF_LIMBS[name] for name in missing], np.float32)
    return replace(
        recording,
        lead_names=(*recording.lead_names, *missing),
        units=(*recording.units, *["mV"] * len(missing)),
        comments=(*recording.comments, f"derived from I and II: {', '.join(missing)}"),
        samples=partial(_with_derived, recording.samples, (first, second), weights, recording.num_leads),
        steps=(*recording.steps, *[None] * len(missing)) if recording.steps else (),
    )


def _with_derived(
    samples: ReadSamples,
    sources: tuple[int, int],
    weights: NDArray[np.float32],
    num_stored: int,
    start: int,
    stop: int,
    leads: Sequence[int],
) -> NDArray[np.float32]:
    if all(lead < num_stored for lead in leads):
        return samples(start, stop, leads)
    needed = sorted({lead for lead in leads if lead < num_stored} | set(sources))
    stored = samples(start, stop, needed)
    derived = weights @ stored[[needed.index(source) for source in sources]]
    return np.stack([stored[needed.index(lead)] if lead < num_stored else derived[lead - num_stored] for lead in leads])
