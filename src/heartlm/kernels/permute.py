"""Permutations of any size by a key, place by place: nothing is kept, so they may be of billions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import int64, int64s, kernel, uint64s


def permute(
    place: NDArray[np.int64], size: int, key: NDArray[np.uint64], variant: str | None = None
) -> NDArray[np.int64]:
    """Where each place goes in the permutation of 0 … size − 1 that its key names; int64 `[N]`.

    Nothing is kept of the size of the permutation, so it may be of billions.

    Args:
        place: int64 `[N]`, 0 to below `size`.
        size: of the permutation.
        key: uint64 `[N]`, or `[1]` for all.
        variant: of the kernel; by default the best.
    """
    assert len(key) in (1, len(place))
    assert not len(place) or (place.min() >= 0 and place.max() < size), "walks from outside never end"
    walk = kernel("permute", int64s, int64, int64, uint64s, int64, int64s, variant=variant)
    if walk is None:
        return permute_reference(place, size, key)
    out = np.empty(len(place), np.int64)
    walk(place, len(place), size, key, int(len(key) > 1), out)
    return out


def permute_reference(place: NDArray[np.int64], size: int, key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The same in NumPy."""
    key = np.broadcast_to(key, place.shape)
    bits = max(1, (size - 1).bit_length())
    low = bits - bits // 2
    out, walking = place.astype(np.uint64), np.arange(len(place))
    while len(walking):
        out[walking] = _network(out[walking], key[walking], low, bits - low)
        walking = walking[out[walking] >= size]
    return out.astype(np.int64)


def _network(x: NDArray[np.uint64], key: NDArray[np.uint64], low: int, high: int) -> NDArray[np.uint64]:
    low_mask, high_mask = np.uint64((1 << low) - 1), np.uint64((1 << high) - 1)
    left, right = x >> np.uint64(low), x & low_mask
    for turn in range(0, 10, 2):
        left = left ^ (mix(right + mix(key + np.uint64(turn))) & high_mask)
        right = right ^ (mix(left + mix(key + np.uint64(turn + 1))) & low_mask)
    whole: NDArray[np.uint64] = left << np.uint64(low) | right
    return whole


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter bits: the finaliser of SplitMix64 (Steele 2014), a bijection of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scattered: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return scattered
