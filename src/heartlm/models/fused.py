"""The parts of a block between its matrix products, each in one pass, on CPUs.

Where tensors are float32 on a CPU and the kernels are compiled, `rms_norm`, `swiglu` and `attention` are kernels with a
gradient of their own; elsewhere, and while `torch.compile` looks on, they are what torch has. Both give the same up to
rounding.

Shapes: B windows, T tokens a window, D width, H heads, W = D/H, N rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from heartlm.kernels.library import float32, int32, int64, kernel, pointer

EPSILON = 1e-5


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """`x` `[..., D]` over its root mean square, times `weight` `[D]` (Zhang and Sennrich 2019, arXiv 1910.07467)."""
    if _by_kernel(x, "rms_norm_forward"):
        out: Tensor = _RMSNorm.apply(x, weight)  # type: ignore[no-untyped-call]
        return out
    return F.rms_norm(x, weight.shape, weight, EPSILON)


def swiglu(gate_up: Tensor) -> Tensor:
    """Gated unit `silu(gate) * up` of `[..., 2 F]`, gates first; `[..., F]` (Shazeer 2020, arXiv 2002.05202)."""
    if _by_kernel(gate_up, "swiglu_forward"):
        out: Tensor = _SwiGLU.apply(gate_up)  # type: ignore[no-untyped-call]
        return out
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def attention(qkv: Tensor, angles: Tensor, causal: bool) -> Tensor:
    """Attention without padding or dropout, rotary positions included; `[B, T, H, W]`.

    Args:
        qkv: queries, keys and values side by side, `[B, T, 3, H, W]`.
        angles: cosines and sines of the positions, `[2, T, W/2]`.
        causal: each token sees itself and those before it.
    """
    if qkv.shape[-1] % 16 == 0 and _by_kernel(qkv, "attention_forward"):
        y: Tensor = _Attention.apply(qkv, angles, causal)  # type: ignore[no-untyped-call]
        return y
    return F.scaled_dot_product_attention(*rotated(qkv, angles), is_causal=causal).transpose(1, 2)


def rotated(qkv: Tensor, angles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values `[B, H, T, W]` of `qkv` `[B, T, 3, H, W]`, the first two turned by their position."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return rotate(q, angles), rotate(k, angles), v


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn pairs of channels of `x` `[B, H, T, W]` by their position's angles (Su 2021, arXiv 2104.09864)."""
    cosine, sine = angles.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "rms_norm_forward": (pointer, pointer, float32, int64, int64, int32, pointer, pointer),
    "rms_norm_backward": (pointer, pointer, pointer, pointer, int64, int64, int32, pointer, pointer),
    "swiglu_forward": (pointer, int64, int64, int32, pointer),
    "swiglu_backward": (pointer, pointer, int64, int64, int32, pointer),
    "attention_forward": (*[pointer] * 3, *[int64] * 4, int32, int32, *[pointer] * 3),
    "attention_backward": (*[pointer] * 6, *[int64] * 4, int32, int32, *[pointer] * 2),
}


def _by_kernel(x: Tensor, name: str) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.compiler.is_compiling()
        and kernel(name, *_SIGNATURES[name]) is not None
    )


def _call(name: str, *arguments: Any) -> None:
    function = kernel(name, *_SIGNATURES[name])
    assert function is not None
    function(*(value.data_ptr() if isinstance(value, Tensor) else value for value in arguments))


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x = x.contiguous()
        rows, width = x.numel() // x.shape[-1], x.shape[-1]
        y, inverse = torch.empty_like(x), x.new_empty(rows)
        _call("rms_norm_forward", x, weight, EPSILON, rows, width, torch.get_num_threads(), y, inverse)
        ctx.save_for_backward(x, weight, inverse)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, inverse = ctx.saved_tensors
        threads, width = torch.get_num_threads(), x.shape[-1]
        dx, dweight = torch.empty_like(x), x.new_zeros(threads, width)
        dy = dy.contiguous()
        _call("rms_norm_backward", x, weight, inverse, dy, len(inverse), width, threads, dx, dweight)
        return dx, dweight.sum(dim=0)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        width = gate_up.shape[-1] // 2
        out = gate_up.new_empty(*gate_up.shape[:-1], width)
        _call("swiglu_forward", gate_up, out.numel() // width, width, torch.get_num_threads(), out)
        ctx.save_for_backward(gate_up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        width, dgate_up, dy = dy.shape[-1], torch.empty_like(gate_up), dy.contiguous()
        _call("swiglu_backward", gate_up, dy, dy.numel() // width, width, torch.get_num_threads(), dgate_up)
        return dgate_up


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, angles: Tensor, causal: bool) -> Tensor:
        qkv, angles = qkv.contiguous(), angles.contiguous()
        batch, tokens, _, heads, width = qkv.shape
        out, lse = qkv.new_empty(batch, tokens, heads, width), qkv.new_empty(batch, heads, tokens)
        sizes = batch, tokens, heads, width, causal, torch.get_num_threads()
        _call("attention_forward", qkv, angles[0], angles[1], *sizes, _scratch(qkv), out, lse)
        ctx.save_for_backward(qkv, angles, out, lse)
        ctx.causal = causal
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        qkv, angles, out, lse = ctx.saved_tensors
        batch, tokens, _, heads, width = qkv.shape
        dqkv, dy = torch.empty_like(qkv), dy.contiguous()
        sizes = batch, tokens, heads, width, ctx.causal, torch.get_num_threads()
        _call("attention_backward", qkv, angles[0], angles[1], out, lse, dy, *sizes, _scratch(qkv), dqkv)
        return dqkv, None, None


def _scratch(qkv: Tensor) -> Tensor:
    size = kernel("attention_scratch", int64, int64, returns=int64)
    assert size is not None
    return qkv.new_empty(torch.get_num_threads() * size(qkv.shape[1], qkv.shape[4]))
