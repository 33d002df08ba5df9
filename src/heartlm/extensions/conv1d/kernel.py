"""One-dimensional convolution of float32 signals, forwards and backwards; see c/conv1d.h.

Functions take addresses of contiguous float32 arrays, so that tensors and NumPy arrays are computed on where they lie:
signals `[batch, channels, length]`, weights `[out_channels, in_channels / groups, kernel_size]`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass

import numpy as np

from heartlm.kernels.library import kernel

PASSES = ("conv1d_forward", "conv1d_input_gradient", "conv1d_weight_gradient")
"""The kernels, in the order in which `conv1d_scratch` counts them, and the addresses that each takes:

- forward: x, weight, bias `[out_channels]` or 0 for none, out `[batch, out_channels, out_length]`;
- input gradient: dy as out, gate, weight, dx as x;
- weight gradient: x, dy, gate, dweight, dbias or 0 where it is not wanted.

Unless gate is 0, it is the address of a forward pass's result with `relu`: where that is not positive, dy counts as 0.
"""
# Bytes of a cache line; scratch begins at one.
_LINE = 64


@dataclass(frozen=True)
class ConvShape:
    """All sizes of a convolution, named as in `torch.nn.Conv1d`; `length` is of the input, without padding."""

    batch: int
    in_channels: int
    length: int
    out_channels: int
    kernel_size: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    @property
    def out_length(self) -> int:
        """Number of outputs per row."""
        return (self.length + 2 * self.padding - self.dilation * (self.kernel_size - 1) - 1) // self.stride + 1


Pass = Callable[..., None]
"""A kernel for a shape; it takes addresses, and leaves nothing to look up."""


def prepared(shape: ConvShape, name: str, num_threads: int, variant: str | None = None, relu: bool = False) -> Pass:
    """Return one of `PASSES` for a shape, as a function of addresses that can be called repeatedly.

    Memory for it to work in is kept by each thread that calls: fresh memory is slow.

    Args:
        shape: shape of the convolution.
        name: name of the kernel.
        num_threads: maximum number of threads; small shapes use one.
        variant: variant of the kernel, by default the fastest.
        relu: whether the forward pass sets negative outputs to zero.
    """
    run = kernel(name, variant, by_address=True)
    measure = kernel("conv1d_scratch", variant, by_address=True)
    call = (ctypes.c_int64 * 11)(*astuple(shape), relu, num_threads)
    # `conv1d_scratch` counts float32 numbers, `size` bytes.
    size = 4 * int(measure(call, PASSES.index(name), (ctypes.c_int64 * (2 * shape.kernel_size))()))
    call_address = ctypes.cast(call, ctypes.c_void_p)  # which holds on to it, and is sooner handed over

    def run_pass(*addresses: int) -> None:
        if _scratch.size < size:
            _scratch.grow(size)
        run(call_address, *addresses, _scratch.address)

    return run_pass


class _Scratch(threading.local):
    """Memory of each thread that calls, at the start of a cache line."""

    size, address = -1, 0

    def grow(self, size: int) -> None:
        self.memory = np.empty(size + _LINE, np.uint8)
        self.address = -(-self.memory.ctypes.data // _LINE) * _LINE
        self.size = size


_scratch = _Scratch()
