"""Who convolves a shape, the kernel or torch: a rule taken from measurements.

`fastest` is asked once for each shape and the answer kept, so a call pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from heartlm.kernels.conv1d import ConvShape

Pass = Literal["forward", "input_gradient", "weight_gradient"]
PASSES: tuple[Pass, ...] = ("forward", "input_gradient", "weight_gradient")


@dataclass(frozen=True)
class Choice:
    """Which passes over a shape the kernel does; torch does the others."""

    forward: bool
    input_gradient: bool
    weight_gradient: bool


_imposed: Choice | None = None


def fastest(shape: ConvShape) -> Choice:
    """The measured choice for `shape`."""
    return _imposed or Choice(True, True, True)


@contextmanager
def imposed(choice: Choice) -> Iterator[None]:
    """Let `choice` hold for every shape: for measurements and tests."""
    from heartlm.kernels.convolution_passes import plan

    global _imposed
    before, _imposed = _imposed, choice
    plan.cache_clear()
    try:
        yield
    finally:
        _imposed = before
        plan.cache_clear()
