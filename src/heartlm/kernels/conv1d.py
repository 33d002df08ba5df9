"""One-dimensional convolution of float32 signals, forwards and backwards; see c/conv1d.h.

Functions take addresses of contiguous float32 arrays, so that tensors and NumPy arrays are computed on where they lie:
signals `[batch, channels, length]`, weights `[out_channels, in_channels / groups, kernel_size]`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import int32, int64, kernel, library, pointer

Doubles = NDArray[np.float64]

_CALLS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "conv1d_forward": (0, (*(pointer,) * 5, int32, int64, pointer)),
    "conv1d_input_gradient": (1, (*(pointer,) * 5, int64, pointer)),
    "conv1d_weight_gradient": (2, (*(pointer,) * 6, int64, pointer)),
}
"""What `conv1d_scratch` calls each kernel, and the types of its arguments."""
_LINE = 64
"""Bytes of a cache line; scratch begins at one."""


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
        """How many outputs a row has."""
        return (self.length + 2 * self.padding - self.dilation * (self.kernel_size - 1) - 1) // self.stride + 1

    @cached_property
    def prepared(self) -> dict[tuple[str, int, str | None], tuple[Callable[..., Any], int]]:
        """Kernel and bytes of scratch of each call of this shape before, by kernel, threads and variant."""
        return {}

    @cached_property
    def fields(self) -> ctypes.Array[ctypes.c_int64]:
        """The sizes as the kernel reads them."""
        return (ctypes.c_int64 * 9)(*astuple(self))


def available() -> bool:
    """Whether there is a compiled library; without one these functions must not be called, but for the references."""
    return library() is not None


def forward(
    shape: ConvShape,
    x: int,
    weight: int,
    bias: int,
    out: int,
    relu: bool,
    num_threads: int,
    variant: str | None = None,
) -> None:
    """Convolve, add the bias and, if `relu`, keep what is positive.

    Args:
        shape: of the convolution.
        x: address of the input.
        weight: address of the weights.
        bias: address of `[out_channels]` numbers, or 0 for none.
        out: address of the output, `[batch, out_channels, out_length]`.
        relu: whether negative outputs become zero.
        num_threads: how many threads may work; small work wakes none.
        variant: of the kernel; by default the best.
    """
    run, scratch = _prepared(shape, "conv1d_forward", num_threads, variant)
    run(shape.fields, x, weight, bias or None, out, relu, num_threads, scratch)


def input_gradient(
    shape: ConvShape, dy: int, weight: int, dx: int, num_threads: int, variant: str | None = None, gate: int = 0
) -> None:
    """Gradient of the input, `[batch, in_channels, length]` at `dx`, from that of the output at `dy`.

    Unless `gate` is 0, it is the address of a forward pass's result with `relu`: where that is not positive, `dy`
    counts as zero.
    """
    run, scratch = _prepared(shape, "conv1d_input_gradient", num_threads, variant)
    run(shape.fields, dy, gate or None, weight, dx, num_threads, scratch)


def weight_gradient(
    shape: ConvShape,
    x: int,
    dy: int,
    dweight: int,
    dbias: int,
    num_threads: int,
    variant: str | None = None,
    gate: int = 0,
) -> None:
    """Gradients of the weights and, unless `dbias` is 0, of the bias, from the input and the output's gradient.

    `gate` is as of `input_gradient`.
    """
    run, scratch = _prepared(shape, "conv1d_weight_gradient", num_threads, variant)
    run(shape.fields, x, dy, gate or None, dweight, dbias or None, num_threads, scratch)


def _prepared(shape: ConvShape, name: str, num_threads: int, variant: str | None) -> tuple[Callable[..., Any], int]:
    """A kernel, and the address of memory for it to work in, kept by each thread that calls: fresh memory is slow."""
    call = (name, num_threads, variant)
    try:
        run, size = shape.prepared[call]
    except KeyError:
        run, size = shape.prepared[call] = (_function(name, variant), _scratch_bytes(shape, *call))
    if _scratch.size < size:
        _scratch.grow(size)
    return run, _scratch.address


class _Scratch(threading.local):
    """Memory of each thread that calls, at the start of a cache line."""

    size, address = -1, 0

    def grow(self, size: int) -> None:
        self.memory = np.empty(size + _LINE, np.uint8)
        self.address = -(-self.memory.ctypes.data // _LINE) * _LINE
        self.size = size


_scratch = _Scratch()


def _function(name: str, variant: str | None) -> Callable[..., Any]:
    function = kernel(name, *_CALLS[name][1], variant=variant)
    assert function is not None, "no compiled kernels: ask available() before"
    return function


def _scratch_bytes(shape: ConvShape, name: str, num_threads: int, variant: str | None) -> int:
    lists = (ctypes.c_int64 * (2 * shape.kernel_size))()
    measure = kernel("conv1d_scratch", pointer, int64, int64, pointer, returns=int64, variant=variant)
    assert measure is not None
    return 4 * int(measure(shape.fields, _CALLS[name][0], num_threads, lists))


def reference_forward(shape: ConvShape, x: Doubles, weight: Doubles, bias: Doubles | None, relu: bool) -> Doubles:
    """The same in NumPy."""
    groups, taps = shape.groups, shape.kernel_size
    windows = _windows(shape, x)
    filters = weight.reshape(groups, -1, shape.in_channels // groups, taps)
    out: Doubles = np.einsum("ngitk,goik->ngot", windows, filters, optimize=True)
    out = out.reshape(shape.batch, shape.out_channels, shape.out_length)
    if bias is not None:
        out = out + bias[:, None]
    return np.maximum(out, 0.0) if relu else out


def reference_input_gradient(shape: ConvShape, dy: Doubles, weight: Doubles) -> Doubles:
    """The same in NumPy."""
    groups = shape.groups
    filters = weight.reshape(groups, -1, shape.in_channels // groups, shape.kernel_size)
    slopes = dy.reshape(shape.batch, groups, -1, shape.out_length)
    dx = np.zeros((shape.batch, shape.in_channels, shape.length + 2 * shape.padding))
    for tap in range(shape.kernel_size):
        first = tap * shape.dilation
        part = np.einsum("ngot,goi->ngit", slopes, filters[..., tap], optimize=True)
        last = first + (shape.out_length - 1) * shape.stride + 1
        dx[:, :, first : last : shape.stride] += part.reshape(shape.batch, shape.in_channels, -1)
    return dx[:, :, shape.padding : shape.padding + shape.length]


def reference_weight_gradient(shape: ConvShape, x: Doubles, dy: Doubles) -> tuple[Doubles, Doubles]:
    """The same in NumPy: gradients of the weights and of the bias."""
    slopes = dy.reshape(shape.batch, shape.groups, -1, shape.out_length)
    dweight: Doubles = np.einsum("ngitk,ngot->goik", _windows(shape, x), slopes, optimize=True)
    return dweight.reshape(shape.out_channels, -1, shape.kernel_size), dy.sum(axis=(0, 2))


def _windows(shape: ConvShape, x: Doubles) -> Doubles:
    """What each output sees, `[batch, groups, in_channels / groups, out_length, kernel_size]`."""
    padded = np.pad(x, ((0, 0), (0, 0), (shape.padding, shape.padding)))
    place = np.arange(shape.out_length)[:, None] * shape.stride + np.arange(shape.kernel_size) * shape.dilation
    windows: Doubles = padded[:, :, place]
    return windows.reshape(shape.batch, shape.groups, -1, *place.shape)
