"""Compiled hot loops, each with a plain reference next to it. Works, slower, where nothing could be compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heartlm.kernels.convolution import Conv1d, replace_conv1d

__all__ = ["Conv1d", "replace_conv1d"]


def __getattr__(name: str) -> Any:
    """`Conv1d` and `replace_conv1d`, which need torch, when first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from heartlm.kernels import convolution

    return getattr(convolution, name)
