"""Runs of flags, and rhythm spans from sequences of names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import RhythmSpan


def runs(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the start and stop (exclusive) of each run of set flags, int64 `[num_runs, 2]`."""
    return np.flatnonzero(np.diff(flags, prepend=False, append=False)).reshape(-1, 2)


def joined_spans(names: Sequence[str], sample: NDArray[np.int64], end: int) -> tuple[RhythmSpan, ...]:
    """Join consecutive pieces with the same name. Piece i starts at `sample[i]`; the last span ends at `end`."""
    begins = [place for place, name in enumerate(names) if place == 0 or name != names[place - 1]]
    starts = sample[begins].tolist()
    return tuple(
        RhythmSpan(start, stop, names[place])
        for start, stop, place in zip(starts, [*starts[1:], end], begins, strict=True)
    )


def inside_of(edges: NDArray[np.int64], num_samples: int) -> NDArray[np.bool_]:
    """Return whether each sample is in one of the pieces from onset to offset, `[num_pieces, 2]`; -1 is no edge."""
    whole = edges[(edges >= 0).all(axis=1)]
    steps = np.bincount(whole[:, 0], minlength=num_samples + 1) - np.bincount(
        np.minimum(whole[:, 1] + 1, num_samples), minlength=num_samples + 1
    )
    return np.asarray(np.cumsum(steps[:num_samples]) > 0)
