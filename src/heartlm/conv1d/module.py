"""`Conv1d`, the drop-in for `torch.nn.Conv1d` that convolves by compiled kernels on CPUs, and models changed to it.

    replace_conv1d(model, fuse_relu=True)

Parameters, names of the state dictionary, hooks, training mode and whoever else holds the modules stay as they were: a
module changes its class and nothing else. It works wherever torch's does; where the kernels do not, torch computes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.conv1d.function import conv1d


class Conv1d(nn.Conv1d):
    """`torch.nn.Conv1d` by the fastest convolution at hand; the same arguments, parameters and results up to rounding.

    Attributes:
        relu: whether the result is cut off below 0 in the same pass; `replace_conv1d` sets it.
    """

    relu: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of `[N, C, L]` or `[C, L]`; `[N, O, M]` or `[O, M]`."""
        x, padding = input, self.padding
        if self.padding_mode != "zeros":
            x, amount = F.pad(x, self._reversed_padding_repeated_twice, self.padding_mode), 0
        elif not isinstance(padding, str):
            amount = padding[0]
        else:
            left, right = self._reversed_padding_repeated_twice
            x, amount = (x, left) if left == right else (F.pad(x, (left, right)), 0)
        # Half a microsecond sooner than as attributes; weights that a hook computes are attributes only.
        held: dict[str, Any] = self._parameters
        both = "weight" in held and "bias" in held
        weight, bias = (held["weight"], held["bias"]) if both else (self.weight, self.bias)
        return conv1d(x, weight, bias, self.stride[0], amount, self.dilation[0], self.groups, self.relu)

    def extra_repr(self) -> str:
        """What torch says of the module, and whether it ends in a ReLU."""
        said: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return said + ", relu=True" if self.relu else said

    def __prepare_scriptable__(self) -> nn.Module:
        """For `torch.jit.script`, which cannot read this class: torch's own modules with the same parameters."""
        plain = nn.Conv1d.__new__(nn.Conv1d)
        plain.__dict__.update(self.__dict__)
        return nn.Sequential(plain, nn.ReLU()) if self.relu else plain


def replace_conv1d(model: nn.Module, fuse_relu: bool = False) -> int:
    """Change every `torch.nn.Conv1d` of `model`, itself included, to `Conv1d`, in place.

    Subclasses with a class of their own (lazy, quantised, parametrised) are left as they are.

    Args:
        model: any module.
        fuse_relu: also let a convolution followed by `nn.ReLU` in an `nn.Sequential` do both in one pass. The ReLU
            becomes `nn.Identity`, so names stay. Modules with hooks, and convolutions that stand in several places,
            are left as they are.

    Returns:
        How many convolutions were changed.
    """
    changed = [module for module in model.modules() if type(module) is nn.Conv1d]
    for module in changed:
        module.__class__ = Conv1d
    if fuse_relu:
        _fuse_relu(model)
    return len(changed)


def _fuse_relu(model: nn.Module) -> None:
    """Join each `Conv1d` with the ReLU right behind it in a sequence."""
    places = Counter(id(module) for parent in model.modules() for module in parent._modules.values())
    for sequence in (module for module in model.modules() if type(module) is nn.Sequential):
        modules = list(sequence._modules.items())
        for (_, first), (name, second) in itertools.pairwise(modules):
            if not isinstance(first, Conv1d) or type(second) is not nn.ReLU or places[id(first)] > 1:
                continue
            if not _hooked(first) and not _hooked(second):
                first.relu = True
                sequence._modules[name] = nn.Identity().train(second.training)


def _hooked(module: nn.Module) -> bool:
    """Whether someone looks at what goes into or out of `module`."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for kind in kinds)


__all__ = ["Conv1d", "conv1d", "replace_conv1d"]
