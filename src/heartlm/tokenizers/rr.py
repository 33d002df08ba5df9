"""RR intervals and their ratios to reference intervals.

An RR interval alone measures the heart rate. Its ratio to the recent rhythm shows whether a beat is early or late. Its
ratio to a long mean still shows an early beat if most recent beats were also early. Causal facets use only the past;
offline facets also use the next interval and a mean centred on the beat. All values are quantised on a logarithmic
scale; code 0 is "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.rr import Levels, level_of

Floats = NDArray[np.float64]

RECENT_BEATS = 32
LONG_BEATS = 300


@dataclass(frozen=True)
class LogScale:
    """Logarithmic levels between `low` and `high`; values outside map to the end levels, NaN to code 0.

    Attributes:
        low: lower end of the first level.
        high: upper end of the last level.
        num_levels: number of levels without code 0.
    """

    low: float
    high: float
    num_levels: int = 63

    def encode(self, value: Floats) -> NDArray[np.uint16]:
        """Return the code of each value, 1 … `num_levels`, or 0 for NaN."""
        return level_of(value, self.edges)

    @cached_property
    def edges(self) -> Floats:
        """The least value of each level but the first, to the last bit of its logarithm; float64 `[num_levels - 1]`."""
        ratio, level = self.high / self.low, np.arange(1, self.num_levels)
        outside = self.low * ratio ** (level / self.num_levels) * (1 - 1e-12)
        inside = outside * (1 + 2e-12)
        while len(between := np.flatnonzero(np.nextafter(outside, inside) < inside)):
            middle = (outside[between] + inside[between]) / 2
            reached = np.log(middle / self.low) / np.log(ratio) * self.num_levels >= level[between]
            inside[between[reached]], outside[between[~reached]] = middle[reached], middle[~reached]
        return inside

    def decode(self, code: NDArray[np.uint16]) -> Floats:
        """Return the geometric centre of each code's level, or NaN for code 0."""
        place = (code.astype(np.float64) - 0.5) / self.num_levels
        return np.where(code == 0, np.nan, self.low * (self.high / self.low) ** place)

    @property
    def size(self) -> int:
        """Number of codes."""
        return self.num_levels + 1


@dataclass(frozen=True)
class RRFacet:
    """A facet of RR intervals: its name, its levels and whether it needs later beats."""

    name: str
    scale: LogScale
    causal: bool


CAUSAL_FACETS: tuple[RRFacet, ...] = (
    RRFacet("rr", LogScale(0.2, 2.5), True),
    RRFacet("rr_over_recent", LogScale(0.35, 2.8), True),
    RRFacet("rr_over_long", LogScale(0.3, 3.0), True),
)
OFFLINE_FACETS: tuple[RRFacet, ...] = (
    RRFacet("rr", LogScale(0.2, 2.5), True),
    RRFacet("rr_over_recent", LogScale(0.35, 2.8), True),
    RRFacet("next_rr_over_recent", LogScale(0.35, 2.8), False),
    RRFacet("rr_over_long", LogScale(0.3, 3.0), False),
    RRFacet("next_rr_over_long", LogScale(0.3, 3.0), False),
)


NUM_WAVES = 8


def waves_of(place: NDArray[Any]) -> NDArray[Any]:
    """Places between -1 and 1 `[size]`, and sines and cosines of each, slow to fast; `[size, 1 + 2 * NUM_WAVES]`."""
    angle = place[:, None] * np.arange(1, NUM_WAVES + 1) * np.pi / 2
    return np.concatenate([place[:, None], np.sin(angle), np.cos(angle)], axis=1)


def ordinal_coordinates(size: int) -> NDArray[np.float32]:
    """Coordinates for the codes of a `LogScale`, float32: `waves_of` the level; code 0, "unknown", at the origin."""
    coordinates = waves_of(np.linspace(-1, 1, size)).astype(np.float32)
    coordinates[0] = 0
    return coordinates


def rr_intervals_s(sample: NDArray[np.int64], rate_hz: float) -> Floats:
    """Return the interval before each beat in seconds, NaN for the first beat; float64 `[num_beats]`."""
    return np.diff(sample, prepend=np.nan) / rate_hz if len(sample) else np.empty(0)


def levels_of(facets: tuple[RRFacet, ...], causal: bool) -> Levels:
    """The levels of `facets` as `rr_codes` wants them; with `causal`, means look back only."""
    edges = tuple(facet.scale.edges for facet in facets)
    after = 0 if causal else LONG_BEATS
    return Levels(tuple(facet.name for facet in facets), edges, RECENT_BEATS + 1, LONG_BEATS, after)
