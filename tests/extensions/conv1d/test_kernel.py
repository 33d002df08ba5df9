"""Compiled convolution: every variant computes what torch does in double precision, forwards and backwards."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn import functional as F  # noqa: N812

from heartlm.extensions.conv1d.kernel import ConvShape, prepared
from heartlm.kernels.library import variants

Floats = NDArray[np.float32]

LARGEST_ERROR = 1e-5
"""Relative to the largest of the exact values."""

examples = settings(derandomize=True, deadline=None, max_examples=100)


@st.composite
def wide_shapes(draw: st.DrawFn) -> ConvShape:
    """Shapes with many channels, most of which are computed by Toom and Cook's way."""
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    kernel_size = draw(st.integers(3, 33))
    return ConvShape(
        batch=draw(st.integers(1, 20)),
        in_channels=groups * draw(st.integers(4, 36)),
        length=draw(st.integers(kernel_size, 150)),
        out_channels=groups * draw(st.integers(7, 36)),
        kernel_size=kernel_size,
        padding=draw(st.integers(0, 40)),
        groups=groups,
    )


@st.composite
def shapes(draw: st.DrawFn) -> ConvShape:
    if draw(st.booleans()):
        return draw(wide_shapes())
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    shape = ConvShape(
        batch=draw(st.integers(1, 5)),
        in_channels=groups * draw(st.integers(1, 9)),
        length=draw(st.integers(1, 90)),
        out_channels=groups * draw(st.integers(1, 21)),
        kernel_size=draw(st.integers(1, 17)),
        stride=draw(st.sampled_from([1, 1, 2, 3, 7])),
        padding=draw(st.integers(0, 12)),
        dilation=draw(st.sampled_from([1, 1, 2, 5])),
        groups=groups,
    )
    assume(shape.dilation * (shape.kernel_size - 1) < shape.length + 2 * shape.padding)
    return shape


def every_kind_of_shape(test):  # type: ignore[no-untyped-def]
    """Drawn shapes, and those that are special: long rows, one output, wide channels, stretches of several pieces."""
    special = [
        ConvShape(1, 1, 1, 1, 1),
        ConvShape(2, 1, 500, 1, 7),
        ConvShape(2, 1, 500, 1, 32),
        ConvShape(3, 1, 187, 16, 7, padding=3),
        ConvShape(3, 16, 187, 16, 5, padding=2),
        ConvShape(1, 2, 7, 3, 7),
        ConvShape(2, 3, 9, 5, 3, stride=4, padding=7, dilation=3),
        ConvShape(1, 4, 6, 4, 2, padding=9),
        ConvShape(1, 64, 700, 40, 5, padding=2),
        ConvShape(2, 32, 300, 33, 31, padding=15),
        ConvShape(1, 8, 3600, 8, 15, padding=7),
        ConvShape(33, 12, 128, 20, 3, padding=1),
        ConvShape(3, 40, 100, 48, 3, padding=1),
        ConvShape(2, 40, 100, 64, 3, padding=2, groups=2),
        ConvShape(17, 32, 5, 32, 4, padding=9),
        ConvShape(1, 4, 4000, 8, 3, stride=2, dilation=20),
        ConvShape(2, 64, 60, 64, 3, padding=1, groups=64),
    ]
    for shape in special:
        test = example(shape)(test)
    return examples(given(shapes())(test))


def numbers(shape: tuple[int, ...], seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def x_of(shape: ConvShape) -> Floats:
    return numbers((shape.batch, shape.in_channels, shape.length), 1)


def weight_of(shape: ConvShape) -> Floats:
    return numbers((shape.out_channels, shape.in_channels // shape.groups, shape.kernel_size), 2)


def dy_of(shape: ConvShape) -> Floats:
    return numbers((shape.batch, shape.out_channels, shape.out_length), 3)


def gates_of(shape: ConvShape) -> tuple[tuple[Floats | None, Floats], ...]:
    """No gate and one, and the output's gradient behind each."""
    dy = dy_of(shape)
    gate = numbers(dy.shape, 5).clip(min=0)
    return (None, dy), (gate, np.where(gate > 0, dy, np.float32(0)))


def at(array: Floats | None) -> int:
    return 0 if array is None else array.ctypes.data


def empty(like: tuple[int, ...]) -> tuple[Floats, Floats]:
    """An array of NaN with as much around it, which must stay, as a vector is wide."""
    around = np.full(int(np.prod(like)) + 32, np.nan, np.float32)
    around[:16] = around[-16:] = 7.0
    return around, around[16:-16].reshape(like)


def assert_close(found: Floats, around: Floats, expected: NDArray[np.float64], what: str) -> None:
    assert (around[:16] == 7.0).all() and (around[-16:] == 7.0).all(), f"{what}: written beyond the end"
    assert found.shape == expected.shape
    error = np.abs(found - expected).max() / max(float(np.abs(expected).max()), 1e-30)
    assert error <= LARGEST_ERROR, f"{what}: {error}"


def run_forward(shape: ConvShape, bias: Floats | None, relu: bool, threads: int, variant: str) -> tuple[Floats, Floats]:
    x, weight = x_of(shape), weight_of(shape)
    around, out = empty((shape.batch, shape.out_channels, shape.out_length))
    run = prepared(shape, "conv1d_forward", threads, variant, relu)
    run(at(x), at(weight), at(bias), out.ctypes.data)
    return around, out


def reference(shape: ConvShape, bias: Floats | None, relu: bool) -> torch.Tensor:
    """torch's result in double precision."""
    x, weight = torch.from_numpy(x_of(shape)).double(), torch.from_numpy(weight_of(shape)).double()
    added = None if bias is None else torch.from_numpy(bias).double()
    y = F.conv1d(x, weight, added, shape.stride, shape.padding, shape.dilation, shape.groups)
    return F.relu(y) if relu else y


def reference_gradients(shape: ConvShape, dy: Floats) -> list[NDArray[np.float64]]:
    """torch's gradients of x, weight and bias in double precision."""
    leaves = [
        torch.from_numpy(part).double() for part in (x_of(shape), weight_of(shape), numbers((shape.out_channels,), 4))
    ]
    for leaf in leaves:
        leaf.requires_grad_()
    y = F.conv1d(*leaves, shape.stride, shape.padding, shape.dilation, shape.groups)
    return [gradient.numpy() for gradient in torch.autograd.grad(y, leaves, torch.from_numpy(dy).double())]


@every_kind_of_shape
def test_forward(shape: ConvShape) -> None:
    bias = numbers((shape.out_channels,), 4) if shape.length % 2 else None
    relu = shape.kernel_size % 2 == 0
    expected = reference(shape, bias, relu).numpy()
    for variant in variants():
        for threads in (1, 2):
            around, out = run_forward(shape, bias, relu, threads, variant)
            assert_close(out, around, expected, f"{variant}, {threads} threads")


@every_kind_of_shape
def test_input_gradient(shape: ConvShape) -> None:
    dy, weight = dy_of(shape), weight_of(shape)
    for gate, behind in gates_of(shape):
        expected = reference_gradients(shape, behind)[0]
        for variant, threads in itertools.product(variants(), (1, 2)):
            around, dx = empty((shape.batch, shape.in_channels, shape.length))
            run = prepared(shape, "conv1d_input_gradient", threads, variant)
            run(at(dy), at(gate), at(weight), dx.ctypes.data)
            assert_close(dx, around, expected, f"{variant}, {threads} threads, gate {gate is not None}")


@every_kind_of_shape
def test_weight_gradient(shape: ConvShape) -> None:
    x, dy = x_of(shape), dy_of(shape)
    for gate, behind in gates_of(shape):
        _, expected, expected_bias = reference_gradients(shape, behind)
        for variant, threads in itertools.product(variants(), (1, 2)):
            around, dweight = empty(weight_of(shape).shape)
            around_bias, dbias = empty((shape.out_channels,))
            bias_at = dbias.ctypes.data if shape.batch % 3 else 0
            run = prepared(shape, "conv1d_weight_gradient", threads, variant)
            run(at(x), at(dy), at(gate), dweight.ctypes.data, bias_at)
            what = f"{variant}, {threads} threads, gate {gate is not None}"
            assert_close(dweight, around, expected, what)
            if bias_at:
                assert_close(dbias, around_bias, expected_bias, f"{what}, bias")


def test_results_do_not_depend_on_what_was_computed_before() -> None:
    """Scratch is used again: what a larger call left there must not show."""
    small = ConvShape(2, 5, 77, 9, 7, padding=4)
    first = [run_forward(small, None, False, 1, variant)[1] for variant in variants()]
    large = ConvShape(4, 32, 500, 32, 9, padding=4)
    for variant, expected in zip(variants(), first, strict=True):
        run_forward(large, None, False, 1, variant)
        np.testing.assert_array_equal(run_forward(small, None, False, 1, variant)[1], expected)


def test_big_work_on_two_threads_is_the_same_as_on_one() -> None:
    shape = ConvShape(8, 16, 500, 16, 5, padding=2)
    for variant in variants():
        one, two = (run_forward(shape, None, True, threads, variant)[1] for threads in (1, 2))
        np.testing.assert_array_equal(one, two)


def test_out_length_is_that_of_torch() -> None:
    shape = ConvShape(1, 1, 20, 1, 3, stride=3, padding=2, dilation=4)
    for length in range(8, 40):
        shape = dataclasses.replace(shape, length=length)
        assert reference(shape, None, False).shape[2] == shape.out_length
