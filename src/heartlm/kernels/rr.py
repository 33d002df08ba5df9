"""RR intervals, alone and compared with those around, as levels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel

Doubles = NDArray[np.float64]

KINDS: tuple[str, ...] = (
    "rr",
    "rr_over_previous",
    "rr_over_recent",
    "next_rr_over_recent",
    "rr_over_long",
    "next_rr_over_long",
)
"""What an interval is compared with; the kernel knows each by its place."""


@dataclass(frozen=True)
class Levels:
    """What intervals are compared with, and the levels of what comes of it.

    Attributes:
        names: for each facet one of `KINDS`.
        edges: values from which on its second level, third, … begin, ascending, float64 `[num_levels - 1]` a facet.
        recent: number of intervals whose median is the recent interval, the present one included.
        before: number of intervals that the long mean reaches back.
        after: and ahead.
    """

    names: tuple[str, ...]
    edges: tuple[Doubles, ...]
    recent: int
    before: int
    after: int

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int64], Doubles, NDArray[np.int64]]:
        """Place of each name in `KINDS`, all edges, and where those of each facet begin."""
        kinds = np.array([KINDS.index(name) for name in self.names], np.int64)
        begins = np.cumsum([0, *map(len, self.edges)], dtype=np.int64)
        return kinds, np.concatenate([*self.edges], dtype=np.float64), begins

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Where the kernel finds them."""
        return tuple(table.ctypes.data for table in self._tables)


def rr_codes(sample: NDArray[np.int64], rate_hz: float, levels: Levels) -> NDArray[np.uint16]:
    """Levels of the intervals between beats.

    Args:
        sample: where the beats are, ascending, `[num_beats]`.
        rate_hz: samples a second.
        levels: the facets.

    Returns:
        uint16 `[num_beats, num_facets]`: 1 for the first level, 0 where the value is unknown.
    """
    sample, num_beats = np.ascontiguousarray(sample, np.int64), len(sample)
    codes = np.empty((num_beats, len(levels.names)), np.uint16)
    rr, total, ordered = np.empty(num_beats + 1), np.empty(num_beats + 1), np.empty(levels.recent)
    kernel("rr_codes")(
        *(sample, num_beats, rate_hz, levels.recent, levels.before, levels.after),
        *(*levels.addresses, len(levels.names), rr, total, ordered, codes),
    )
    return codes


def level_of(value: Doubles, edges: Doubles) -> NDArray[np.uint16]:
    """1 and the number of `edges` up to each value; 0 for NaN."""
    level = np.searchsorted(edges, value, side="right") + 1
    return np.where(np.isnan(value), 0, level).astype(np.uint16)
