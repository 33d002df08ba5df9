"""Shapes of convolutions that ECG networks have, and the ways of computing them on a CPU.

Every rival allocates its result, as layers of a network do, from memory that the process keeps: the page faults of
fresh memory would cost all alike, and hide who computes faster. Rivals in another layout get their input in it, as if
the whole network were so.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from heartlm.extensions.conv1d import passes
from heartlm.extensions.conv1d.kernel import ConvShape
from heartlm.extensions.conv1d.module import Conv1d, conv1d, replace_conv1d
from heartlm.extensions.conv1d.passes import gradients, plan
from heartlm.extensions.conv1d.rule import PASSES
from heartlm.models.tiny_ecg import TinyECG
from lab.measure import Spread, seconds

TURN_S = 2e-3
"""Short work is repeated until a turn takes so long."""

PASS_S, PASS_ROUNDS = 4e-4, 9
"""Of a turn of one pass, and how many turns each has."""

CHOICES: tuple[tuple[int, ...], ...] = (
    (1, 2, 4, 8, 12, 16, 32, 64),
    (8, 16, 32, 64, 128),
    (128, 180, 250, 360, 500, 720, 1000, 1800, 2500, 3600),
    (3, 5, 7, 9, 11, 15, 17, 25, 31),
    (1, 2, 4, 8, 16, 32, 64, 128, 256),
)
"""Channels in and out, lengths, widths of kernels and batches of the ECG grid."""

STUDY_GRID: tuple[ConvShape, ...] = tuple(
    ConvShape(batch, 1, 500, 1, size) for size in (3, 5, 7, 32) for batch in (64, 128, 256, 512)
)
"""Of the CrossScale study: one channel to one, without padding."""


def ecg_grid(num: int, most_flops: float, seed: int = 0) -> tuple[ConvShape, ...]:
    """Layers that ECG networks have: half of them corners, as long as there are any, the others drawn in between.

    Args:
        num: how many.
        most_flops: of a forward pass; a shape with more gets a smaller batch, and where that does not help, another.
        seed: of what is drawn.
    """
    ends = [(values[0], values[-1]) for values in CHOICES]
    corners = np.stack(np.meshgrid(*ends, indexing="ij"), axis=-1).reshape(-1, len(CHOICES))
    draws = np.random.default_rng(seed)
    bounded = [_bounded(corner, most_flops) for corner in draws.permutation(corners).tolist()]
    found = dict.fromkeys([shape for shape in bounded if shape is not None][: (num + 1) // 2])
    while len(found) < num:
        drawn = _bounded([int(draws.choice(values)) for values in CHOICES], most_flops)
        if drawn is not None:
            found[drawn] = None
    return tuple(found)


def layers_between(num: int, most_flops: float, seed: int) -> tuple[ConvShape, ...]:
    """Layers of sizes between the grid's, whose times no rule was fitted to; a third of them with stride 2.

    Args:
        num: how many.
        most_flops: see `ecg_grid`.
        seed: of the draw; sizes are drawn evenly on the logarithm, kernels are of odd width.
    """
    draws, found = np.random.default_rng(seed), dict[ConvShape, None]()
    while len(found) < num:
        in_channels, out_channels, length, size, batch = (
            round(math.exp(draws.uniform(math.log(values[0]), math.log(values[-1])))) for values in CHOICES
        )
        drawn = _bounded((in_channels, out_channels, length, size | 1, batch), most_flops)
        stride = int(draws.choice([1, 1, 2]))
        if drawn is not None and length not in CHOICES[2]:
            found[replace(drawn, stride=stride)] = None
    return tuple(found)


def _bounded(sizes: Sequence[int], most_flops: float) -> ConvShape | None:
    """The shape, "same" padded, with no more work than allowed; None if one recording alone is more."""
    in_channels, out_channels, length, size, batch = sizes
    one = flops(ConvShape(1, in_channels, length, out_channels, size, padding=size // 2))
    batch = min(batch, int(most_flops / one))
    return ConvShape(batch, in_channels, length, out_channels, size, padding=size // 2) if batch else None


def flops(shape: ConvShape) -> float:
    """Multiplications and additions of one pass."""
    taps = shape.in_channels // shape.groups * shape.kernel_size
    return 2.0 * shape.batch * shape.out_channels * shape.out_length * taps


@dataclass(frozen=True)
class Case:
    """What all rivals convolve.

    Attributes:
        shape: of the convolution.
        x: input.
        dy: gradient of the result.
        layer: torch's, with the weights.
    """

    shape: ConvShape
    x: Tensor
    dy: Tensor
    layer: nn.Conv1d


def settings_of(shape: ConvShape) -> dict[str, Any]:
    """What a shape has besides its sizes, as arguments of torch's convolutions."""
    return {name: getattr(shape, name) for name in ("stride", "padding", "dilation", "groups")}


def case_of(shape: ConvShape, bias: bool = True) -> Case:
    """Fixed random numbers of a shape."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape.batch, shape.in_channels, shape.length, generator=generator)
    dy = torch.randn(shape.batch, shape.out_channels, shape.out_length, generator=generator)
    layer = nn.Conv1d(shape.in_channels, shape.out_channels, shape.kernel_size, bias=bias, **settings_of(shape))
    return Case(shape, x, dy, layer)


Layer = Callable[[Tensor], Tensor]
Rivals = dict[str, tuple[Layer, Tensor, Tensor]]
"""By name: what convolves, and the input and the gradient of the result in the layout that it likes."""


def ours(case: Case) -> Conv1d:
    """Our layer with the weights of the case."""
    shape, bias = case.shape, case.layer.bias is not None
    layer = Conv1d(shape.in_channels, shape.out_channels, shape.kernel_size, bias=bias, **settings_of(shape))
    layer.load_state_dict(case.layer.state_dict())
    return layer


def rivals_of(case: Case, compiled: bool, training: bool) -> Rivals:
    """Ours, torch's, torch's in two dimensions with channels last, compiled, and packed weights in either layout."""
    x, dy = case.x, case.dy
    found: Rivals = {"heartlm": (ours(case), x, dy), "eager": (case.layer, x, dy)}
    flat = [each.unsqueeze(2).contiguous(memory_format=torch.channels_last) for each in (x, dy)]
    found["channels_last"] = (_as_conv2d(case.layer), flat[0], flat[1])
    if compiled:
        torch.compiler.reset()
        found["compiled"] = (torch.compile(case.layer), x, dy)
    if not training:
        packed = _packed(case)
        found["packed"] = (packed, x.unsqueeze(2), dy)
        found["packed, channels last"] = (packed, flat[0], dy)
    return found


def _as_conv2d(layer: nn.Conv1d) -> nn.Conv2d:
    """The same layer over signals of height 1, channels last."""
    sizes = {name: (height, getattr(layer, name)[0]) for name, height in (("stride", 1), ("dilation", 1))}
    padding = (0, int(layer.padding[0]))
    size = (1, layer.kernel_size[0])
    biased = layer.bias is not None
    flat = nn.Conv2d(layer.in_channels, layer.out_channels, size, padding=padding, bias=biased, **sizes)  # type: ignore[arg-type]
    with torch.no_grad():
        flat.weight.copy_(layer.weight.unsqueeze(2))
        if layer.bias is not None and flat.bias is not None:
            flat.bias.copy_(layer.bias)
    return flat.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _packed(case: Case) -> Layer:
    """oneDNN with the weights in the layout that it chose for the shape; forward only."""
    shape, layer = case.shape, case.layer
    where: tuple[Any, ...] = [0, shape.padding], [1, shape.stride], [1, shape.dilation], shape.groups
    reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
    weight = reorder(layer.weight.detach().unsqueeze(2).to_mkldnn(), *where, [*case.x.unsqueeze(2).shape])
    convolve = torch.ops.mkldnn._convolution_pointwise.default
    bias = None if layer.bias is None else layer.bias.detach()
    return lambda x: convolve(x, weight, bias, *where, "none", [], "")


def inference(layer: Layer, x: Tensor) -> Callable[[], object]:
    """One turn of a forward pass."""

    def turn() -> object:
        with torch.no_grad():
            return layer(x)

    return turn


def training(layer: Layer, x: Tensor, dy: Tensor) -> Callable[[], object]:
    """One turn of a forward and a backward pass, with the gradients of input, weights and bias."""
    x = x.detach().requires_grad_()
    assert isinstance(layer, nn.Module)
    wanted = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x), wanted, dy)


def timed_turns(turns: dict[str, Callable[[], object]], rounds: int) -> dict[str, Spread]:
    """Seconds of a call of each, over `rounds` in which all take turns.

    A turn repeats short work `TURN_S` long, as often for all, after doing it once for the caches, which hold what the
    rival before has left; every other round goes through the rivals backwards.
    """
    slowest = max(min(seconds(turn) for _ in range(3)) for turn in turns.values())
    repeats = max(1, round(TURN_S / slowest))
    times: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        for name, turn in (turns.items(), reversed(turns.items()))[number % 2]:
            turn()
            times[name].append(seconds(lambda turn=turn: _repeat(turn, repeats)) / repeats)  # type: ignore[misc]
    return {name: Spread.of(taken) for name, taken in times.items()}


def _repeat(turn: Callable[[], object], times: int) -> None:
    for _ in range(times):
        turn()


def race(shape: ConvShape, rounds: int, compiled: bool, train: bool) -> dict[str, Spread]:
    """Seconds of each rival at `shape`, whose results must agree first."""
    case = case_of(shape)
    rivals = rivals_of(case, compiled, train)
    check(case, rivals.values())
    if train:
        return timed_turns({name: training(layer, x, dy) for name, (layer, x, dy) in rivals.items()}, rounds)
    return timed_turns({name: inference(layer, x) for name, (layer, x, _) in rivals.items()}, rounds)


def check(case: Case, rivals: Iterable[tuple[Layer, Tensor, Tensor]]) -> None:
    """See that every rival computes the same: a fast wrong answer is no rival."""
    with torch.no_grad():
        bias = None if case.layer.bias is None else case.layer.bias.double()
        exact = nn.functional.conv1d(case.x.double(), case.layer.weight.double(), bias, **settings_of(case.shape))
        for layer, x, _ in rivals:
            error = (layer(x).reshape(exact.shape) - exact).abs().max() / exact.abs().max()
            assert error < 1e-5, (case.shape, layer, float(error))


def described(shape: ConvShape) -> str:
    """A shape in a few words."""
    stride = f", stride {shape.stride}" if shape.stride > 1 else ""
    return f"{shape.batch} × {shape.in_channels}→{shape.out_channels}, L {shape.length}, K {shape.kernel_size}{stride}"


def tiny_ecg_turns(batch: int, length: int, train: bool) -> dict[str, Callable[[], object]]:
    """Turns of TinyECG with our layers and with torch's: its logits, or a step of SGD."""
    torch.manual_seed(0)
    theirs = TinyECG()
    mine = copy.deepcopy(theirs)
    replace_conv1d(mine, fuse_relu=True)
    x, target = torch.randn(batch, 1, length), torch.randint(5, (batch,))
    if train:
        return {name: _step(model, x, target) for name, model in (("heartlm", mine), ("eager", theirs))}
    return {"heartlm": inference(mine.eval(), x), "eager": inference(theirs.eval(), x)}


def _step(model: nn.Module, x: Tensor, target: Tensor) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def turn() -> None:
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return turn


def turns(case: Case) -> dict[str, Callable[[], object]]:
    """Each pass over a case as autograd calls it; whose it is decides the rule in force."""
    shape, x, dy = case.shape, case.x, case.dy
    weight, bias = case.layer.weight.detach(), case.layer.bias
    assert bias is not None
    bias = bias.detach()
    learning = [tensor.detach().requires_grad_() for tensor in (x, weight, bias)]
    rest = settings_of(shape).values()
    work = plan(x.shape, weight.shape, bias.shape, *rest, torch.get_num_threads())
    assert work is not None
    return {
        "forward": lambda: conv1d(x, weight, bias, *rest),
        "input_gradient": lambda: gradients(work, x, weight, dy, (True, False, False)),
        "weight_gradient": lambda: gradients(work, x, weight, dy, (False, True, True)),
        "training": lambda: torch.autograd.grad(conv1d(*learning, *rest), learning, dy),  # type: ignore[arg-type]
    }


ALL_BY_KERNEL, ALL_BY_TORCH = frozenset(PASSES), frozenset[str]()


@contextmanager
def imposed(choice: frozenset[str]) -> Iterator[None]:
    """Let `choice` hold for every shape."""
    passes.plan.cache_clear()
    with mock.patch.object(passes, "fastest", lambda *_: choice):
        yield
    passes.plan.cache_clear()


def fastest(case: Case) -> dict[str, tuple[float, float]]:
    """Seconds of the kernel and of torch in each pass."""
    found: dict[str, list[list[float]]] = {name: [[], []] for name in PASSES}
    for number in range(PASS_ROUNDS + 1):
        for who, choice in enumerate((ALL_BY_KERNEL, ALL_BY_TORCH)):
            with imposed(choice):
                for name, turn in turns(case).items():
                    once = min(seconds(turn), seconds(turn))
                    repeats = max(1, round(PASS_S / once))
                    taken = seconds(partial(_repeat, turn, repeats)) / repeats
                    if number:
                        found[name][who].append(taken)
    return {name: (min(kernel), min(theirs)) for name, (kernel, theirs) in found.items()}
