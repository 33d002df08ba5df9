"""The heart language model: facet embeddings, the trunk, and its heads.

    codes [B, T, F] ─► embedding ─► trunk ─► hidden [B, T, D] ─► facet logits (pretraining)
                                                             └─► class logits for each token, or for the window

Facets of a token are predicted in order: the input of the head of facet f is the hidden state plus the embeddings of
the earlier facets. So a residual code is conditioned on the coarser codes that it refines, and the facets of a sampled
token are consistent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.models.config import ModelConfig
from heartlm.models.dropout import dropped
from heartlm.models.embedding import FacetEmbedding
from heartlm.models.statistics import WindowStatistics
from heartlm.models.transformer import SITES_OF_BLOCK, Block, Trunk


class HeartModel(nn.Module):
    """A transformer over tokens of several facets.

    Args:
        config: resolved sizes.
        geometry: coordinates of the codes of each facet, float32 `[num_codes, num_coordinates]` each.
        num_classes: classes of the label head; 0 for a foundation model.
        pooled: whether the head labels whole windows instead of tokens.
        seconds: interval in s of each code of the first facet, float32 `[size]`; adds `heartlm.models.statistics` to
            the input of a pooled head.
    """

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
        self.facet_heads = nn.ModuleList(nn.Linear(config.width, size, bias=False) for size in config.facet_sizes)
        self.class_head = nn.Linear(config.width, num_classes) if num_classes else None
        for head in (*self.facet_heads, self.class_head):
            if isinstance(head, nn.Linear):
                nn.init.normal_(head.weight, std=0.02)
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

    def mask_codes(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the mask code of each facet, int64 `[F]`."""
        return torch.tensor(self.config.facet_sizes, device=device)

    @property
    def num_dropout_sites(self) -> int:
        """Number of dropout layers, each with one key per window; 0 without dropout."""
        of_head = int(self.statistics is not None)
        return of_head + 1 + SITES_OF_BLOCK * self.config.depth if self.config.dropout else 0

    def hidden(
        self, codes: Tensor, valid: Tensor | None = None, keys: Tensor | None = None, query_index: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute hidden states.

        Args:
            codes: codes of the tokens, int64 `[B, T, F]`.
            valid: tokens that are not padding, bool `[B, T]`; None for all.
            keys: dropout keys, int32 `[num_dropout_sites, B]`; None disables dropout, as in inference.
            query_index: indices of the output tokens in the flattened `[B × T]`, ascending, int64 `[N]`; None for all.

        Returns:
            Hidden states `[B, T, D]`, or `[N, D]` of the output tokens, and the table of embeddings.
        """
        x, table = self.embedding(codes)
        first, rest = (None, None) if keys is None or not self.config.dropout else (keys[0], keys[1:])
        return self.trunk(dropped(x, first, self.config.dropout), valid, rest, query_index), table

    def facet_logits(self, hidden: Tensor, target: Tensor, table: Tensor) -> list[Tensor]:
        """Return logits `[N, size]` of each facet from `hidden` `[N, D]` and earlier facets of `target` `[N, F]`."""
        logits = [self.facet_heads[0](hidden)]
        for facet, head in enumerate(self.facet_heads[1:]):
            hidden = hidden + F.embedding(target[:, facet] + self.embedding.offset[facet], table)
            logits.append(head(hidden))
        return logits

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
