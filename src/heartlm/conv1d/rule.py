"""Choice between the kernel and torch for a convolution shape, based on measurements.

The kernels are faster nearly everywhere. `TORCH_IS_FASTER` lists where they are not, as boxes in the sizes that decide:
for each kind of processor, on one thread and on several, forwards, for each gradient, and for a step of training as a
whole, where small shapes pay for the way through autograd. The boxes were fitted to the times of 309 layers on one core
and on two (105 with AVX2, 75 portably, on one), as few and as simple as take in what is slower. On a machine of another
kind, derive them again, and paste what is printed here:

    python benchmarks/conv1d_rule.py

`fastest` is called once per shape and number of threads, and `passes.plan` caches the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from heartlm.conv1d.kernel import ConvShape
from heartlm.kernels.library import chosen_variant

Pass = Literal["forward", "input_gradient", "weight_gradient", "training"]
PASSES: tuple[Pass, ...] = ("forward", "input_gradient", "weight_gradient", "training")

Box = Mapping[str, tuple[float, float]]
"""Bounds, both inclusive, of some of the `sizes` of a shape."""

TORCH_IS_FASTER: dict[str, dict[Pass, tuple[Box, ...]]] = {
    "avx512": {
        "forward": ({"kernel_size": (0, 5), "channels": (6, inf), "stride": (4, inf)},),
        "input_gradient": (
            {"filters": (128, inf), "channels": (0, 1), "kernel_size": (11, inf)},
            {"filters": (64, inf), "batch": (0, 1), "out_length": (3600, inf)},
            {"kernel_size": (5, inf), "filters": (128, inf), "stride": (2, inf)},
        ),
        "training": (
            {"filters": (8, inf), "batch": (0, 1), "mflops": (0, 0.432)},
            {"filters": (64, inf), "batch": (0, 1), "mflops": (0, 6.248)},
        ),
    },
    "avx512, threads": {
        "input_gradient": (
            {"filters": (128, inf), "channels": (0, 1), "kernel_size": (11, inf)},
            {"channels": (0, 1), "batch": (0, 1), "mflops": (2.16269, inf)},
        ),
        "weight_gradient": ({"out_length": (0, 360), "batch": (0, 1), "mflops": (28.5696, inf)},),
        "training": (
            {"filters": (64, inf), "batch": (0, 1), "out_length": (0, 180)},
            {"filters": (8, inf), "batch": (0, 1), "mflops": (0, 0.12672)},
        ),
    },
    "avx2": {
        "input_gradient": (
            {"filters": (128, inf), "batch": (0, 1), "mflops": (0.27648, inf)},
            {"filters": (16, inf), "channels": (0, 1), "kernel_size": (25, inf)},
        ),
        "weight_gradient": ({"filters": (128, inf), "batch": (0, 1), "mflops": (0.27648, inf)},),
        "training": (
            {"filters": (64, inf), "batch": (0, 1), "mflops": (0, 14.6801)},
            {"out_length": (0, 128), "stride": (0, 1), "mflops": (0, 0.96)},
        ),
    },
    "portable": {
        "forward": (
            {"channels": (0, 4), "batch": (0, 1), "filters": (8, inf)},
            {"kernel_size": (0, 3), "batch": (0, 1), "out_length": (0, 128)},
        ),
        "input_gradient": ({"filters": (32, inf), "batch": (0, 1), "stride": (0, 2)},),
        "weight_gradient": ({"filters": (128, inf), "batch": (0, 1), "mflops": (0.352, inf)},),
        "training": (
            {"channels": (0, 4), "batch": (0, 1), "filters": (8, inf)},
            {"kernel_size": (0, 3), "batch": (0, 1), "out_length": (0, 128)},
        ),
    },
}
"""By variant of the kernels and pass; a shape in any of the boxes goes to torch. With several threads the boxes of
"variant, threads" hold where there are any."""


@dataclass(frozen=True)
class Choice:
    """Passes that the kernels compute for a shape; torch computes the others.

    Attributes:
        forward: whether the kernel computes the result.
        input_gradient: whether, in training, the kernel computes the gradient of the input.
        weight_gradient: whether, in training, the kernel computes the gradients of weights and bias.
        training: whether the kernels compute any pass in training; if not, torch's autograd is used.
    """

    forward: bool
    input_gradient: bool
    weight_gradient: bool
    training: bool


def fastest(shape: ConvShape, num_threads: int) -> Choice:
    """Return the measured choice for `shape`."""
    boxes = TORCH_IS_FASTER.get(chosen_variant(), {})
    if num_threads > 1:
        boxes = TORCH_IS_FASTER.get(f"{chosen_variant()}, threads", boxes)
    found = sizes(shape)
    forward, of_input, of_weight, training = (
        not any(inside(found, box) for box in boxes.get(name, ())) for name in PASSES
    )
    return Choice(forward, of_input, of_weight, training and (forward or of_input or of_weight))


def sizes(shape: ConvShape) -> dict[str, float]:
    """Return the sizes that determine which is faster, such as channels and filters per group and work per pass."""
    channels, filters = shape.in_channels // shape.groups, shape.out_channels // shape.groups
    work = 2e-6 * shape.batch * shape.out_channels * shape.out_length * channels * shape.kernel_size
    return {
        "batch": shape.batch,
        "channels": channels,
        "filters": filters,
        "kernel_size": shape.kernel_size,
        "stride": shape.stride,
        "out_length": shape.out_length,
        "mflops": work,
    }


def inside(found: Mapping[str, float], box: Box) -> bool:
    """Return whether the sizes are within all bounds of a box."""
    return all(low <= found[name] <= high for name, (low, high) in box.items())
