"""`Conv1d`, a drop-in for `torch.nn.Conv1d` with compiled CPU kernels, and the conversion of models to it.

    replace_conv1d(model, fuse_relu=True)

The conversion changes only the class of a module. Parameters, names in the state dictionary, hooks, training mode and
references to the module are unchanged. `Conv1d` works wherever torch's does; torch computes what the kernels do not
support.

`conv1d` calls the kernel by the shortest path that the arguments allow. Plain float32 tensors on a CPU are passed
directly to the kernel, within an `autograd.Function` if a gradient is needed. Torch computes everything else: other
types and devices, autocast, forward-mode gradients, `torch.func`, graphs of `torch.compile` and `torch.export`, tensor
subclasses, and shapes for which torch is faster by `rule`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F  # noqa: N812

from heartlm.extensions.conv1d.passes import Plan, forward, gradients, plan, torch_gradients


class Conv1d(nn.Conv1d):
    """`torch.nn.Conv1d` with the fastest available convolution; results are the same up to rounding.

    Attributes:
        relu: whether a ReLU is applied to the result in the same pass; `replace_conv1d` sets it.
    """

    relu: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Convolve `[N, C, L]` or `[C, L]`; return `[N, O, M]` or `[O, M]`."""
        x, mode = input, self.padding_mode
        amount, right = self._reversed_padding_repeated_twice
        if mode != "zeros" or amount != right:
            x, amount = F.pad(x, (amount, right), "constant" if mode == "zeros" else mode), 0
        # Half a microsecond sooner than as attributes; weights that a hook computes are attributes only.
        held: dict[str, Any] = self._parameters
        both = "weight" in held and "bias" in held
        weight, bias = (held["weight"], held["bias"]) if both else (self.weight, self.bias)
        return conv1d(x, weight, bias, self.stride[0], amount, self.dilation[0], self.groups, self.relu)

    def extra_repr(self) -> str:
        """Return torch's description of the module, and whether it ends in a ReLU."""
        text: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return text + ", relu=True" if self.relu else text


def replace_conv1d(model: nn.Module, fuse_relu: bool = False) -> int:
    """Replace every `torch.nn.Conv1d` in `model`, including `model` itself, by `Conv1d` in place.

    Subclasses of `torch.nn.Conv1d` (lazy, quantised, parametrised) are not changed.

    Args:
        model: any module.
        fuse_relu: whether to compute a convolution followed by `nn.ReLU` in an `nn.Sequential` in one pass. The ReLU
            becomes `nn.Identity`, so names do not change. Modules with hooks, and convolutions used in several places,
            are not fused.

    Returns:
        Number of replaced convolutions.
    """
    changed = [module for module in model.modules() if type(module) is nn.Conv1d]
    for module in changed:
        module.__class__ = Conv1d
    if fuse_relu:
        _fuse_relu(model)
    return len(changed)


def _fuse_relu(model: nn.Module) -> None:
    """Fuse each `Conv1d` with a ReLU that directly follows it in a sequence."""
    places = Counter(id(module) for parent in model.modules() for module in parent._modules.values())
    for sequence in (module for module in model.modules() if type(module) is nn.Sequential):
        modules = list(sequence._modules.items())
        for (_, first), (name, second) in itertools.pairwise(modules):
            if not isinstance(first, Conv1d) or type(second) is not nn.ReLU or places[id(first)] > 1:
                continue
            # a hook would see other outputs, or none of the ReLU
            if not any(getattr(module, kind) for module in (first, second) for kind in _HOOKS):
                first.relu = True
                sequence._modules[name] = nn.Identity().train(second.training)


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
    """Compute `torch.nn.functional.conv1d`, with `relu` followed by a ReLU, by the fastest implementation.

    Args:
        x: input `[N, C, L]` or `[C, L]`, of any type and on any device that torch supports.
        weight: filters `[O, C / groups, K]`.
        bias: bias `[O]`, or None.
        stride: samples between outputs.
        padding: number of zeros on either side.
        dilation: samples between weights.
        groups: number of channel groups.
        relu: whether to apply a ReLU to the result.

    Raises:
        RuntimeError: torch's error for incompatible shapes or types.
    """
    # Of a small convolution every microsecond counts: shapes that are torch's are sent there before all other checks.
    if type(x) is Tensor and not torch.compiler.is_compiling():
        bias_shape = None if bias is None else bias.shape
        work = plan(x.shape, weight.shape, bias_shape, stride, padding, dilation, groups, _num_threads())
        if work is None and x.dim() == 2:
            return conv1d(x.unsqueeze(0), weight, bias, stride, padding, dilation, groups, relu).squeeze(0)
        if work is not None:
            learns = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
            learns = learns and torch.is_grad_enabled()
            if ("training" if learns else "forward") in work.by_kernel and _plain(x, weight, bias):
                if not learns:
                    return forward(work, x, weight, bias, relu)
                y: Tensor = _Conv1d.apply(x, weight, bias, work, relu)  # type: ignore[no-untyped-call]
                return y
    y = F.conv1d(x, weight, bias, stride, padding, dilation, groups)
    return F.relu(y) if relu else y


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
        shape, needed = ctx.work.shape, ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            if y is not None:
                dy = torch.ops.aten.threshold_backward.default(dy, y, 0)
            sizes = shape.stride, shape.padding, shape.dilation, shape.groups
            computed = torch_gradients(dy, x, weight, *sizes, needed=needed)
        else:
            computed = gradients(ctx.work, x, weight, dy, needed, y)
        return *computed, None, None


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
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_FLOAT, _STRIDED = torch.float32, torch.strided
# Looked up once: of a small convolution, each attribute of a module on the way counts.
_dispatch_modes, _tracing_state = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state
_num_threads = torch.get_num_threads
_function_transforms, _is_autocast_enabled = (
    torch._C._functorch.peek_interpreter_stack,
    torch._C._is_any_autocast_enabled,
)
