"""One-dimensional convolution on CPUs: compiled loops, a drop-in for torch, and the rule that chooses between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heartlm.conv1d.module import Conv1d, replace_conv1d

__all__ = ["Conv1d", "replace_conv1d"]


def __getattr__(name: str) -> Any:
    """`Conv1d` and `replace_conv1d`, which need torch, when first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from heartlm.conv1d import module

    return getattr(module, name)
