"""Dropout that does not know how a batch is split.

Which elements are dropped is an integer hash of two numbers: a key of the window at this place of the model in this
step, drawn by the caller, and the place of the element within the window. No generator has a state, so a window loses
the same elements on one rank or on many, in any micro-batch, and again when activations are computed a second time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def dropped(x: Tensor, key: Tensor | None, share: float, first: int = 0, num_rows: int | None = None) -> Tensor:
    """Drop `share` of the elements of `x` and scale the others up by as much.

    Args:
        x: floating `[B, ...]`, B windows.
        key: random bits for each window, int32 `[B]`; None drops nothing.
        share: 0 to below 1.
        first: the first row that `x` holds, where it is some rows of a tensor `[B, H, num_rows, C]`.
        num_rows: of that tensor; by default `x` is whole.
    """
    if key is None or not share:
        return x
    num_places = math.prod(x.shape[1:])
    place = torch.arange(1, num_places + 1, dtype=torch.int32, device=x.device)
    if num_rows is not None:
        before = torch.arange(x.shape[1], dtype=torch.int32, device=x.device) * (num_rows - x.shape[2]) + first
        place += (before * x.shape[3]).repeat_interleave(num_places // x.shape[1], output_size=num_places)
    return x * _kept(x, key, share, place)


def _kept(x: Tensor, key: Tensor, share: float, place: Tensor) -> Tensor:
    """0 where an element of `x` is dropped, 1 / (1 − share) elsewhere."""
    hashed = _hashed(place) + key[:, None]
    hashed.bitwise_xor_((hashed >> 16).bitwise_and_(0xFFFF)).mul_(_int32(0x7FEB352D))
    hashed.bitwise_xor_((hashed >> 15).bitwise_and_(0x1FFFF)).mul_(_int32(0x846CA68B))
    kept = hashed >= int(share * 2**32) - 2**31
    return kept.to(x.dtype).mul_(1 / (1 - share)).view(x.shape)


def _hashed(x: Tensor) -> Tensor:
    """32 well-mixed bits for each place of a window, int32 `[num_places]`, counted from 1.

    The constants are those of `lowbias32`, a mixer without fixed patterns (Wellons 2018, "Prospecting for hash
    functions").
    """
    x = (x ^ _shifted(x, 16)) * _int32(0x7FEB352D)
    x = (x ^ _shifted(x, 15)) * _int32(0x846CA68B)
    return x ^ _shifted(x, 16)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """`x` to the right by `bits`, zeros from the left."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _int32(bits: int) -> int:
    return bits - (1 << 32) if bits >> 31 else bits
