"""The convolution of tensors: it gives what torch gives, everywhere that torch's can stand, and swaps whole models."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from heartlm_tiny_ecg.network import TinyECG
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.convolutions import ALL_BY_KERNEL, ALL_BY_TORCH, imposed
from heartlm.extensions.conv1d import Conv1d, kernel, passes, replace_conv1d, rule
from heartlm.extensions.conv1d.module import conv1d
from heartlm.kernels.library import VARIANTS

CLOSE = 1e-5
"""Largest error, as a share of the largest value, against float64."""


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-30))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are not worth waking threads for, which torch does all the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["kernel", "torch", "rule"])
def who(request: pytest.FixtureRequest) -> Iterator[str]:
    """Everything by the kernel, everything by torch, or as the rule has it."""
    if request.param == "rule":
        yield request.param
        return
    with imposed(ALL_BY_KERNEL if request.param == "kernel" else ALL_BY_TORCH):
        yield request.param


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, int]:
    """Small convolutions of every kind, with at least one output."""
    groups, dilation, kernel_size = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    padding, span = draw(st.integers(0, 5)), (kernel_size - 1) * dilation + 1
    return {
        "batch": draw(st.integers(1, 3)),
        "channels": groups * draw(st.integers(1, 5)),
        "length": draw(st.integers(max(1, span - 2 * padding), 70)),
        "out_channels": groups * draw(st.integers(1, 10)),
        "kernel_size": kernel_size,
        "stride": draw(st.integers(1, 3)),
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }


def tensors(case: dict[str, int]) -> tuple[Tensor, Tensor, Tensor]:
    x = drawn(case["batch"], case["channels"], case["length"], seed=1)
    weight = drawn(case["out_channels"], case["channels"] // case["groups"], case["kernel_size"], seed=2)
    return x, weight, drawn(case["out_channels"], seed=3)


def with_gradients(
    convolve: Callable[..., Tensor], arguments: tuple[Tensor, ...], rest: tuple[Any, ...]
) -> list[Tensor]:
    """The result, and the gradients of its product with fixed numbers."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in arguments]
    y = convolve(*leaves, *rest)
    dy = drawn(*y.shape, seed=4).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


@examples(max_examples=60)
@given(convolutions(), st.booleans(), st.booleans())
def test_result_and_gradients_are_those_of_double_precision(case: dict[str, int], relu: bool, by_kernel: bool) -> None:
    rest = tuple(case[name] for name in ("stride", "padding", "dilation", "groups"))

    def exact(*arguments: Any) -> Tensor:
        y = F.conv1d(*arguments)
        return F.relu(y) if relu else y

    with imposed(ALL_BY_KERNEL if by_kernel else ALL_BY_TORCH):
        found = with_gradients(lambda *arguments: conv1d(*arguments, relu), tensors(case), rest)
    wanted = with_gradients(exact, tuple(tensor.double() for tensor in tensors(case)), rest)
    # A sum near 0 may fall on either side of the ReLU's edge: there the gradients differ by right.
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and one.dtype == torch.float32
        assert relative_error(one, other) < CLOSE


@pytest.mark.parametrize("frozen", list(itertools.product([True, False], repeat=3)))
def test_only_what_is_wanted_gets_a_gradient(who: str, frozen: tuple[bool, bool, bool]) -> None:
    case = {"batch": 2, "channels": 3, "length": 40, "out_channels": 8, "kernel_size": 5, "groups": 1}
    found, exact = tensors(case), [tensor.double() for tensor in tensors(case)]
    for group in (found, exact):
        for tensor, kept in zip(group, frozen, strict=True):
            tensor.requires_grad_(not kept)
    y, wanted = conv1d(*found, padding=2), F.conv1d(*exact, padding=2)
    assert y.requires_grad == (not all(frozen))
    if y.requires_grad:
        y.sum().backward()
        wanted.sum().backward()
    for tensor, other in zip(found, exact, strict=True):
        assert (tensor.grad is None) == (other.grad is None)
        assert tensor.grad is None or other.grad is None or relative_error(tensor.grad, other.grad) < CLOSE


def test_a_gradient_of_the_gradient(who: str) -> None:
    arguments = [tensor.double().requires_grad_() for tensor in (drawn(2, 4, 9), drawn(6, 2, 3), drawn(6))]
    twice, exact = [], []
    for convolve, dtype, into in ((conv1d, torch.float32, twice), (F.conv1d, torch.float64, exact)):
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in arguments]
        y = convolve(*leaves, padding=1, groups=2)
        first = torch.autograd.grad(y.pow(3).sum(), leaves, create_graph=True)
        into.extend(torch.autograd.grad(sum(gradient.pow(2).sum() for gradient in first), leaves))
    for one, other in zip(twice, exact, strict=True):
        assert relative_error(one, other) < CLOSE


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "same": {"padding": "same"},
    "same, uneven": {"padding": "same", "kernel_size": 4},
    "same, dilated": {"padding": "same", "dilation": 3},
    "valid": {"padding": "valid", "stride": 2},
    "circular": {"padding": 2, "padding_mode": "circular"},
    "reflect": {"padding": "same", "padding_mode": "reflect"},
    "groups, no bias": {"groups": 2, "bias": False, "padding": 1},
    "double": {"dtype": torch.float64},
    "bfloat16": {"dtype": torch.bfloat16},
}


def both(**settings: Any) -> tuple[nn.Conv1d, Conv1d]:
    """torch's module and ours, with the same parameters."""
    size = settings.pop("kernel_size", 5)
    theirs, ours = nn.Conv1d(4, 6, size, **settings), Conv1d(4, 6, size, **settings)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("kind", KINDS)
def test_the_module_is_torchs(who: str, kind: str) -> None:
    theirs, ours = both(**KINDS[kind])
    for shape in ((3, 4, 33), (4, 33)):
        x = drawn(*shape).to(theirs.weight.dtype)
        with torch.no_grad():
            assert torch.allclose(ours(x), theirs(x), atol=1e-5)
            assert torch.allclose(ours(x.mT.contiguous().mT), theirs(x), atol=1e-5)
        for module in (theirs, ours):
            module.zero_grad()
            module(x).pow(2).sum().backward()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert one.grad is not None and other.grad is not None
            assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-3)


def test_what_kernels_cannot_see_into_goes_to_torch(who: str) -> None:
    theirs, ours = both(padding=2)
    x = drawn(2, 4, 30)
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x).dtype == torch.bfloat16
    state = dict(ours.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(ours, parameters, (x,))
        return y.pow(2).sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(state, x)
    assert each["weight"].shape == (2, *ours.weight.shape)
    _, tangent = torch.func.jvp(theirs, (x,), (torch.ones_like(x),))
    assert torch.allclose(torch.func.jvp(ours, (x,), (torch.ones_like(x),))[1], tangent, atol=1e-5)
    assert torch.allclose(torch.fx.symbolic_trace(ours)(x), theirs(x), atol=1e-5)
    assert torch.device("meta") == ours.to("meta")(x.to("meta")).device


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traced_modules_compute_by_torch() -> None:
    theirs, ours = both(padding=2)
    x = drawn(2, 4, 30)
    traced = torch.jit.trace(ours, x)
    assert torch.allclose(traced(2 * x), theirs(2 * x), atol=1e-5)


def test_wrong_arguments_get_torchs_words() -> None:
    with pytest.raises(RuntimeError, match="to have 4 channels"):
        Conv1d(4, 6, 3)(drawn(2, 3, 30))
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        Conv1d(4, 6, 7)(drawn(2, 4, 5))
    with pytest.raises(RuntimeError, match="bias"):
        conv1d(drawn(2, 4, 9), drawn(6, 4, 3), drawn(5))
    assert Conv1d(4, 6, 3)(torch.empty(0, 4, 30)).shape == (0, 6, 28)


class Nested(nn.Module):
    """Modules in lists, one of them in two places, one of a class of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.Sequential(nn.Conv1d(4, 4, 5), nn.ReLU())
        )
        self.rest = nn.ModuleList([nn.Conv1d(4, 4, 1) for _ in range(2)])
        self.rest.append(self.rest[0])
        self.tied = nn.Conv1d(4, 4, 1)
        self.tied.weight = self.rest[0].weight
        self.normed = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.rest:
            x = layer(x)
        y: Tensor = self.normed(self.tied(x))
        return y


@pytest.mark.parametrize("fuse_relu", [True, False])
def test_a_model_is_swapped_in_place(who: str, fuse_relu: bool) -> None:
    model, x, seen = Nested(), drawn(3, 2, 30), []
    model.rest[0].register_forward_hook(lambda *_: seen.append(1))
    model.eval()
    before, names, y = list(model.parameters()), list(model.state_dict()), model(x)
    assert replace_conv1d(model, fuse_relu) == 5
    assert replace_conv1d(model, fuse_relu) == 0
    assert [id(one) for one in model.parameters()] == [id(one) for one in before]
    assert list(model.state_dict()) == names
    assert model.rest[2] is model.rest[0] and model.tied.weight is model.rest[0].weight
    assert not any(module.training for module in model.modules())
    seen.clear()
    assert torch.allclose(model(x), y, atol=1e-5)
    assert len(seen) == 2
    assert isinstance(model.first[1], nn.Identity if fuse_relu else nn.ReLU)
    assert "parametrizations.weight.original0" in dict(model.normed.named_parameters())


def test_hooks_and_shared_modules_keep_their_relu() -> None:
    hooked, shared = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU()), nn.Conv1d(2, 2, 3)
    hooked[0].register_forward_hook(lambda *_: None)
    model = nn.Sequential(hooked, shared, nn.ReLU(), shared, nn.Tanh())
    assert replace_conv1d(model, fuse_relu=True) == 2
    assert not any(module.relu for module in model.modules() if isinstance(module, Conv1d))


@pytest.mark.parametrize("training", [True, False])
def test_tiny_ecg_gives_the_same(who: str, training: bool) -> None:
    torch.manual_seed(0)
    model, x, target = TinyECG(), drawn(8, 1, 180), torch.arange(8) % 5
    exact = copy.deepcopy(model).double()
    swapped = copy.deepcopy(model)
    assert replace_conv1d(swapped, fuse_relu=True) == 2
    if not training:
        with torch.inference_mode():
            assert relative_error(swapped(x), exact(x.double())) < CLOSE
        return
    F.cross_entropy(swapped(x), target).backward()
    F.cross_entropy(exact(x.double()), target).backward()
    for one, other in zip(swapped.parameters(), exact.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert relative_error(one.grad, other.grad) < CLOSE


def test_copies_pickles_and_states_are_torchs(who: str) -> None:
    model, x = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Conv1d(4, 2, 3)), drawn(2, 1, 20)
    plain = copy.deepcopy(model)
    replace_conv1d(model, fuse_relu=True)
    y = plain(x)
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(stream, weights_only=False)):
        assert copied[0].relu and isinstance(copied[0], Conv1d)
        assert torch.allclose(copied(x), y, atol=1e-5)
    with torch.no_grad():
        model[0].weight.zero_()
    model.load_state_dict(plain.state_dict())
    assert torch.allclose(model(x), y, atol=1e-5)
    plain.load_state_dict(model.state_dict())


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_models_give_the_same(who: str, dynamic: bool) -> None:
    model, x = nn.Sequential(nn.Conv1d(1, 8, 7, padding=3), nn.ReLU(), nn.Conv1d(8, 4, 5)), drawn(3, 1, 50)
    replace_conv1d(model, fuse_relu=True)
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for length in (50, 44, 36):
        results = []
        for convolve in (model, compiled):
            model.zero_grad()
            y = convolve(x[..., :length])
            y.pow(2).sum().backward()
            results.append([y.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
        for one, other in zip(*results, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_inductor_compiles_it() -> None:
    model, x = nn.Sequential(nn.Conv1d(1, 8, 7, padding=3), nn.ReLU(), nn.Conv1d(8, 4, 5)), drawn(3, 1, 50)
    replace_conv1d(model, fuse_relu=True)
    with torch.no_grad():
        assert torch.allclose(torch.compile(model, fullgraph=True)(x), model(x), atol=1e-5)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_hold_torchs_convolution(strict: bool) -> None:
    model, x = nn.Sequential(nn.Conv1d(1, 8, 7, padding=3), nn.ReLU(), nn.Conv1d(8, 4, 5)), drawn(3, 1, 50)
    replace_conv1d(model, fuse_relu=True)
    sizes = {"input": {0: torch.export.Dim("batch", min=1, max=64)}}
    program = torch.export.export(model.eval(), (x,), dynamic_shapes=sizes, strict=strict)
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert called.count(torch.ops.aten.conv1d.default) == 2
    longer = drawn(5, 1, 50)
    assert torch.allclose(program.module()(longer), model(longer), atol=1e-5)


def test_the_rule_sends_its_boxes_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a box no kernel of that pass is called; outside, all are."""
    called: list[str] = []
    genuine = kernel.prepared

    def noted(shape: kernel.ConvShape, name: str, *rest: Any, **named: Any) -> kernel.Pass:
        act = genuine(shape, name, *rest, **named)
        return lambda *addresses: (called.append(name.removeprefix("conv1d_")), act(*addresses))

    monkeypatch.setattr(kernel, "prepared", noted)
    boxes = {"forward": ({"batch": (0, 2), "mflops": (0, 1)},), "weight_gradient": ({"filters": (6, 6)},)}
    monkeypatch.setattr(rule, "TORCH_IS_FASTER", dict.fromkeys(VARIANTS, boxes))
    for batch, filters, expected in (
        (2, 5, ["input_gradient", "weight_gradient"]),
        (3, 6, ["forward", "input_gradient"]),
    ):
        passes.plan.cache_clear()
        called.clear()
        x, weight = drawn(batch, 4, 20).requires_grad_(), drawn(filters, 4, 3).requires_grad_()
        found = torch.autograd.grad(conv1d(x, weight).sum(), (x, weight))
        exact = torch.autograd.grad(F.conv1d(x, weight).sum(), (x, weight))
        assert called == expected
        assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(found, exact, strict=True))
    monkeypatch.setattr(rule, "TORCH_IS_FASTER", {name: {"training": ({},)} for name in VARIANTS})
    passes.plan.cache_clear()
    called.clear()
    conv1d(x, weight).sum().backward()
    assert called == []
    with torch.no_grad():
        conv1d(x, weight)
    assert called == ["forward"]
    passes.plan.cache_clear()


def test_the_boxes_of_the_rule_are_of_sizes_that_shapes_have() -> None:
    known = rule.sizes(kernel.ConvShape(8, 16, 500, 32, 5, stride=2, padding=2, groups=4))
    assert (known["channels"], known["filters"], known["out_length"]) == (4, 8, 250)
    assert known["mflops"] == pytest.approx(2e-6 * 8 * 32 * 250 * 4 * 5)
    for boxes_of_passes in rule.TORCH_IS_FASTER.values():
        assert set(boxes_of_passes) <= set(rule.PASSES)
        for box in itertools.chain.from_iterable(boxes_of_passes.values()):
            assert box and set(box) <= set(known)
            assert all(low <= high for low, high in box.values())
