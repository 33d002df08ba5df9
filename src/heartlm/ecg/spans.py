"""Stretches of something: runs of flags, and spans of rhythms from names in a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import RhythmSpan


def runs(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where flags in a row are set: first and one past the last, int64 `[num_runs, 2]`."""
    return np.flatnonzero(np.diff(flags, prepend=False, append=False)).reshape(-1, 2)


def joined_spans(names: Sequence[str], sample: NDArray[np.int64], end: int) -> tuple[RhythmSpan, ...]:
    """Join pieces in a row of one name, which begin at `sample`; the last span ends at `end`."""
    begins = [place for place, name in enumerate(names) if place == 0 or name != names[place - 1]]
    starts = sample[begins].tolist()
    return tuple(
        RhythmSpan(start, stop, names[place])
        for start, stop, place in zip(starts, [*starts[1:], end], begins, strict=True)
    )
