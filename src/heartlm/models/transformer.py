"""The trunk: pre-norm transformer blocks with rotary positions, causal or bidirectional by one flag.

Shapes: B windows, T tokens a window, D width, H heads.

With `recompute` a block keeps nothing but its input for the backward pass and computes the rest a second time, which
costs a third more arithmetic and saves most of the memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from heartlm.models.config import ModelConfig
from heartlm.models.dropout import dropped

SITES_OF_BLOCK = 3
"""Where a block drops: attention probabilities, what attention adds, what the feed-forward part adds."""


class Block(nn.Module):
    """One block: attention, then SwiGLU, each behind an RMSNorm and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.width and config.heads and config.feed_forward, "resolve the config first"
        self.heads, self.causal, self.dropout = config.heads, config.causal, config.dropout
        self.recompute = False
        self.norm_attention = nn.RMSNorm(config.width, eps=1e-5)
        self.norm_feed = nn.RMSNorm(config.width, eps=1e-5)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.attention_out = nn.Linear(config.width, config.width, bias=False)
        self.gate_up = nn.Linear(config.width, 2 * config.feed_forward, bias=False)
        self.feed_out = nn.Linear(config.feed_forward, config.width, bias=False)

    def forward(self, x: Tensor, rotary: Tensor, mask: Tensor | None, keys: Tensor | None = None) -> Tensor:
        """Pass `x` `[B, T, D]` on.

        Args:
            x: the residual stream.
            rotary: see `rotary_angles`.
            mask: bool `[B, 1, T, T]`, true where a token may look; None for wherever the flag lets it.
            keys: of dropout, int32 `[SITES_OF_BLOCK, B]`; None drops nothing.
        """
        if self.recompute and torch.is_grad_enabled():
            out: Tensor = checkpoint(self._pass, x, rotary, mask, keys, use_reentrant=False, preserve_rng_state=False)
            return out
        return self._pass(x, rotary, mask, keys)

    def _pass(self, x: Tensor, rotary: Tensor, mask: Tensor | None, keys: Tensor | None) -> Tensor:
        looks, attends, feeds = (None, None, None) if keys is None or not self.dropout else keys
        x = x + dropped(self._attend(self.norm_attention(x), rotary, mask, looks), attends, self.dropout)
        gate, up = self.gate_up(self.norm_feed(x)).chunk(2, dim=-1)
        return x + dropped(self.feed_out(F.silu(gate) * up), feeds, self.dropout)

    def _attend(self, x: Tensor, rotary: Tensor, mask: Tensor | None, key: Tensor | None) -> Tensor:
        num_windows, num_tokens, width = x.shape
        q, k, v = self.qkv(x).view(num_windows, num_tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # B H T D/H
        q, k = rotate(q, rotary), rotate(k, rotary)
        if key is None:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal and mask is None)
        else:
            y = dropped(self._probabilities(q, k, mask), key, self.dropout) @ v
        out: Tensor = self.attention_out(y.transpose(1, 2).reshape(num_windows, num_tokens, width))
        return out

    def _probabilities(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """How much each token looks at each other, `[B, H, T, T]`: attention in the open, where some are dropped."""
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        if mask is None and self.causal:
            mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        probabilities: Tensor = (logits if mask is None else logits.masked_fill(~mask, -torch.inf)).softmax(dim=-1)
        return probabilities


def rotary_angles(num_tokens: int, head_width: int, device: torch.device) -> Tensor:
    """Cosines and sines of the rotary position embedding (Su 2021, arXiv 2104.09864); `[2, T, D/H/2]`."""
    frequency = 10000.0 ** (-torch.arange(0, head_width, 2, device=device) / head_width)
    angle = torch.arange(num_tokens, device=device)[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()])


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Turn pairs of channels of `x` `[B, H, T, D/H]` by their position's angles."""
    cosine, sine = rotary.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class Trunk(nn.Module):
    """All blocks and the final norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.width and config.heads, "resolve the config first"
        self.causal = config.causal
        self.head_width = config.width // config.heads
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.reset()

    def reset(self) -> None:
        """Start anew: normal weights of 0.02, those that write to the residual stream scaled by depth (GPT-2)."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                into_residual = name.endswith(("attention_out.weight", "feed_out.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * len(self.blocks)) ** 0.5 if into_residual else 0.02)

    def forward(self, x: Tensor, valid: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """Pass `x` `[B, T, D]` through.

        Args:
            x: embedded tokens.
            valid: tokens to look at, bool `[B, T]`; None for all.
            keys: of dropout, int32 `[SITES_OF_BLOCK × depth, B]`; None drops nothing.
        """
        rotary = rotary_angles(x.shape[1], self.head_width, x.device)
        mask = None if valid is None else self._attention_mask(valid)
        of_blocks = [None] * len(self.blocks) if keys is None else keys.view(len(self.blocks), SITES_OF_BLOCK, -1)
        for block, of_block in zip(self.blocks, of_blocks, strict=True):
            x = block(x, rotary, mask, of_block)
        out: Tensor = self.norm(x)
        return out

    def _attention_mask(self, valid: Tensor) -> Tensor:
        """True where a token may look, `[B, 1, T, T]`; each token may look at itself, so no row is empty."""
        num_tokens = valid.shape[1]
        may_look = valid[:, None, None, :] | torch.eye(num_tokens, dtype=torch.bool, device=valid.device)
        return may_look.tril() if self.causal else may_look
