"""One-dimensional convolution on CPUs: compiled loops, a drop-in for torch, and the rule that chooses between them."""

from heartlm.extensions.conv1d.module import Conv1d, replace_conv1d

__all__ = ["Conv1d", "replace_conv1d"]
