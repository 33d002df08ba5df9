"""The rhythm tokenizer: RR intervals only, so annotation files without a signal are enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.rr import Levels
from heartlm.tokenizers.base import Facet, Lead, Tokenizer, Tokens
from heartlm.tokenizers.rr import LogScale, RRFacet, levels_of, ordinal_coordinates, rr_codes

RHYTHM_FACETS: tuple[RRFacet, ...] = (
    RRFacet("rr", LogScale(0.2, 2.5, 127), True),
    RRFacet("rr_over_recent", LogScale(0.35, 2.8, 127), True),
    RRFacet("rr_over_previous", LogScale(0.35, 2.8, 127), True),
)


@lru_cache
def _levels() -> Levels:
    return levels_of(RHYTHM_FACETS, causal=True)


@dataclass
class RhythmTokenizer(Tokenizer):
    """One token a heartbeat from the intervals before it: absolute, over the recent median, over the one before.

    Every facet is causal. The levels are fixed, so there is nothing to fit. Decoding gives intervals in seconds,
    each the geometric centre of its level: off by at most half a level, 1.0 % of the interval.
    """

    kind: ClassVar[str] = "rhythm"
    needs_signal: ClassVar[bool] = False
    needs_fitting: ClassVar[bool] = False

    @property
    def facets(self) -> tuple[Facet, ...]:
        """Three facets of 128 codes."""
        return tuple(Facet(facet.name, facet.scale.size, facet.causal) for facet in RHYTHM_FACETS)

    def fit(self, leads: Iterable[Lead], seed: int = 0) -> None:
        """Nothing to learn: the levels are fixed."""

    def encode(self, lead: Lead) -> Tokens:
        """Encode the RR intervals of one recording; its signal is not read."""
        beats = lead.annotations
        return Tokens(
            codes=rr_codes(beats.sample, beats.rate_hz, _levels()),
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
        return [ordinal_coordinates(facet.scale.size) for facet in RHYTHM_FACETS]

    def settings(self) -> dict[str, Any]:
        """None: the levels are part of the schema version."""
        return {}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> RhythmTokenizer:
        """Rebuild the tokenizer."""
        return cls()
