"""Sums over the ranks of one machine, through memory they share."""

from __future__ import annotations

from collections.abc import Callable

from heartlm.kernels.library import int64, kernel, pointer

CACHE_LINE_BYTES = 64
DONE = 3


def memory_bytes(num_ranks: int, slot_bytes: int) -> int:
    """How much memory, zero at first, `num_ranks` share to add up at most `slot_bytes` of numbers a round."""
    return num_ranks * CACHE_LINE_BYTES + 2 * num_ranks * slot_bytes


def shared_sum() -> Callable[..., int]:
    """The kernel that adds up.

    It takes the address of the shared memory, bytes a slot (whole cache lines), ranks, this rank, the round, from 1,
    the stage reached, 0 at first, the address of what to add up, its bytes, 0 for float32, 1 for float64, 2 for int64,
    and nanoseconds to wait for others. It returns the stage reached: `DONE`, or another where somebody is missing.
    """
    run: Callable[..., int] = kernel("shared_sum", pointer, *[int64] * 5, pointer, *[int64] * 3, returns=int64)
    return run
