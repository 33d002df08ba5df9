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

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import int64, kernel, library, pointer

Doubles = NDArray[np.float64]

PASSES = ("conv1d_forward", "conv1d_input_gradient", "conv1d_weight_gradient")
"""The kernels, in the order in which `conv1d_scratch` counts them."""
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
    def known(self) -> dict[tuple[str, bool, int, str | None], Pass]:
        """What `prepared` gave for this shape."""
        return {}


Pass = Callable[..., None]
"""A kernel for a shape; it takes addresses, and leaves nothing to look up."""


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
    prepared(shape, "conv1d_forward", num_threads, variant, relu)(x, weight, bias, out)


def input_gradient(
    shape: ConvShape, dy: int, weight: int, dx: int, num_threads: int, variant: str | None = None, gate: int = 0
) -> None:
    """Gradient of the input, `[batch, in_channels, length]` at `dx`, from that of the output at `dy`.

    Unless `gate` is 0, it is the address of a forward pass's result with `relu`: where that is not positive, `dy`
    counts as zero.
    """
    prepared(shape, "conv1d_input_gradient", num_threads, variant)(dy, gate, weight, dx)


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
    prepared(shape, "conv1d_weight_gradient", num_threads, variant)(x, dy, gate, dweight, dbias)


def prepared(shape: ConvShape, name: str, num_threads: int, variant: str | None = None, relu: bool = False) -> Pass:
    """One of `PASSES` for a shape: to be called again and again, with the addresses that `forward` and so on list.

    Memory for it to work in is kept by each thread that calls: fresh memory is slow.
    """
    key = (name, relu, num_threads, variant)
    found = shape.known.get(key)
    if found is None:
        found = shape.known[key] = _prepare(shape, name, num_threads, variant, relu)
    return found


def _prepare(shape: ConvShape, name: str, num_threads: int, variant: str | None, relu: bool) -> Pass:
    arguments = (pointer,) * (7 if name == "conv1d_weight_gradient" else 6)
    run = kernel(name, *arguments, variant=variant)
    measure = kernel("conv1d_scratch", pointer, int64, pointer, returns=int64, variant=variant)
    assert run is not None and measure is not None, "no compiled kernels: ask available() before"
    call = (ctypes.c_int64 * 11)(*astuple(shape), relu, num_threads)
    size = 4 * int(measure(call, PASSES.index(name), (ctypes.c_int64 * (2 * shape.kernel_size))()))
    place = ctypes.cast(call, pointer)  # which holds on to it, and is sooner handed over

    def forward(x: int, weight: int, bias: int, out: int) -> None:  # sooner called than with a list
        if _scratch.size < size:
            _scratch.grow(size)
        run(place, x, weight, bias, out, _scratch.address)

    def gradient(*addresses: int) -> None:
        if _scratch.size < size:
            _scratch.grow(size)
        run(place, *addresses, _scratch.address)

    return forward if name == "conv1d_forward" else gradient


class _Scratch(threading.local):
    """Memory of each thread that calls, at the start of a cache line."""

    size, address = -1, 0

    def grow(self, size: int) -> None:
        self.memory = np.empty(size + _LINE, np.uint8)
        self.address = -(-self.memory.ctypes.data // _LINE) * _LINE
        self.size = size


_scratch = _Scratch()


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
