"""RR intervals and their ratios to reference intervals.

An RR interval alone measures the heart rate. Its ratio to the recent rhythm shows whether a beat is early or late. Its
ratio to a long mean still shows an early beat if most recent beats were also early. Causal facets use only the past;
offline facets also use the next interval and a mean centred on the beat. All values are quantised on a logarithmic
scale; code 0 is "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel

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
        level = np.searchsorted(self.edges, value, side="right") + 1
        return np.where(np.isnan(value), 0, level).astype(np.uint16)

    @cached_property
    def edges(self) -> Floats:
        """The least value of each level but the first, to the last bit of its logarithm; float64 `[num_levels - 1]`."""
        ratio, level = self.high / self.low, np.arange(1, self.num_levels)
        outside = self.low * ratio ** (level / self.num_levels) * (1 - 1e-12)
        inside = outside * (1 + 2e-12)
        # Bisect until the bounds are neighbouring doubles, so that a search finds the level that the logarithm gives.
        while len(between := np.flatnonzero(np.nextafter(outside, inside) < inside)):
            middle = (outside[between] + inside[between]) / 2
            reached = np.log(middle / self.low) / np.log(ratio) * self.num_levels >= level[between]
            inside[between[reached]], outside[between[~reached]] = middle[reached], middle[~reached]
        return inside

    def decode(self, code: NDArray[np.uint16]) -> Floats:
        """Return the geometric centre of each code's level, or NaN for code 0."""
        fraction = (code.astype(np.float64) - 0.5) / self.num_levels
        return np.where(code == 0, np.nan, self.low * (self.high / self.low) ** fraction)

    @property
    def size(self) -> int:
        """Number of codes."""
        return self.num_levels + 1


KINDS = "rr", "rr_over_previous", "rr_over_recent", "next_rr_over_recent", "rr_over_long", "next_rr_over_long"
"""What an interval is compared with; the kernel knows each by its place."""

OFFLINE_SCALES = {
    "rr": LogScale(0.2, 2.5),
    "rr_over_recent": LogScale(0.35, 2.8),
    "next_rr_over_recent": LogScale(0.35, 2.8),
    "rr_over_long": LogScale(0.3, 3.0),
    "next_rr_over_long": LogScale(0.3, 3.0),
}
CAUSAL_SCALES = {name: scale for name, scale in OFFLINE_SCALES.items() if not name.startswith("next_")}
ALWAYS_CAUSAL = "rr", "rr_over_recent"
"""Facets that use only the past, also offline."""


NUM_WAVES = 8


def waves_of(position: NDArray[Any]) -> NDArray[Any]:
    """Return positions `[size]`, −1 to 1, and sines and cosines of each, slow to fast; `[size, 1 + 2 * NUM_WAVES]`."""
    angle = position[:, None] * np.arange(1, NUM_WAVES + 1) * np.pi / 2
    return np.concatenate([position[:, None], np.sin(angle), np.cos(angle)], axis=1)


def ordinal_coordinates(size: int) -> NDArray[np.float32]:
    """Coordinates for the codes of a `LogScale`, float32: `waves_of` the level; code 0, "unknown", at the origin."""
    coordinates = waves_of(np.linspace(-1, 1, size)).astype(np.float32)
    coordinates[0] = 0
    return coordinates


def rr_intervals_s(sample: NDArray[np.int64], rate_hz: float) -> Floats:
    """Return the interval before each beat in seconds, NaN for the first beat; float64 `[num_beats]`."""
    return np.diff(sample, prepend=np.nan) / rate_hz if len(sample) else np.empty(0)


def rr_codes(
    sample: NDArray[np.int64], rate_hz: float, scales: Mapping[str, LogScale], causal: bool
) -> NDArray[np.uint16]:
    """Return the codes of the intervals between beats.

    Args:
        sample: positions of the beats, ascending, `[num_beats]`.
        rate_hz: sampling rate in Hz.
        scales: levels of each facet by its name, one of `KINDS`.
        causal: whether the long mean uses only the past.

    Returns:
        uint16 `[num_beats, num_facets]`, 0 where the value is unknown.
    """
    sample, num_beats = np.ascontiguousarray(sample, np.int64), len(sample)
    codes = np.empty((num_beats, len(scales)), np.uint16)
    kinds = np.array([KINDS.index(name) for name in scales], np.int64)
    edges = [scale.edges for scale in scales.values()]
    first_edge = np.cumsum([0, *map(len, edges)], dtype=np.int64)
    rr, total, ordered = np.empty(num_beats + 1), np.empty(num_beats + 1), np.empty(RECENT_BEATS + 1)
    kernel("rr_codes")(
        *(sample, num_beats, rate_hz, len(ordered), LONG_BEATS, 0 if causal else LONG_BEATS),
        *(kinds, np.concatenate(edges), first_edge, len(scales), rr, total, ordered, codes),
    )
    return codes


def trailing_median(values: Floats, width: int) -> Floats:
    """Median of each value and the up to `width - 1` values before it, NaN left out; NaN where all are.

    Args:
        values: float64 `[num_values]`.
        width: at least 1.
    """
    values = np.ascontiguousarray(values, np.float64)
    median, ordered = np.empty_like(values), np.empty(width)
    kernel("trailing_median")(values, len(values), width, ordered, median)
    return median


def mean_around(values: Floats, before: int, after: int) -> Floats:
    """Mean of the known values from `before` places back to `after` places ahead; the shape of `values`."""
    known = ~np.isnan(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    index = np.arange(len(values))
    first = np.maximum(index - before, 0)
    last = np.minimum(index + after + 1, len(values))
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN where no value is known
        mean: Floats = (total[last] - total[first]) / (count[last] - count[first])
    return mean
