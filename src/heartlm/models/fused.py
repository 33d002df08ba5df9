"""Fused operations of a transformer block on CPUs.

For float32 tensors on a CPU, `rms_norm`, `swiglu` and `attention` use kernels with their own backward pass. Otherwise,
and under `torch.compile`, they use operations of torch. Results are equal up to rounding.

Shapes: B windows, T tokens per window, D width, H heads, W = D/H, N rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from heartlm.kernels.library import kernel
from heartlm.models.sizes import EPSILON


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Divide `x` `[..., D]` by its RMS and multiply by `weight` `[D]` (Zhang and Sennrich 2019, arXiv 1910.07467)."""
    if _by_kernel(x):
        out: Tensor = _RMSNorm.apply(x, weight)  # type: ignore[no-untyped-call]
        return out
    return F.rms_norm(x, weight.shape, weight, EPSILON)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up` `[..., F]` of `[..., 2 F]`, gates first (Shazeer 2020, arXiv 2002.05202)."""
    if _by_kernel(gate_up):
        out: Tensor = _SwiGLU.apply(gate_up)  # type: ignore[no-untyped-call]
        return out
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def attention(qkv: Tensor, angles: Tensor, causal: bool, key: Tensor | None = None, share: float = 0.0) -> Tensor:
    """Compute attention without padding, with rotary positions; `[B, T, H, W]`.

    Args:
        qkv: queries, keys and values, `[B, T, 3, H, W]`.
        angles: cosines and sines of the positions, `[2, T, W/2]`.
        causal: whether each token attends only to itself and earlier tokens.
        key: dropout keys, int32 `[B]`, supported only if `attends` is true; None drops nothing.
        share: dropout probability of the attention probabilities.
    """
    if attends(qkv, qkv.shape[-1]):
        y: Tensor = _Attention.apply(qkv, None, None, angles, causal, key, share)  # type: ignore[no-untyped-call]
        return y
    assert key is None, "the kernel alone drops probabilities"
    return F.scaled_dot_product_attention(*rotated(qkv, angles), is_causal=causal).transpose(1, 2)


def attention_of(query: Tensor, query_index: Tensor, kv: Tensor, angles: Tensor, causal: bool) -> Tensor:
    """Compute attention for selected query tokens; `[N, H, W]`. Requires that `attends` is true.

    Args:
        query: queries of the selected tokens, `[N, H, W]`.
        query_index: indices of the selected tokens in the flattened `[B × T]`, ascending, each once, int64 `[N]`.
        kv: keys and values of all tokens, `[B, T, 2, H, W]`.
        angles: see `attention`.
        causal: see `attention`.
    """
    y: Tensor = _Attention.apply(query, kv, query_index, angles, causal, None, 0.0)  # type: ignore[no-untyped-call]
    return y


def attends(x: Tensor, head_width: int) -> bool:
    """Return whether the attention kernel supports heads of `head_width` and the device and dtype of `x`."""
    return head_width % 16 == 0 and _by_kernel(x)


def rotated(qkv: Tensor, angles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values `[B, H, T, W]` of `qkv` `[B, T, 3, H, W]`; rotate queries and keys."""
    qk, v = torch.split(qkv.permute(2, 0, 3, 1, 4), [2, 1])
    q, k = rotate(qk, angles)
    return q, k, v.squeeze(0)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate pairs of channels of `x` `[..., T, W]` by the angles of the position (Su 2021, arXiv 2104.09864)."""
    cosine, sine = angles.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


def _by_kernel(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling()


def _call(name: str, *arguments: Any) -> None:
    function = kernel(name, by_address=True)
    if isinstance(arguments[0], FakeTensor):  # a dry run needs only the shapes
        return
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
        dx, dweight = torch.empty_like(x), x.new_zeros(threads, width)  # each thread sums its rows on its own
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
    """Attention of all tokens of `query`, which is qkv `[B, T, 3, H, W]`; or of `query_index`, then `kv` is given."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        kv: Tensor | None,
        query_index: Tensor | None,
        angles: Tensor,
        causal: bool,
        key: Tensor | None,
        share: float,
    ) -> Tensor:
        query, angles = query.contiguous(), angles.contiguous()
        key = None if key is None else key.contiguous()
        first = position = None
        if kv is not None and query_index is not None:
            kv = kv.contiguous()
            batch, tokens = kv.shape[:2]
            # The scratch memory of the backward kernel has room for one query a token.
            is_fake = isinstance(query_index, FakeTensor)
            assert is_fake or bool((query_index.diff() > 0).all()), "query_index: ascending, each once, expected"
            # The first selected token of each window, and one beyond the last: `query_index` is ascending.
            first = torch.searchsorted(query_index, torch.arange(0, (batch + 1) * tokens, tokens))
            position = query_index % tokens
        given = _given(query, kv, first, position, angles, causal, key, share)
        out = query.new_empty(given[0].shape)
        lse = query.new_empty(given[0].shape[-2], given[0].shape[:-2].numel())
        _call("attention_forward", *given, out, lse)
        ctx.save_for_backward(query, kv, first, position, angles, out, lse, key)
        ctx.causal, ctx.share = causal, share
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        query, kv, first, position, angles, out, lse, key = ctx.saved_tensors
        dquery = torch.empty_like(query)
        dkv = None if kv is None else torch.empty_like(kv)
        gradients = dquery.unbind(2) if dkv is None else (dquery, *dkv.unbind(2))
        given = _given(query, kv, first, position, angles, ctx.causal, key, ctx.share)
        _call("attention_backward", *given, out, lse, dy.contiguous(), *gradients)
        return dquery, dkv, None, None, None, None, None


def _given(
    query: Tensor,
    kv: Tensor | None,
    first: Tensor | None,
    position: Tensor | None,
    angles: Tensor,
    causal: bool,
    key: Tensor | None,
    share: float,
) -> tuple[Any, ...]:
    """Return the input arguments of the attention kernels; the last is scratch memory."""
    if kv is None:
        query, kv = query[:, :, 0], query[:, :, 1:]
    assert query.dtype == kv.dtype == angles.dtype == torch.float32, "the kernels read float32"
    batch, tokens, _, heads, width = kv.shape
    keys, values = kv.unbind(2)
    threads = torch.get_num_threads()
    scratch = kv.new_empty(threads * kernel("attention_scratch")(tokens, width))
    inputs = query, query.stride(-3), keys, values, kv.stride(1), angles[0], angles[1], first, position
    sizes = query.shape[:-2].numel(), batch, tokens, heads, width
    return *inputs, *sizes, causal, key, share, threads, scratch
