"""The leads tokenizer: one token every 10 ms, with one facet for each lead.

A facet is the voltage of the lead that looks at the heart from that side, as the millivolt tokenizer encodes it, or "no
signal". So a recording of one to fifteen leads is one sentence, whatever their order. A lead of another name, such as
that of a patch, has a place without a direction. A further facet marks the grid points of the R peaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.leads import canonical_lead
from heartlm.tokenizers.base import Facet, Lead, Tokenizer, Tokens
from heartlm.tokenizers.millivolts import NO_SIGNAL, NUM_LEVELS, dequantize, grid, voltage_codes
from heartlm.tokenizers.sample import GRID_HZ, classes_on_grid

Floats = NDArray[np.float32]

PLACES: tuple[str, ...] = (
    *("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6", "X", "Y", "Z"),
    *("other 1", "other 2", "other 3"),
)
"""Places of leads: the twelve of the standard, those of Frank, and three of unknown direction."""
NUM_KNOWN = 15
"""Number of places with a direction."""

_ALIASES = {
    **{"mli": "i", "d1": "i", "mlii": "ii", "ml2": "ii", "d2": "ii", "mliii": "iii", "d3": "iii"},
    **{"mcl1": "v1", "mv1": "v1", "mv2": "v2", "cm2": "v2", "cm4": "v4", "cm5": "v5", "cc5": "v5", "mv5": "v5"},
    **{"mcl6": "v6", "vx": "x", "vy": "y", "vz": "z"},
}
"""Leads of monitors and Holter recorders, each with the lead of the standard that looks from about the same side."""


def places_of(names: Sequence[str]) -> dict[int, int]:
    """Return the place of each lead by its index; leads for which no place is left are missing."""
    order = {name.lower(): place for place, name in enumerate(PLACES)}
    found: dict[int, int] = {}
    for lead, name in enumerate(names):
        canonical = canonical_lead(name)
        place = order.get(_ALIASES.get(canonical, canonical))
        if place is not None and place < NUM_KNOWN and place not in found.values():
            found[lead] = place
    free = iter(range(NUM_KNOWN, len(PLACES)))
    for lead in range(len(names)):
        if lead not in found and (place := next(free, None)) is not None:
            found[lead] = place
    return found


@dataclass
class LeadsTokenizer(Tokenizer):
    """Voltages of all leads at 100 Hz. The levels are fixed and need no fitting."""

    kind = "leads"
    needs_fitting: ClassVar[bool] = False
    joins_leads: ClassVar[bool] = True

    @property
    def facets(self) -> tuple[Facet, ...]:
        """A voltage for each place, and whether an R peak is there."""
        return (*(Facet(place, NUM_LEVELS) for place in PLACES), Facet("beat", 2))

    def encode(self, lead: Lead) -> Tokens:
        """Encode all samples of the leads `signal_mv` `[num_leads, num_samples]`, whose names `lead` has."""
        rate_hz, beats = lead.rate_hz, lead.annotations
        signals = np.atleast_2d(lead.signal_mv)
        num_samples = signals.shape[1]
        position, sample = grid(num_samples, rate_hz)
        num_points = len(sample)
        codes = np.full((num_points, len(PLACES) + 1), NO_SIGNAL, np.uint16)
        for index, place in places_of(lead.names).items():
            codes[:, place] = voltage_codes(signals[index], rate_hz, position, sample)
        peaks = np.round(beats.sample[beats.sample < num_samples] * GRID_HZ / rate_hz).astype(np.int64)
        codes[np.minimum(peaks, num_points - 1), -1] = 1
        beat_class = classes_on_grid(beats, num_points, num_samples, rate_hz)
        return Tokens(codes, sample, beat_class, beats.rhythm_at(sample), np.ones(num_points, np.float32))

    def geometry(self) -> list[Floats]:
        """Return the voltage of each level in mV, `[1024, 1]` for each place; 0 and 1 for the beat."""
        levels = dequantize(np.arange(NUM_LEVELS, dtype=np.uint16))[:, None]
        return [*(levels.copy() for _ in PLACES), np.arange(2, dtype=np.float32)[:, None]]


TOKENIZER = LeadsTokenizer
