"""The trunk: pre-norm transformer blocks with rotary positions, causal or bidirectional by one flag.

Shapes: B windows, T tokens per window, D width, H heads.

With `recompute` a block keeps only its input for the backward pass and recomputes its activations. This costs a third
more arithmetic and saves most of the memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from heartlm.models.config import ModelConfig
from heartlm.models.dropout import dropped
from heartlm.models.fused import attends, attention, attention_of, rms_norm, rotated, swiglu
from heartlm.models.sizes import EPSILON

SITES_OF_BLOCK = 3
"""Dropout layers of a block: attention probabilities, output of attention, output of the feed-forward part."""

SLICE_SIZE, GPU_SLICE_SIZE = 1 << 22, 1 << 26
"""Number of attention probabilities per slice, for dropout without a kernel.

A slice has some hundred operations, which a GPU starts one by one and a compiler works on for a second each."""


class Norm(nn.RMSNorm):
    """RMSNorm with a fused kernel on CPUs."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x` `[..., D]`."""
        return rms_norm(x, self.weight)


class Block(nn.Module):
    """One block: attention, then SwiGLU, each after an RMSNorm and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.width and config.heads and config.feed_forward, "resolve the config first"
        self.heads, self.causal, self.dropout = config.heads, config.causal, config.dropout
        self.recompute = False
        self.compiled: Callable[..., Tensor] | None = None
        self.norm_attention = Norm(config.width)
        self.norm_feed = Norm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.attention_out = nn.Linear(config.width, config.width, bias=False)
        self.gate_up = nn.Linear(config.width, 2 * config.feed_forward, bias=False)
        self.feed_out = nn.Linear(config.feed_forward, config.width, bias=False)

    def forward(
        self,
        x: Tensor,
        angles: Tensor,
        mask: Tensor | None,
        keys: Tensor | None = None,
        query_index: Tensor | None = None,
    ) -> Tensor:
        """Apply the block.

        Args:
            x: residual stream, `[B, T, D]`.
            angles: see `rotary_angles`.
            mask: tokens to attend to, bool `[B, 1, 1, T]`; None for all, or for all earlier ones if causal.
            keys: dropout keys, int32 `[SITES_OF_BLOCK, B]`; None drops nothing.
            query_index: indices of the output tokens in the flattened `[B × T]`, ascending, int64 `[N]`; by the
                kernel for CPUs each only once. None for all. Keys and values are computed for all tokens, queries and
                the feed-forward part for the output tokens only. Not together with `keys`.

        Returns:
            `[B, T, D]`, or `[N, D]` of the output tokens.
        """
        assert keys is None or query_index is None, "dropout needs whole windows"
        run = self._run if self.compiled is None or not self.training else self.compiled
        return run(x, angles, mask, keys, query_index)

    def compile(self) -> None:
        """Compile the block for training; inference is not compiled.

        Blocks share graphs, so a run needs at most four: with or without a mask, for all or for selected output tokens.
        Training batches have one shape. Validation batches have several, and each would need another graph.
        """
        self.compiled = torch.compile(self._run, fullgraph=True, dynamic=False)

    def _run(
        self, x: Tensor, angles: Tensor, mask: Tensor | None, keys: Tensor | None, query_index: Tensor | None
    ) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            out: Tensor = checkpoint(
                self._pass, x, angles, mask, keys, query_index, use_reentrant=False, preserve_rng_state=False
            )
            return out
        return self._pass(x, angles, mask, keys, query_index)

    def _pass(
        self, x: Tensor, angles: Tensor, mask: Tensor | None, keys: Tensor | None, query_index: Tensor | None
    ) -> Tensor:
        attention_key, out_key, feed_key = (None, None, None) if keys is None or not self.dropout else keys
        attended = self._attend(self.norm_attention(x), angles, mask, attention_key, query_index)
        x = x if query_index is None else x.flatten(0, 1).index_select(0, query_index)
        x = x + dropped(self.attention_out(attended), out_key, self.dropout)
        return x + dropped(self.feed_out(swiglu(self.gate_up(self.norm_feed(x)))), feed_key, self.dropout)

    def _attend(
        self, x: Tensor, angles: Tensor, mask: Tensor | None, key: Tensor | None, query_index: Tensor | None
    ) -> Tensor:
        if query_index is not None:
            return self._attend_from(query_index, x, angles, mask)
        qkv = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1)
        if mask is None and (key is None or attends(qkv, qkv.shape[-1])):
            y = attention(qkv, angles, self.causal, key, self.dropout)
        else:
            q, k, v = rotated(qkv, angles)
            if key is None:
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            else:
                y = self._attend_dropping(q, k, v, mask, key)
            y = y.transpose(1, 2)
        return y.flatten(2)

    def _attend_from(self, query_index: Tensor, x: Tensor, angles: Tensor, mask: Tensor | None) -> Tensor:
        num_windows, num_tokens, width = x.shape
        # autocast gives products of float32 another type, which the kernel does not read
        by_kernel = attends(x, width // self.heads) and not torch.is_autocast_enabled(x.device.type)
        if mask is not None or not by_kernel:
            return self._attend(x, angles, mask, None, None).flatten(0, 1).index_select(0, query_index)
        query = F.linear(x.flatten(0, 1).index_select(0, query_index), self.qkv.weight[:width]).view(
            len(query_index), self.heads, -1
        )
        kv = F.linear(x, self.qkv.weight[width:]).view(num_windows, num_tokens, 2, self.heads, -1)
        return attention_of(query, query_index, kv, angles, self.causal).flatten(1)

    def _attend_dropping(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, key: Tensor) -> Tensor:
        """Compute attention with dropout of the probabilities, `[B, H, T, W]`.

        The attention of torch draws dropout from a generator, so it depends on how a batch is split. Slices of queries,
        recomputed in the backward pass, bound the memory of the probabilities.
        """
        num_tokens = q.shape[-2]
        size = SLICE_SIZE if q.device.type == "cpu" else GPU_SLICE_SIZE
        rows = max(1, size // (q.shape[:2].numel() * num_tokens))
        if rows >= num_tokens:
            return self._attend_slice(q, k, v, mask, key, 0)
        slices = []
        for first in range(0, num_tokens, rows):
            queries = slice(first, first + rows)
            slice_mask = mask if mask is None or mask.shape[-2] == 1 else mask[..., queries, :]
            arguments = q[:, :, queries], k, v, slice_mask, key, first
            if self.recompute and torch.compiler.is_compiling():  # the whole block is recomputed
                slices.append(self._attend_slice(*arguments))
            else:
                slices.append(checkpoint(self._attend_slice, *arguments, use_reentrant=False, preserve_rng_state=False))
        return torch.cat(slices, dim=2)

    def _attend_slice(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, key: Tensor, first: int) -> Tensor:
        """Compute attention with dropout for the queries `q` `[B, H, R, W]` from index `first` on."""
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        if mask is None and self.causal:
            mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril(first)
        probabilities = (logits if mask is None else logits.masked_fill(~mask, -torch.inf)).softmax(dim=-1)
        return dropped(probabilities, key, self.dropout, first, k.shape[-2]) @ v


def rotary_angles(num_tokens: int, head_width: int, device: torch.device) -> Tensor:
    """Return cosines and sines of the rotary position embedding (Su 2021, arXiv 2104.09864); `[2, T, D/H/2]`."""
    frequency = 10000.0 ** (-torch.arange(0, head_width, 2, device=device) / head_width)
    angle = torch.arange(num_tokens, device=device)[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()])


class Trunk(nn.Module):
    """All blocks and the final norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.width and config.heads, "resolve the config first"
        self.causal = config.causal
        self.head_width = config.width // config.heads
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = Norm(config.width)
        self.reset()

    def reset(self) -> None:
        """Initialise with normal weights of std 0.02; those of residual outputs are scaled by depth (GPT-2)."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                into_residual = name.endswith(("attention_out.weight", "feed_out.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * len(self.blocks)) ** 0.5 if into_residual else 0.02)

    def forward(
        self, x: Tensor, valid: Tensor | None = None, keys: Tensor | None = None, query_index: Tensor | None = None
    ) -> Tensor:
        """Apply all blocks and the final norm.

        Args:
            x: embedded tokens, `[B, T, D]`.
            valid: tokens that are not padding, bool `[B, T]`; None for all. Each window starts with a valid token, and
                padding is at its end.
            keys: dropout keys, int32 `[SITES_OF_BLOCK × depth, B]`; None drops nothing.
            query_index: indices of the output tokens in the flattened `[B × T]`, ascending, int64 `[N]`; by the
                kernel for CPUs each only once. None for all. The last block computes only these.

        Returns:
            `[B, T, D]`, or `[N, D]` of the output tokens.
        """
        angles = rotary_angles(x.shape[1], self.head_width, x.device)
        # Padding follows the valid tokens, so causal attention never looks at it from a token that counts.
        mask = None if valid is None or self.causal else valid[:, None, None, :]
        block_keys = [None] * len(self.blocks) if keys is None else keys.view(len(self.blocks), SITES_OF_BLOCK, -1)
        *first, last = zip(self.blocks, block_keys, strict=True)
        for block, key in first:
            x = block(x, angles, mask, key)
        block, key = last
        x = block(x, angles, mask, key, query_index if keys is None else None)
        if keys is not None and query_index is not None:
            x = x.flatten(0, 1).index_select(0, query_index)
        out: Tensor = self.norm(x)
        return out
