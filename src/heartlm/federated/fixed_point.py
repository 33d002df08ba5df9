"""Numbers in fixed point: 64 bits, the lowest worth 2**-48, so that sums do not depend on their order.

Weights of a model and what training changes of them lie well within ± 32768. A float32 of at least 2**-25 (3e-8) is a
whole multiple of 2**-48, so it survives to the last bit; smaller ones are rounded to the nearest multiple.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heartlm.errors import HeartlmError
from heartlm.kernels import fixed_point as kernels

FRACTION_BITS = 48
_UNIT = 2.0**FRACTION_BITS
LARGEST = 2.0 ** (62 - FRACTION_BITS)
"""Sums of all clients must stay below twice this; their weights add up to one, so each delta may be as large."""


def to_fixed_point(numbers: Tensor) -> Tensor:
    """Bring float64 `numbers` `[n]` into fixed point, int64.

    Raises:
        HeartlmError: a number is not finite or too large: training has diverged.
    """
    total = torch.zeros(numbers.shape, dtype=torch.int64)
    add_in_fixed_point(total, numbers, 1.0)
    return total


def add_in_fixed_point(total: Tensor, numbers: Tensor, factor: float) -> None:
    """Add float64 `numbers` `[n]`, times `factor`, to the fixed-point numbers `total`, int64 `[n]`, contiguous.

    Raises:
        HeartlmError: a number is not finite or too large: training has diverged; `total` is worth nothing then.
    """
    numbers, add = numbers.contiguous(), kernels.adding()
    scale = factor * _UNIT, LARGEST * _UNIT
    if add is None:
        num_bad = kernels.add_reference(numbers.numpy(), *scale, total.numpy())
    else:
        num_bad = add(numbers.data_ptr(), len(numbers), *scale, total.data_ptr())
    if num_bad:
        largest = max(abs(float(bound)) for bound in torch.aminmax(numbers * factor))
        raise HeartlmError(
            f"an update of {largest:g} found, less than {LARGEST:g} expected: training diverged, "
            "lower learning_rate or server_learning_rate"
        )


def from_fixed_point(numbers: Tensor, factor: float = 1.0) -> Tensor:
    """What int64 `numbers` `[n]` stand for, times `factor`; float64 `[n]`."""
    numbers, read = numbers.contiguous(), kernels.reading()
    if read is None:
        return torch.from_numpy(kernels.read_reference(numbers.numpy(), 1 / _UNIT, factor))
    out = torch.empty(numbers.shape, dtype=torch.float64)
    read(numbers.data_ptr(), len(numbers), 1 / _UNIT, factor, out.data_ptr())
    return out
