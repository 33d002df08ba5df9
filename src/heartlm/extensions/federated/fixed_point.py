"""Numbers in fixed point: 64 bits, the lowest worth 2**-48, so that sums do not depend on their order.

Weights of a model and what training changes of them lie well within ± 32768. A float32 of at least 2**-25 (3e-8) is a
whole multiple of 2**-48, so it survives to the last bit; smaller ones are rounded to the nearest multiple.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heartlm.errors import HeartlmError
from heartlm.kernels.library import kernel

FRACTION_BITS = 48
_UNIT = 2.0**FRACTION_BITS
LARGEST = 2.0 ** (62 - FRACTION_BITS)
"""Sums of all clients must stay below twice this; their weights add up to one, so each delta may be as large."""


class FixedPoint:
    """Fixed-point numbers times a factor.

    Args:
        whole: fixed-point numbers, int64 `[n]`, contiguous, in host memory; not copied.
        factor: factor of all numbers.
    """

    def __init__(self, whole: Tensor, factor: float = 1.0) -> None:
        self.whole, self.factor = whole, factor

    def double(self) -> Tensor:
        """Return the numbers as float64 `[n]`."""
        read, scale = kernel("from_fixed_point", by_address=True), (1 / _UNIT, self.factor)
        out = torch.empty(self.whole.shape, dtype=torch.float64)
        read(self.whole.data_ptr(), self.whole.numel(), *scale, out.data_ptr())
        return out

    def added_to(self, vector: Tensor) -> Tensor:
        """Return `vector` (float32 `[n]`, contiguous) plus the numbers, added in double precision; float32 `[n]`."""
        assert vector.dtype is torch.float32 and vector.is_contiguous() and vector.numel() == self.whole.numel()
        move, scale = kernel("moved_by_fixed_point", by_address=True), (1 / _UNIT, self.factor)
        out = torch.empty_like(vector)
        move(vector.data_ptr(), self.whole.data_ptr(), vector.numel(), *scale, out.data_ptr())
        return out


def sum_in_fixed_point(totals: Tensor, parts: Sequence[tuple[Tensor, float]]) -> None:
    """Set the first numbers of `totals`, int64 and contiguous, to the sum of `parts`; without parts, all to 0.

    Args:
        totals: the sums; numbers behind those of the parts stay as they are.
        parts: float64, contiguous and of one length, and what to multiply each by.

    Raises:
        HeartlmError: a number is not finite or too large: training has diverged.
    """
    if not parts:
        totals.zero_()
    add = kernel("add_in_fixed_point", by_address=True)
    for place, (numbers, factor) in enumerate(parts):
        assert numbers.dtype is torch.float64 and numbers.is_contiguous() and numbers.numel() <= totals.numel()
        scale = factor * _UNIT, LARGEST * _UNIT
        if add(numbers.data_ptr(), numbers.numel(), *scale, place > 0, totals.data_ptr()):
            largest = max(abs(float(bound)) for bound in torch.aminmax(numbers * factor))
            raise HeartlmError(
                f"an update of {largest:g} found, less than {LARGEST:g} expected: training diverged, "
                "lower learning_rate or server_learning_rate"
            )
