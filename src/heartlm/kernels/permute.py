"""Permutations of any size by a key, place by place: nothing is kept, so they may be of billions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel


def permute(place: NDArray[np.int64], size: int, key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where each place goes in the permutation of 0 … size − 1 that its key names; int64 `[N]`.

    Nothing is kept of the size of the permutation, so it may be of billions.

    Args:
        place: int64 `[N]`, 0 to below `size`.
        size: of the permutation.
        key: uint64 `[N]`, or `[1]` for all.
    """
    assert len(key) in (1, len(place))
    assert not len(place) or (place.min() >= 0 and place.max() < size), "walks from outside never end"
    out = np.empty(len(place), np.int64)
    kernel("permute")(place, len(place), size, key, int(len(key) > 1), out)
    return out


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter bits: the finaliser of SplitMix64 (Steele 2014), a bijection of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scattered: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return scattered
