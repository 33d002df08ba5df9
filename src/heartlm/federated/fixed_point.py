"""Numbers in fixed point: 64 bits, the lowest worth 2**-48, so that sums do not depend on their order.

Weights of a model and what training changes of them lie well within ± 32768. A float32 of at least 2**-25 (3e-8) is a
whole multiple of 2**-48, so it survives to the last bit; smaller ones are rounded to the nearest multiple.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heartlm.errors import HeartlmError

FRACTION_BITS = 48
_UNIT = 2.0**FRACTION_BITS
LARGEST = 2.0 ** (62 - FRACTION_BITS)
"""Sums of all clients must stay below twice this; their weights add up to one, so each delta may be as large."""


PIECE = 1 << 16
"""Numbers brought into fixed point together: so many, in double precision, stay in a core's cache."""


def to_fixed_point(numbers: Tensor) -> Tensor:
    """Bring float64 `numbers` `[n]` into fixed point, int64.

    Raises:
        HeartlmError: a number is not finite or too large: training has diverged.
    """
    total = torch.zeros(numbers.shape, dtype=torch.int64)
    add_in_fixed_point(total, numbers, 1.0)
    return total


def add_in_fixed_point(total: Tensor, numbers: Tensor, factor: float) -> None:
    """Add float64 `numbers` `[n]`, times `factor`, to the fixed-point numbers `total`, int64 `[n]`.

    Raises:
        HeartlmError: a number is not finite or too large: training has diverged.
    """
    spare = torch.empty(min(PIECE, len(numbers)), dtype=torch.float64)
    for begin in range(0, len(numbers), PIECE):
        piece = numbers[begin : begin + PIECE]
        scaled = torch.mul(piece, factor * _UNIT, out=spare[: len(piece)])
        largest = max(abs(float(bound)) for bound in torch.aminmax(scaled)) / _UNIT
        if not largest < LARGEST:
            raise HeartlmError(
                f"an update of {largest:g} found, less than {LARGEST:g} expected: training diverged, "
                "lower learning_rate or server_learning_rate"
            )
        total[begin : begin + PIECE] += scaled.round_().to(torch.int64)


def from_fixed_point(numbers: Tensor) -> Tensor:
    """The float64 numbers that int64 `numbers` stand for."""
    return numbers.to(torch.float64).mul_(1 / _UNIT)
