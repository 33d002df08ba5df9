"""RR intervals and what they are compared with.

An RR interval alone says heart rate; relative to the recent rhythm it says "early" or "late"; relative to a long mean
it still says "early" when most of the recent beats were early too. Causal facets look back only; offline facets also
see the next interval and a mean centred on the beat. All are quantised on a logarithmic scale; code 0 is "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.tokenizers.running import mean_around, trailing_median

Floats = NDArray[np.float64]

RECENT_BEATS = 32
LONG_BEATS = 300


@dataclass(frozen=True)
class LogScale:
    """Logarithmic levels between `low` and `high`; values outside fall into the end levels, NaN into code 0.

    Attributes:
        low: lower end of the first level.
        high: upper end of the last level.
        num_levels: how many levels, code 0 not counted.
    """

    low: float
    high: float
    num_levels: int = 63

    def encode(self, value: Floats) -> NDArray[np.uint16]:
        """Code of each value, 1 … `num_levels`, 0 for NaN."""
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.log(value / self.low) / np.log(self.high / self.low) * self.num_levels
        level = np.clip(np.floor(np.nan_to_num(place)), 0, self.num_levels - 1).astype(np.uint16) + 1
        return np.where(np.isnan(value), 0, level).astype(np.uint16)

    def decode(self, code: NDArray[np.uint16]) -> Floats:
        """Geometric centre of each code's level; NaN for code 0."""
        place = (code.astype(np.float64) - 0.5) / self.num_levels
        return np.where(code == 0, np.nan, self.low * (self.high / self.low) ** place)

    @property
    def size(self) -> int:
        """How many codes there are."""
        return self.num_levels + 1


@dataclass(frozen=True)
class RRFacet:
    """One way of looking at RR intervals: its name, its levels and whether it needs the future."""

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


def ordinal_coordinates(size: int, num_waves: int = 8) -> NDArray[np.float32]:
    """Coordinates for the codes of a `LogScale`: the level itself, and sines and cosines of it, slow to fast.

    Returns:
        float32 `[size, 1 + 2 * num_waves]`; code 0, "unknown", lies at the origin.
    """
    level = np.linspace(-1, 1, size)[:, None]
    angle = level * np.arange(1, num_waves + 1) * np.pi / 2
    coordinates = np.concatenate([level, np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
    coordinates[0] = 0
    return coordinates


def rr_intervals_s(sample: NDArray[np.int64], rate_hz: float) -> Floats:
    """Interval from the beat before to each beat, in seconds; NaN for the first. float64 `[num_beats]`."""
    return np.diff(sample, prepend=np.nan) / rate_hz if len(sample) else np.empty(0)


def rr_facets(rr_s: Floats, causal: bool) -> dict[str, Floats]:
    """The value of every RR facet at every beat, by facet name; NaN where it is not defined.

    Args:
        rr_s: interval before each beat, `[num_beats]`, NaN where unknown.
        causal: look back only.
    """
    following = np.append(rr_s[1:], np.nan)[: len(rr_s)]
    recent = trailing_median(rr_s, RECENT_BEATS + 1)
    long = mean_around(rr_s, LONG_BEATS, 0 if causal else LONG_BEATS)
    previous = np.concatenate([[np.nan], rr_s[:-1]])[: len(rr_s)]
    return {
        "rr": rr_s,
        "rr_over_previous": rr_s / previous,
        "rr_over_recent": rr_s / recent,
        "next_rr_over_recent": following / recent,
        "rr_over_long": rr_s / long,
        "next_rr_over_long": following / long,
    }
