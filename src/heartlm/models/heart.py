"""The heart language model: facet embeddings, the trunk, and its heads.

    codes [B, T, F] ─► embedding ─► trunk ─► hidden [B, T, D] ─► facet logits (pretraining)
                                                             └─► class logits for each token, or for the window

Facets of a token are predicted in order: the input of the head of facet f is the hidden state plus the embeddings of
the earlier facets. So a residual code is conditioned on the coarser codes that it refines, and the facets of a sampled
token are consistent.

As the embedding, the facet heads have two forms with equal values. On a CPU each facet has its own product, with as
many logits as it has codes. On a GPU all facets are one batched product, with as many logits as the largest has codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.models.config import ModelConfig
from heartlm.models.dropout import dropped
from heartlm.models.embedding import FacetEmbedding
from heartlm.models.statistics import WindowStatistics
from heartlm.models.transformer import SITES_OF_BLOCK, Block, Trunk

TOKENS_AT_ONCE = {"cpu": 1 << 12, "cuda": 1 << 16}
"""Tokens per batch of inference. On a CPU the activations of more no longer fit into the caches (docs/log/models.md). A
GPU needs enough work in each kernel; its number is estimated from training."""
FACET_TOKENS_AT_ONCE = 1 << 12
"""Tokens whose facet losses are computed together without gradients: they need memory for each facet of each token."""


class HeartModel(nn.Module):
    """A transformer over tokens of several facets.

    Args:
        config: resolved sizes.
        geometry: coordinates of the codes of each facet, float32 `[num_codes, num_coordinates]` each.
        num_classes: classes of the label head; 0 for a foundation model.
        pooled: whether the head labels whole windows instead of tokens.
        seconds: interval in s of each code of the first facet, float32 `[size]`; adds `heartlm.models.statistics` to
            the input of a pooled head.

    Attributes:
        facet_heads: weights of the heads of all facets, `[sum(facet_sizes), width]`; None in models without them.
        normalises_batches: whether it learns from the mean of a whole batch, which then may not be split.
    """

    normalises_batches: ClassVar[bool] = False

    head_rows: Tensor | None
    no_code: Tensor | None

    def __init__(
        self,
        config: ModelConfig,
        geometry: Sequence[Tensor],
        num_classes: int = 0,
        pooled: bool = False,
        seconds: Tensor | None = None,
    ) -> None:
        super().__init__()
        assert config.width, "resolve the config first"
        self.config, self.pooled, self.num_classes = config, pooled, num_classes
        self.embedding = FacetEmbedding(list(geometry), config.width)
        self.trunk = Trunk(config)
        # Linear layers draw their weights here, so that a seed gives the weights that it gave to earlier versions.
        heads = [nn.Linear(config.width, size, bias=False) for size in config.facet_sizes]
        self.class_head = nn.Linear(config.width, num_classes) if num_classes else None
        for head in (*heads, self.class_head):
            if head is not None:
                nn.init.normal_(head.weight, std=0.02)
        self.facet_heads: nn.Parameter | None = nn.Parameter(torch.cat([head.weight.detach() for head in heads]))
        self.register_buffer("head_rows", None, persistent=False)
        self.register_buffer("no_code", None, persistent=False)
        self._compiled_losses: Callable[..., Tensor] | None = None
        self.statistics = WindowStatistics(seconds, config.width) if seconds is not None else None

    def recompute(self, recompute: bool = True) -> None:
        """Enable or disable activation checkpointing in each block."""
        for block in self.trunk.blocks:
            assert isinstance(block, Block)
            block.recompute = recompute

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def windows_at_once(self, width: int) -> int:
        """Return the number of windows of `width` tokens per batch of inference, at least 1."""
        return max(1, TOKENS_AT_ONCE[next(self.parameters()).device.type] // max(1, width))

    def mask_codes(self) -> Tensor:
        """Return the mask code of each facet, int64 `[F]`."""
        return torch.tensor(self.config.facet_sizes)

    @property
    def num_dropout_sites(self) -> int:
        """Number of dropout layers, each with one key per window; 0 without dropout."""
        head_sites = int(self.statistics is not None)
        return head_sites + 1 + SITES_OF_BLOCK * self.config.depth if self.config.dropout else 0

    def hidden(
        self, codes: Tensor, valid: Tensor | None = None, keys: Tensor | None = None, query_index: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute hidden states.

        Args:
            codes: codes of the tokens, int64 `[B, T, F]`.
            valid: tokens that are not padding, bool `[B, T]`; None for all.
            keys: dropout keys, int32 `[num_dropout_sites, B]`; None disables dropout, as in inference.
            query_index: indices of the output tokens in the flattened `[B × T]`, ascending, int64 `[N]`; by the
                kernel for CPUs each only once. None for all.

        Returns:
            Hidden states `[B, T, D]`, or `[N, D]` of the output tokens, and the table of embeddings.
        """
        x, table = self.embedding(codes)
        first, rest = (None, None) if keys is None or not self.config.dropout else (keys[0], keys[1:])
        return self.trunk(dropped(x, first, self.config.dropout), valid, rest, query_index), table

    def batch_facets(self) -> None:
        """Use the form of embedding and facet heads for GPUs, where a step takes the same operations for all facets."""
        self.embedding.batch()
        sizes = self.config.facet_sizes
        most, device = -(-max(sizes) // 8) * 8, self.embedding.offset.device  # a multiple of 8 suits matrix units
        has_code = torch.arange(most, device=device) < torch.tensor(sizes, device=device)[:, None]
        self.head_rows = has_code.flatten().nonzero().squeeze(1)
        self.no_code = torch.zeros(has_code.shape, device=device).masked_fill_(~has_code, -torch.inf)[:, None]

    def compile(self) -> None:
        """Compile the parts of the model for training; validation and inference are not compiled."""
        for block in self.trunk.blocks:  # equal blocks share a graph; FSDP hooks run between blocks
            block.compile()
        if self.no_code is not None:
            self.embedding.compile()
            self._compiled_losses = torch.compile(self._batched_losses, fullgraph=True, dynamic=False)

    def facet_losses(self, hidden: Tensor, target: Tensor, table: Tensor) -> Tensor:
        """Return the cross-entropy of each facet, summed over tokens, `[F]`.

        Args:
            hidden: hidden states of the tokens to predict, `[N, D]`.
            target: their codes, int64 `[N, F]`; tokens of codes −1 are ignored.
            table: embeddings of all codes.
        """
        if len(hidden) > FACET_TOKENS_AT_ONCE and not torch.is_grad_enabled():
            hiddens, targets = torch.split(hidden, FACET_TOKENS_AT_ONCE), torch.split(target, FACET_TOKENS_AT_ONCE)
            parts = [self.facet_losses(*part, table) for part in zip(hiddens, targets, strict=True)]
            return torch.stack(parts).sum(dim=0)
        if self.no_code is not None:
            compiled = self._compiled_losses if self.training else None
            return (compiled or self._batched_losses)(hidden, target, table)
        logits = self.facet_logits(hidden, target, table)
        return torch.stack(
            [F.cross_entropy(x, target[:, facet], ignore_index=-1, reduction="sum") for facet, x in enumerate(logits)]
        )

    def facet_logits(self, hidden: Tensor, target: Tensor, table: Tensor) -> list[Tensor]:
        """Return logits `[N, size]` of each facet from `hidden` `[N, D]` and earlier facets of `target` `[N, F]`."""
        assert self.facet_heads is not None, "this model has no facet heads"
        first, *heads = torch.split(self.facet_heads, list(self.config.facet_sizes))
        logits = [F.linear(hidden, first)]
        for facet, head in enumerate(heads):
            hidden = hidden + F.embedding((target[:, facet] + self.embedding.offset[facet]).clamp(min=0), table)
            logits.append(F.linear(hidden, head))
        return logits

    def _batched_losses(self, hidden: Tensor, target: Tensor, table: Tensor) -> Tensor:
        assert self.facet_heads is not None and self.head_rows is not None and self.no_code is not None
        num_facets, _, most = self.no_code.shape
        inputs = hidden[:, None]
        if num_facets > 1:
            codes = F.embedding((target + self.embedding.offset).clamp(min=0), table)  # [N, F, D]
            inputs = inputs + (codes.cumsum(dim=1) - codes)  # of the facets before each
        # The weights are scattered into [F, V, D]. The backward pass is then a look-up, without sums.
        weights = self.facet_heads.new_zeros(num_facets * most, hidden.shape[-1])
        weights = weights.index_copy(0, self.head_rows, self.facet_heads).view(num_facets, most, -1)
        logits = torch.baddbmm(self.no_code, inputs.transpose(0, 1), weights.transpose(1, 2))  # [F, N, V]
        losses = F.cross_entropy(logits.flatten(0, 1), target.T.flatten(), ignore_index=-1, reduction="none")
        return losses.view(num_facets, -1).sum(dim=1)

    def class_logits(self, codes: Tensor, valid: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """Return class logits `[B, T, num_classes]`, or `[B, num_classes]` for a pooled head; see `hidden`."""
        assert self.class_head is not None, "a foundation model has no labels to predict"
        shows_trunk = None
        if self.statistics is not None and keys is not None and self.config.dropout:
            # The trunk overfits to patients before the head uses the statistics, so half of the windows drop the trunk.
            shows_trunk, keys = keys[0] < 0, keys[1:]
        hidden, _ = self.hidden(codes, valid, keys)
        if self.pooled:
            weight = torch.ones_like(hidden[..., :1]) if valid is None else valid[..., None].to(hidden.dtype)
            hidden = (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
            if shows_trunk is not None:
                hidden = hidden * shows_trunk[:, None]
            if self.statistics is not None:
                hidden = hidden + self.statistics(codes[..., 0], valid)
        logits: Tensor = self.class_head(hidden)
        return logits
