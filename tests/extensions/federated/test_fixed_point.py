"""Fixed point: every variant of the kernels does what NumPy does, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from heartlm.kernels.library import kernel, variants
from tests.kernel_references import add_reference, move_reference, read_reference

UNIT = 2.0**48


@pytest.mark.parametrize("variant", variants())
def test_numbers_are_added_and_read_as_numpy_does_it(variant: str) -> None:
    draws = np.random.default_rng(0)
    numbers = draws.normal(size=1003) * 10.0 ** draws.integers(-20, 3, 1003)
    numbers[:4] = 0.5 / UNIT, 1.5 / UNIT, -2.5 / UNIT, 0.0  # ties go to the even number
    total = draws.integers(-(2**40), 2**40, 1003)
    expected = total.copy()
    names = "add_in_fixed_point", "from_fixed_point", "moved_by_fixed_point"
    add, read, move = (kernel(name, variant) for name in names)
    for factor in (UNIT, 0.3 * UNIT):
        for more in (True, False):
            assert add_reference(numbers, factor, 2.0**62, more, expected) == 0
            given = numbers.ctypes.data, len(numbers), factor, 2.0**62, more, total.ctypes.data
            assert add(*given) == 0
            assert np.array_equal(total, expected)
    out = np.empty(len(total))
    read(total.ctypes.data, len(total), 1 / UNIT, 1.7, out.ctypes.data)
    assert np.array_equal(out, read_reference(total, 1 / UNIT, 1.7))
    vector = draws.normal(size=len(total)).astype(np.float32)
    moved, places = np.empty_like(vector), (vector.ctypes.data, total.ctypes.data)
    move(*places, len(total), 1 / UNIT, 1.7, moved.ctypes.data)
    assert np.array_equal(moved, move_reference(vector, total, 1 / UNIT, 1.7))


@pytest.mark.parametrize("variant", variants())
def test_what_is_no_number_or_too_large_is_counted(variant: str) -> None:
    numbers = np.array([1.0, np.nan, -np.inf, 2.0**20, -(2.0**14), 0.0, 3.0])
    add, total = kernel("add_in_fixed_point", variant), np.zeros(7, np.int64)
    given = numbers.ctypes.data, len(numbers), UNIT, 2.0**14 * UNIT, False, total.ctypes.data
    assert add(*given) == 4
    assert add_reference(numbers, UNIT, 2.0**14 * UNIT, False, np.zeros(7, np.int64)) == 4
    assert total[[0, 5, 6]].tolist() == [2**48, 0, 3 * 2**48]
