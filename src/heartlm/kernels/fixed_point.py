"""Numbers in fixed point, int64, and back; see `heartlm.federated.fixed_point`, which says what they are for.

Functions take addresses of contiguous arrays, so that tensors and NumPy arrays are computed on where they lie.
"""

from __future__ import annotations

from typing import Any

from heartlm.kernels.library import float64, int64, kernel, pointer


def adding() -> Any:
    """The kernel that adds numbers to totals in fixed point.

    It takes the address of float64 `[n]`, n, what to multiply each number by, a limit, whether to add to the totals
    rather than to replace them, and the address of the totals, int64 `[n]`. It returns how many products were not below
    the limit in magnitude; their totals are worth nothing.
    """
    given = pointer, int64, float64, float64, int64, pointer
    return kernel("add_in_fixed_point", *given, returns=int64)


def reading() -> Any:
    """The kernel that reads numbers in fixed point.

    It takes the address of int64 `[n]`, n, what the lowest bit is worth, what to multiply each number by, and the
    address of what to write, float64 `[n]`.
    """
    return kernel("from_fixed_point", pointer, int64, float64, float64, pointer)


def moving() -> Any:
    """The kernel that moves numbers in single precision by numbers in fixed point.

    It takes the address of float32 `[n]`, and what `reading` takes, but writes float32 `[n]`: the sum of the two, added
    in double precision.
    """
    given = pointer, pointer, int64, float64, float64, pointer
    return kernel("moved_by_fixed_point", *given)
