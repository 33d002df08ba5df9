"""The rhythm tokenizer: RR intervals only, so annotation files without a signal are enough.

An early beat and the pause after it make a regular rhythm look irregular. So intervals come twice: as they are, and
after a filter that takes such pairs out, which atrial fibrillation survives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.rr import Levels
from heartlm.tokenizers.base import Facet, Lead, Tokenizer, Tokens
from heartlm.tokenizers.rr import LogScale, RRFacet, levels_of, ordinal_coordinates, rr_codes, rr_intervals_s
from heartlm.tokenizers.running import trailing_median

RHYTHM_FACETS: tuple[RRFacet, ...] = (
    RRFacet("rr", LogScale(0.2, 2.5, 127), True),
    RRFacet("rr_over_recent", LogScale(0.35, 2.8, 127), True),
    RRFacet("rr_over_previous", LogScale(0.35, 2.8, 127), True),
)
FILTERED_FACETS: dict[str, LogScale] = {
    "filtered_over_previous": LogScale(0.35, 2.8, 63),
    "filtered_irregularity": LogScale(0.004, 0.5, 31),
}
"""Intervals after the ectopic filter: over the one before, and the median change of the logarithm over `CHANGES`."""

EARLY, AROUND, CHANGES = 0.87, 7, 8
"""An interval below this share of the median of the last `AROUND` is early."""


def filtered_intervals(rr_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intervals with early ones, and longer ones after early ones, replaced by the median of the last `AROUND`.

    Args:
        rr_s: interval before each beat, NaN where unknown, `[num_beats]`.
    """
    median = trailing_median(rr_s, AROUND)
    early = rr_s < EARLY * median
    late = np.append(False, early[:-1]) & (rr_s > median) if len(rr_s) else early
    filtered: NDArray[np.float64] = np.where(early | late, median, rr_s)
    return filtered


def filtered_values(rr_s: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """The value of each of `FILTERED_FACETS` at every beat, NaN where unknown."""
    filtered = np.maximum(filtered_intervals(rr_s), 1e-3)
    ratio = filtered / np.append(np.nan, filtered[:-1]) if len(filtered) else filtered
    return {
        "filtered_over_previous": ratio,
        "filtered_irregularity": trailing_median(np.abs(np.log(ratio)), CHANGES),
    }


@lru_cache
def _levels() -> Levels:
    return levels_of(RHYTHM_FACETS, causal=True)


@dataclass
class RhythmTokenizer(Tokenizer):
    """One token a heartbeat from the intervals before it: absolute, over the recent median, over the one before; and
    after the ectopic filter over the one before, with how irregular the last ones are.

    Every facet is causal. The levels are fixed, so there is nothing to fit. Decoding gives intervals in seconds,
    each the geometric centre of its level: off by at most half a level, 1.0 % of the interval.
    """

    kind: ClassVar[str] = "rhythm"
    needs_signal: ClassVar[bool] = False
    needs_fitting: ClassVar[bool] = False

    @property
    def facets(self) -> tuple[Facet, ...]:
        """Three facets of 128 codes, and those of the filtered intervals."""
        plain = tuple(Facet(facet.name, facet.scale.size, facet.causal) for facet in RHYTHM_FACETS)
        return plain + tuple(Facet(name, scale.size) for name, scale in FILTERED_FACETS.items())

    def fit(self, leads: Iterable[Lead], seed: int = 0) -> None:
        """Nothing to learn: the levels are fixed."""

    def encode(self, lead: Lead) -> Tokens:
        """Encode the RR intervals of one recording; its signal is not read."""
        beats = lead.annotations
        values = filtered_values(rr_intervals_s(beats.sample, beats.rate_hz))
        filtered = [scale.encode(values[name]) for name, scale in FILTERED_FACETS.items()]
        return Tokens(
            codes=np.column_stack([rr_codes(beats.sample, beats.rate_hz, _levels()), *filtered]),
            sample=beats.sample,
            beat_class=beats.beat_classes(),
            rhythm=beats.rhythm_at(beats.sample),
            scale_mv=np.full(beats.num_beats, np.nan, np.float32),
        )

    def decode(self, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
        """RR intervals in seconds, NaN where unknown; float64 `[num_tokens]`."""
        return RHYTHM_FACETS[0].scale.decode(codes[:, 0])

    def geometry(self) -> list[NDArray[np.float32]]:
        """Coordinates that vary smoothly along the levels of each facet."""
        return [ordinal_coordinates(facet.size) for facet in self.facets]

    def settings(self) -> dict[str, Any]:
        """None: the levels are part of the schema version."""
        return {}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> RhythmTokenizer:
        """Rebuild the tokenizer."""
        return cls()
