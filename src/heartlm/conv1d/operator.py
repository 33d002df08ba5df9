"""`heartlm::conv1d`, the convolution as an operator of torch, for `torch.compile` and `torch.export`.

Both look through Python for operators they know and stop at pointers; a registered operator is one node of their graph.
It takes any type and device: what the kernels do not do, torch does within it. Gradients of gradients are not
registered, and torch says so; outside of a graph, `module.conv1d` has them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heartlm.conv1d import passes

# What follows the tensors of each operator: sizes, then `relu` or `wanted`.
_SHAPE = "int stride, int padding, int dilation, int groups"
_FORWARD = f"conv1d(Tensor x, Tensor weight, Tensor? bias, {_SHAPE}, bool relu) -> Tensor"
_BACKWARD = f"conv1d_backward(Tensor dy, Tensor x, Tensor weight, {_SHAPE}, bool[] wanted) -> (Tensor, Tensor, Tensor)"


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    *sizes, relu = rest
    work = _plan(x, weight, bias, *sizes)
    if work is not None:
        return passes.forward(work, x, weight, bias, relu)
    return passes.torch_conv1d(x, weight, bias, *sizes, relu=relu).contiguous()


def _fake_forward(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    stride, padding, dilation, _, _ = rest
    length = (x.shape[-1] + 2 * padding - dilation * (weight.shape[2] - 1) - 1) // stride + 1
    return x.new_empty((*x.shape[:-2], weight.shape[0], length))


def _backward(dy: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Gradients of x, weight and bias; an empty tensor where one is not wanted, as operators return no None."""
    *sizes, wanted = rest
    mask = (wanted[0], wanted[1], wanted[2])
    work = _plan(x, weight, None, *sizes)
    if work is not None and dy.dtype is torch.float32 and dy.shape == work.out:
        found = passes.gradients(work, x, weight, dy, mask)
    elif x.ndim == 3:
        found = passes.torch_gradients(dy, x, weight, *sizes, wanted=mask)
    else:  # one recording without a batch
        dx, dweight, dbias = passes.torch_gradients(dy[None], x[None], weight, *sizes, wanted=mask)
        found = None if dx is None else dx[0], dweight, dbias
    return tuple(x.new_empty(0) if gradient is None else gradient.contiguous() for gradient in found)


def _fake_backward(dy: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    shapes = x.shape, weight.shape, weight.shape[:1]
    return tuple(x.new_empty(shape if want else 0) for shape, want in zip(shapes, rest[-1], strict=True))


def _plan(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: int) -> passes.Plan | None:
    """Return the plan for tensors that a kernel supports, else None."""
    tensors = [tensor for tensor in (x, weight, bias) if tensor is not None]
    if any(not tensor.is_cpu or tensor.dtype is not torch.float32 for tensor in tensors):
        return None
    bias_shape = None if bias is None else bias.shape
    return passes.plan(x.shape, weight.shape, bias_shape, *rest, torch.get_num_threads())


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, *ctx.shape, relu = inputs
    ctx.save_for_backward(x, weight, output if relu else None)


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, y = ctx.saved_tensors
    if y is not None:
        dy = torch.ops.aten.threshold_backward.default(dy, y, 0)
    wanted = ctx.needs_input_grad[:3]
    found = torch.ops.heartlm.conv1d_backward.default(dy, x, weight, *ctx.shape, wanted)
    kept = (gradient if want else None for gradient, want in zip(found, wanted, strict=True))
    return *kept, None, None, None, None, None


def _no_second_gradient(ctx: Any, *_: Any) -> None:
    raise RuntimeError("heartlm::conv1d_backward has no autograd: take gradients of gradients outside of the operator")


_library: Any = torch.library.Library("heartlm", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(_FORWARD, tags=torch.Tag.pt2_compliant_tag)
_library.impl("conv1d", _forward, "CompositeExplicitAutograd")
torch.library.register_fake("heartlm::conv1d", _fake_forward, lib=_library)
_library.define(_BACKWARD, tags=torch.Tag.pt2_compliant_tag)
_library.impl("conv1d_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("heartlm::conv1d_backward", _fake_backward, lib=_library)
torch.library.register_autograd("heartlm::conv1d", _gradient, setup_context=_set_up, lib=_library)
torch.library.register_autograd("heartlm::conv1d_backward", _no_second_gradient, lib=_library)

conv1d: Any = torch.ops.heartlm.conv1d.default
"""The operator; arguments as of `module.conv1d`, all given."""
