"""How tensors go through the convolution kernels, or through torch where `rule` says so: each pass alone.

Shapes: x `[N, C, L]`, weight `[O, C / groups, K]`, bias `[O]`, result and its gradient dy `[N, O, M]`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from heartlm.extensions.conv1d import kernel
from heartlm.extensions.conv1d.kernel import ConvShape
from heartlm.extensions.conv1d.rule import fastest

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """Precomputed data of a shape.

    Attributes:
        shape: of the convolution.
        out: shape of the result, `[N, O, M]`.
        by_kernel: passes that the kernel does, see `rule.fastest`.
        forward: the kernel's forward pass, without a ReLU and with one.
        input_gradient: the kernel's gradient of x.
        weight_gradient: the kernel's gradients of weight and bias.
    """

    shape: ConvShape
    out: tuple[int, int, int]
    by_kernel: frozenset[str]
    forward: tuple[kernel.Pass, kernel.Pass]
    input_gradient: kernel.Pass
    weight_gradient: kernel.Pass


@functools.lru_cache(maxsize=4096)
def plan(
    x: tuple[int, ...],
    weight: tuple[int, ...],
    bias: tuple[int, ...] | None,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    num_threads: int,
) -> Plan | None:
    """Return the plan of a shape, or None if there is nothing to compute or torch has to report an error."""
    if len(x) != 3 or len(weight) != 3 or 0 in (*x, *weight):
        return None
    (batch, channels, length), (out_channels, channels_of_group, size) = x, weight
    if min(stride, dilation, groups) < 1 or padding < 0 or out_channels % groups:
        return None
    if bias is not None and bias != (out_channels,):
        return None
    if channels != channels_of_group * groups or length + 2 * padding < dilation * (size - 1) + 1:
        return None
    shape = ConvShape(batch, channels, length, out_channels, size, stride, padding, dilation, groups)
    plain, x_gradient, weight_gradient = (kernel.prepared(shape, name, num_threads) for name in kernel.PASSES)
    positive = kernel.prepared(shape, "conv1d_forward", num_threads, relu=True)
    out = (batch, out_channels, shape.out_length)
    return Plan(shape, out, fastest(shape, num_threads), (plain, positive), x_gradient, weight_gradient)


def forward(work: Plan, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Compute the convolution of plain tensors, without a gradient."""
    if "forward" not in work.by_kernel:
        shape = work.shape
        y = F.conv1d(x, weight, bias, shape.stride, shape.padding, shape.dilation, shape.groups)
        return y.relu_() if relu else y
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty(*work.out)  # a third of a microsecond sooner than from the tuple
    address = 0 if bias is None else bias.contiguous().data_ptr()
    work.forward[relu](x.data_ptr(), weight.data_ptr(), address, y.data_ptr())
    return y


def gradients(
    work: Plan, x: Tensor, weight: Tensor, dy: Tensor, needed: tuple[bool, bool, bool], y: Tensor | None = None
) -> Gradients:
    """Gradients of plain x, weight and bias, None where they are not `needed`; `y` is the result if a ReLU ended it."""
    shape, by_kernel = work.shape, work.by_kernel
    dx, dweight, dbias = None, None, None
    dy = dy.contiguous()
    # The kernel computes the gradient of the bias only in the same pass as that of the weights.
    by_torch = (
        needed[0] and "input_gradient" not in by_kernel,
        needed[1] and "weight_gradient" not in by_kernel,
        needed[2] and not (needed[1] and "weight_gradient" in by_kernel),
    )
    if any(by_torch):
        if y is not None:
            dy, y = torch.ops.aten.threshold_backward.default(dy, y, 0), None
        dx, dweight, dbias = torch_gradients(
            dy, x, weight, shape.stride, shape.padding, shape.dilation, shape.groups, needed=by_torch
        )
    gate = 0 if y is None else y.data_ptr()
    if needed[0] and "input_gradient" in by_kernel:
        weight = weight.contiguous()
        dx = torch.empty(x.shape)
        work.input_gradient(dy.data_ptr(), gate, weight.data_ptr(), dx.data_ptr())
    if needed[1] and "weight_gradient" in by_kernel:
        x = x.contiguous()
        dweight = torch.empty(weight.shape)
        dbias = torch.empty(weight.shape[0]) if needed[2] else None
        address = 0 if dbias is None else dbias.data_ptr()
        work.weight_gradient(x.data_ptr(), dy.data_ptr(), gate, dweight.data_ptr(), address)
    return dx, dweight, dbias


def torch_gradients(dy: Tensor, x: Tensor, weight: Tensor, *sizes: int, needed: tuple[bool, bool, bool]) -> Gradients:
    """Compute the gradients with torch; `sizes` are stride, padding, dilation and groups."""
    stride, padding, dilation, groups = sizes
    all_gradients = torch.ops.aten.convolution_backward.default(
        dy, x, weight, [weight.shape[0]], [stride], [padding], [dilation], False, [0], groups, list(needed)
    )
    # A gradient that is not needed may be computed all the same, in some shape or other.
    dx, dweight, dbias = (gradient if want else None for gradient, want in zip(all_gradients, needed, strict=True))
    return dx, dweight, dbias
