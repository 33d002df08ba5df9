"""The fused parts of a block: every variant gives what torch gives, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from heartlm.kernels import library
from heartlm.kernels.library import variants
from heartlm.models import fused
from heartlm.models.dropout import dropped
from heartlm.models.transformer import rotary_angles

Function = Callable[..., Tensor]


def attention(causal: bool, qkv: Tensor) -> Tensor:
    heads, width = (2, 16) if qkv.shape[-1] == 96 else (3, 32)
    angles = rotary_angles(qkv.shape[1], width, qkv.device)
    return fused.attention(qkv.view(*qkv.shape[:2], 3, heads, width), angles, causal)


def attention_of_some(causal: bool, qkv: Tensor) -> Tensor:
    """Of the first window no token is wanted, of the last all, of those between every third."""
    windows, tokens, _ = qkv.shape
    angles, heads = rotary_angles(tokens, 32, qkv.device), qkv.view(windows, tokens, 3, 3, 32)
    every, last = torch.arange(windows * tokens), (windows - 1) * tokens
    wanted = every[(every >= last) | ((every >= tokens) & (every % 3 == 0))]
    if not fused.attends(qkv, 32):
        return fused.attention(heads, angles, causal).flatten(0, 1)[wanted]
    return fused.attention_of(heads[:, :, 0].flatten(0, 1)[wanted], wanted, heads[:, :, 1:], angles, causal)


def attention_with_dropout(causal: bool, share: float, qkv: Tensor) -> Tensor:
    windows, tokens, _ = qkv.shape
    angles, heads = rotary_angles(tokens, 32, qkv.device), qkv.view(windows, tokens, 3, 3, 32)
    key = torch.arange(windows, dtype=torch.int32) * 1_000_003 - 7
    if fused.attends(qkv, 32):
        return fused.attention(heads, angles, causal, key, share)
    q, k, v = fused.rotated(heads, angles)
    logits = q @ k.transpose(-2, -1) / 32**0.5
    if causal:
        logits = logits.masked_fill(~torch.ones(tokens, tokens, dtype=torch.bool).tril(), -torch.inf)
    return (dropped(logits.softmax(dim=-1), key, share) @ v).transpose(1, 2)


CASES: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "rms_norm": (fused.rms_norm, [(3, 37, 48), (48,)]),
    "rms_norm of odd width": (fused.rms_norm, [(5, 21), (21,)]),
    "swiglu": (fused.swiglu, [(3, 7, 2 * 352)]),
    "swiglu of odd width": (fused.swiglu, [(9, 2 * 67)]),
    "attention": (partial(attention, False), [(2, 131, 96)]),
    "causal attention": (partial(attention, True), [(2, 131, 96)]),
    "attention of wider heads": (partial(attention, False), [(3, 64, 288)]),
    "causal attention of wider heads": (partial(attention, True), [(3, 50, 288)]),
    "attention of some tokens": (partial(attention_of_some, False), [(4, 131, 288)]),
    "causal attention of some tokens": (partial(attention_of_some, True), [(3, 50, 288)]),
    "attention with dropout": (partial(attention_with_dropout, False, 0.3), [(3, 131, 288)]),
    "causal attention with dropout": (partial(attention_with_dropout, True, 0.9), [(2, 50, 288)]),
    "attention of one token": (partial(attention, True), [(2, 1, 96)]),
}


def outcome(function: Function, inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """What `function` gives, and the gradients of its inputs."""
    leaves = [value.to(dtype).requires_grad_() for value in inputs]
    out = function(*leaves)
    above = torch.cos(torch.arange(out.numel(), dtype=dtype)).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, leaves, above)]


@pytest.mark.parametrize("variant", [*variants(), "torch"])
@pytest.mark.parametrize("case", CASES)
def test_every_variant_is_what_torch_computes(case: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, shapes = CASES[case]
    random = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=random) * 3 for shape in shapes]
    exact = outcome(function, inputs, torch.float64)
    if variant == "torch":
        monkeypatch.setattr(fused, "_by_kernel", lambda x: False)
    else:
        monkeypatch.setattr(fused, "kernel", partial(library.kernel, variant=variant))
    found = outcome(function, inputs, torch.float32)
    for value, expected in zip(found, exact, strict=True):
        assert (value - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_threads_share_the_rows_and_change_nothing_but_rounding() -> None:
    before = torch.get_num_threads()
    for function, shapes in CASES.values():
        inputs = [torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in shapes]
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(outcome(function, inputs, torch.float32))
        torch.set_num_threads(before)
        for one, three in zip(*results, strict=True):
            assert torch.allclose(one, three, rtol=1e-5, atol=1e-5)


def test_large_and_infinite_gates_stay_what_they_are() -> None:
    gate = torch.tensor([-1e30, -200.0, -90.0, 0.0, 90.0, 200.0, 1e30])
    found = fused.swiglu(torch.stack([torch.cat([gate, torch.ones(7)])]))
    expected = torch.nn.functional.silu(gate.double())
    assert torch.allclose(found[0].double(), expected, rtol=1e-5, atol=1e-7)


def test_other_kinds_of_numbers_take_the_way_of_torch() -> None:
    out = fused.swiglu(torch.ones(2, 8, dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize("query_index", [[0, 0, 1, 2, 3], [1, 0]])
def test_queries_that_are_not_ascending_are_refused(query_index: list[int]) -> None:
    """The kernels would write more queries of a window than it has tokens beyond their scratch memory."""
    index = torch.tensor(query_index)
    kv, angles = torch.ones(1, 4, 2, 1, 16), rotary_angles(4, 16, torch.device("cpu"))
    with pytest.raises(AssertionError, match="query_index: ascending, each once"):
        fused.attention_of(torch.ones(len(index), 1, 16), index, kv, angles, False)
