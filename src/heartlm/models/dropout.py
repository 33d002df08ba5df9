"""Dropout that does not depend on how a batch is split.

An element is dropped by an integer hash of two numbers: a key of the window, layer and step, drawn by the caller, and
the index of the element within the window. There is no generator state. So the same elements of a window are dropped
on any number of ranks, in any micro-batch, and when activations are recomputed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def dropped(x: Tensor, key: Tensor | None, share: float, first: int = 0, num_rows: int | None = None) -> Tensor:
    """Drop elements of `x` with probability `share` and scale the others by 1 / (1 − share).

    Args:
        x: floating-point `[B, ...]`, B windows.
        key: random bits of each window, int32 `[B]`; None drops nothing.
        share: dropout probability, 0 to below 1.
        first: index of the first row of `x`, if `x` is a slice of a tensor `[B, H, num_rows, C]`.
        num_rows: number of rows of that tensor; None if `x` is whole.
    """
    if key is None or not share:
        return x
    num_places = math.prod(x.shape[1:])
    index = torch.arange(1, num_places + 1, dtype=torch.int32, device=x.device)
    if num_rows is not None:
        before = torch.arange(x.shape[1], dtype=torch.int32, device=x.device) * (num_rows - x.shape[2]) + first
        index += (before * x.shape[3]).repeat_interleave(num_places // x.shape[1], output_size=num_places)
    return x * _kept(x, key, share, index)


def _kept(x: Tensor, key: Tensor, share: float, index: Tensor) -> Tensor:
    """Return 0 where an element of `x` is dropped, 1 / (1 − share) elsewhere."""
    hashed = _hashed(index) + key[:, None]
    hashed.bitwise_xor_((hashed >> 16).bitwise_and_(0xFFFF)).mul_(_int32(0x7FEB352D))
    hashed.bitwise_xor_((hashed >> 15).bitwise_and_(0x1FFFF)).mul_(_int32(0x846CA68B))
    # Signed integers begin at -2^31: the lowest fraction `share` of them is dropped.
    kept = hashed >= int(share * 2**32) - 2**31
    return kept.to(x.dtype).mul_(1 / (1 - share)).view(x.shape)


def _hashed(x: Tensor) -> Tensor:
    """Return a 32-bit hash of each index of a window, counted from 1, int32 `[num_places]`.

    The constants are those of `lowbias32`, a mixer without fixed patterns (Wellons 2018, "Prospecting for hash
    functions").
    """
    x = (x ^ _shifted(x, 16)) * _int32(0x7FEB352D)
    x = (x ^ _shifted(x, 15)) * _int32(0x846CA68B)
    return x ^ _shifted(x, 16)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Return `x` shifted right by `bits`, filled with zeros."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _int32(bits: int) -> int:
    return bits - (1 << 32) if bits >> 31 else bits
