"""`conv1d`: the shortest way to a kernel that the arguments allow.

Plain float32 tensors on a CPU go straight to the kernel, within an `autograd.Function` where a gradient is wanted. An
operator in Python costs another 5 µs a call through torch's dispatcher, and 15 to 40 µs with a registered gradient; the
registered operator `heartlm::conv1d` is therefore left to `torch.compile` and `torch.export`, which take it into their
graphs. All else goes to torch: other types and devices, autocast, forward-mode gradients, `torch.func`, `torch.jit`,
tensor subclasses, and shapes for which `rule` knows torch to be faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from heartlm.conv1d import operator as convolution_operator
from heartlm.conv1d.passes import (
    Plan,
    forward,
    gradients,
    plan,
    torch_conv1d,
    torch_gradients,
)


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    relu: bool = False,
) -> Tensor:
    """`torch.nn.functional.conv1d`, and the maximum of it and 0 with `relu`, by whoever is fastest.

    Args:
        x: `[N, C, L]` or `[C, L]`, of any type and on any device that torch convolves.
        weight: `[O, C / groups, K]`.
        bias: `[O]`, or None.
        stride: samples from one output to the next.
        padding: zeros on either side.
        dilation: samples from one weight to the next.
        groups: into which the channels fall.
        relu: whether to cut the result off below 0.

    Raises:
        RuntimeError: torch's own, for shapes and types that do not go together.
    """
    if torch.compiler.is_compiling():
        y: Tensor = convolution_operator.conv1d(x, weight, bias, stride, padding, dilation, groups, relu)
        return y
    # Of a small convolution every microsecond counts: shapes that are torch's are sent there before all other checks.
    if type(x) is Tensor:
        bias_shape = None if bias is None else bias.shape
        work = plan(x.shape, weight.shape, bias_shape, stride, padding, dilation, groups, _num_threads())
        if work is None and x.dim() == 2:
            return conv1d(x.unsqueeze(0), weight, bias, stride, padding, dilation, groups, relu).squeeze(0)
        if work is not None:
            learns = torch.is_grad_enabled() and _learns(x, weight, bias)
            if (work.choice.training if learns else work.choice.forward) and _plain(x, weight, bias):
                if not learns:
                    return forward(work, x, weight, bias, relu)
                y = _Conv1d.apply(x, weight, bias, work, relu)  # type: ignore[no-untyped-call]
                return y
    return torch_conv1d(x, weight, bias, stride, padding, dilation, groups, relu)


class _Conv1d(torch.autograd.Function):
    """`forward` and `gradients` as one step of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, work: Plan, relu: bool) -> Tensor:
        y = forward(work, x, weight, bias, relu)
        ctx.save_for_backward(x, weight, y if relu else None)
        ctx.work = work
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by the kernels; by torch, which can be differentiated again, where a graph of them is made."""
        x, weight, y = ctx.saved_tensors
        shape, wanted = ctx.work.shape, ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            if y is not None:
                dy = torch.ops.aten.threshold_backward.default(dy, y, 0)
            found = torch_gradients(dy, x, weight, shape.stride, shape.padding, shape.dilation, shape.groups, wanted)
        else:
            found = gradients(ctx.work, x, weight, dy, wanted, y)
        return *found, None, None


def _learns(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)


def _plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether nothing but memory stands behind the tensors, of which x is no subclass, so that a kernel may read it."""
    return (
        type(weight) in _PLAIN_TYPES
        and x.dtype is weight.dtype is _FLOAT
        and x.is_cpu
        and weight.is_cpu
        and (bias is None or (type(bias) in _PLAIN_TYPES and bias.dtype is _FLOAT and bias.is_cpu))
        and x.layout is weight.layout is _STRIDED
        and not _dispatch_modes()
        and _function_transforms() is None
        and _tracing_state() is None
        and forward_ad._current_level < 0
        and not _is_autocast_enabled()
    )


_PLAIN_TYPES = (torch.nn.Parameter, Tensor)
_FLOAT, _STRIDED = torch.float32, torch.strided
# Looked up once: of a small convolution, each attribute of a module on the way counts.
_dispatch_modes, _tracing_state = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state
_num_threads = torch.get_num_threads
_function_transforms, _is_autocast_enabled = (
    torch._C._functorch.peek_interpreter_stack,
    torch._C._is_any_autocast_enabled,
)
