"""Choice between the kernel and torch for a convolution shape, based on measurements.

The kernels are faster nearly everywhere. `rule.yaml` lists where they are not, as boxes in the sizes that decide:
for each kind of processor, on one thread and on several, forwards, for each gradient, and for a step of training as a
whole, where small shapes pay for the way through autograd. The boxes were fitted to the times of 309 layers on one core
and on two (105 with AVX2, 75 portably, on one), as few and as simple as take in what is slower. On a machine of another
kind, derive them again, and paste what is printed into that file:

    python -m recipes.conv1d_rule

`fastest` is called once per shape and number of threads, and `passes.plan` caches the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from heartlm.extensions.conv1d.kernel import ConvShape
from heartlm.kernels.library import chosen_variant

PASSES = ("forward", "input_gradient", "weight_gradient", "training")

Box = Mapping[str, Sequence[float]]
"""Bounds, both inclusive, of some of the `sizes` of a shape."""

TORCH_IS_FASTER: dict[str, dict[str, list[Box]]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text("utf-8")
)
"""By variant of the kernels and pass; a shape in any of the boxes goes to torch."""


def fastest(shape: ConvShape, num_threads: int) -> frozenset[str]:
    """Return the `PASSES` that the kernels compute for `shape`, as measured; torch computes the others.

    Without `training`, training uses torch's autograd.
    """
    boxes = TORCH_IS_FASTER.get(chosen_variant(), {})
    if num_threads > 1:
        boxes = TORCH_IS_FASTER.get(f"{chosen_variant()}, threads", boxes)
    values = sizes(shape)
    by_kernel = frozenset(name for name in PASSES if not any(inside(values, box) for box in boxes.get(name, ())))
    return frozenset() if by_kernel == {"training"} else by_kernel


def sizes(shape: ConvShape) -> dict[str, float]:
    """Return the sizes that determine which is faster, such as channels and filters per group and work per pass."""
    channels, filters = shape.in_channels // shape.groups, shape.out_channels // shape.groups
    # In millions of floating-point operations: a product and a sum for each weight and output.
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


def inside(values: Mapping[str, float], box: Box) -> bool:
    """Return whether the sizes are within all bounds of a box."""
    return all(low <= values[name] <= high for name, (low, high) in box.items())
