"""Networks over all leads at once, for tokens of the leads tokenizer.

    codes [B, T, P + 1] ─► mV of P places [B, P, T] ─► stem: a convolution over the leads at hand ─► residual blocks ─┐
                                                                    class logits ◄─ mean and maximum over time ◄──────┘

In the stem every lead passes the same filters. How the filtered leads add up follows from the direction in which each
looks at the heart, so leads may be missing, come in any order, or be new. `residual`, the baseline, has a free weight
for each place and no directions: a lead that is missing is zero.

Members are one network of grouped convolutions: each has weights and a loss of its own; their logits are averaged
(docs/log/statements.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.models.config import ModelConfig
from heartlm.models.convolutional import ConvolutionalModel
from heartlm.models.dropout import dropped
from heartlm.models.sizes import KERNEL, MIX_HIDDEN, NUM_FILTERS, STEM_KERNEL, STRIDES, directions, leads_channels
from heartlm.models.trees import Trees

HEAD_DROPOUT = 0.3
FRAME = 2 * math.prod(STRIDES)
"""Tokens of a frame of the last residual block."""


class LeadsNetwork(ConvolutionalModel):
    """Names statements about windows of several leads; same interface as `HeartModel`, but predicts no codes.

    Args:
        config: sizes; `depth` is the number of residual blocks, 4, and `width` the number of channels of the last.
        geometry: voltages of the codes of each place, float32 `[num_codes, 1]`, then those of the beat facet.
        num_classes: number of statements; 0 for one to pretrain, which predicts voltages.

    Attributes:
        trees: boosted trees on a summary of the beats, which answer with the network; None without any.
    """

    samples_per_token = 8

    def __init__(self, config: ModelConfig, geometry: Sequence[Tensor], num_classes: int = 0) -> None:
        super().__init__(config, geometry, num_classes, len(STRIDES))
        self.num_places = len(geometry) - 1
        self.members = config.members
        channels = leads_channels(config)
        stem = DirectedStem if config.network == "leads" else PlacedStem
        self.stem = stem(self.num_places, channels[0])
        blocks = [
            ResidualBlock(*sizes, self.members) for sizes in zip(channels[:-1], channels[1:], STRIDES, strict=True)
        ]
        self.trunk = nn.ModuleDict({"blocks": nn.Sequential(*blocks)})  # type: ignore[assignment]
        # Each member's head reads its own channels, mean and maximum over time.
        num_outputs = self.members * num_classes
        self.trees: Trees | None = None
        head = nn.Conv1d(2 * channels[-1], num_outputs, 1, groups=self.members) if num_classes else None
        self.class_head = head  # type: ignore[assignment]
        if not num_classes:
            self.voltage_head = nn.Linear(channels[-1], FRAME * self.num_places)

    @property
    def num_dropout_sites(self) -> int:
        """One, before the head."""
        return 1

    def class_logits(self, codes: Tensor, valid: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """Return logits of the statements `[B, num_classes]` of windows `[B, T, P + 1]`; see `HeartModel.hidden`."""
        return self.member_logits(codes, valid, keys).mean(dim=1)

    def member_logits(self, codes: Tensor, valid: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """Return logits of each member, `[B, members, num_classes]`."""
        assert self.class_head is not None, "a network without a head has no labels to predict"
        features = dropped(self.features(codes, valid), None if keys is None else keys[0], HEAD_DROPOUT)
        logits: Tensor = self.class_head(features[..., None])
        return logits.view(len(codes), self.members, self.num_classes)

    def voltages(self, codes: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the voltages that a network to pretrain expects, over the spread of each place, `[B, T, P]`."""
        frames: Tensor = self.voltage_head(self.frames(codes, valid).transpose(1, 2))
        return frames.view(len(codes), -1, self.num_places)[:, : codes.shape[1]]

    def features(self, codes: Tensor, valid: Tensor | None = None, layer: int = -1) -> Tensor:
        """Return the features of the head, of each member mean and maximum over time, `[B, members × 2 × width]`.

        With `layer`, those of the output of that block, from 0, which has fewer channels.
        """
        return self._pooled(self.frames(codes, valid, layer))

    def frames(self, codes: Tensor, valid: Tensor | None = None, layer: int = -1) -> Tensor:
        """Return the output of a block, `[B, channels, T / tokens of a frame]`; `FRAME` tokens by default."""
        places = codes[..., : self.num_places]
        known = places != 0
        if valid is not None:
            known = known & valid[..., None]
        levels = self.embedding.get_buffer("places_0")[:, 0]
        mv = torch.where(known, levels[places], 0).transpose(1, 2)
        x: Tensor = self.stem(mv, known.any(dim=1))
        for block in self.trunk.blocks if layer < 0 else self.trunk.blocks[: layer + 1]:
            x = block(x)
        return x

    def _pooled(self, x: Tensor) -> Tensor:
        of_members = x.view(len(x), self.members, -1, x.shape[2])
        return torch.cat([of_members.mean(dim=3), of_members.amax(dim=3)], dim=2).flatten(1)


class DirectedStem(nn.Module):
    """The same filters for every lead, summed over leads with weights that follow from their directions."""

    def __init__(self, num_places: int, num_channels: int) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.empty(NUM_FILTERS, STEM_KERNEL))
        nn.init.kaiming_uniform_(self.filters, a=math.sqrt(5))
        self.register_buffer("direction", torch.from_numpy(directions()), persistent=False)
        self.mix = nn.Sequential(nn.Linear(6, MIX_HIDDEN), nn.GELU(), nn.Linear(MIX_HIDDEN, num_channels * NUM_FILTERS))
        self.of_place = nn.Parameter(torch.zeros(num_places, num_channels * NUM_FILTERS))
        self.norm = nn.BatchNorm1d(num_channels)
        self.num_channels = num_channels

    def forward(self, mv: Tensor, present: Tensor) -> Tensor:
        """Return channels `[B, C, T / 2]` from leads `[B, P, T]`, of which those `present` `[B, P]` count."""
        mixed = (self.mix(self.get_buffer("direction")) + self.of_place).view(-1, self.num_channels, NUM_FILTERS)
        # Filters and sums are linear, so they are one convolution over the leads.
        kernel = torch.einsum("pcf,fk->cpk", mixed, self.filters)
        summed = F.conv1d(mv, kernel, stride=2, padding=STEM_KERNEL // 2)
        # As much as of twelve leads, which would otherwise be louder than one.
        few = (12 / present.sum(dim=1).clamp(min=1)).sqrt() / 12**0.5 / NUM_FILTERS**0.5
        return F.relu(self.norm(summed * few[:, None, None]))


class PlacedStem(nn.Module):
    """A convolution with a free weight for each place."""

    def __init__(self, num_places: int, num_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(num_places, num_channels, STEM_KERNEL, 2, STEM_KERNEL // 2, bias=False)
        self.norm = nn.BatchNorm1d(num_channels)

    def forward(self, mv: Tensor, present: Tensor) -> Tensor:
        """Return channels `[B, C, T / 2]` from leads `[B, P, T]`."""
        return F.relu(self.norm(self.conv(mv)))


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut (He et al. 2016, in one dimension)."""

    def __init__(self, inner: int, outer: int, stride: int, members: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(inner, outer, KERNEL, stride, KERNEL // 2, groups=members, bias=False)
        self.second = nn.Conv1d(outer, outer, KERNEL, 1, KERNEL // 2, groups=members, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm1d(outer), nn.BatchNorm1d(outer)])
        self.shortcut = nn.Sequential(
            nn.AvgPool1d(stride, stride, ceil_mode=True),
            nn.Conv1d(inner, outer, 1, groups=members, bias=False),
            nn.BatchNorm1d(outer),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return `[B, outer, T / stride]` from `[B, inner, T]`."""
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(y + self.shortcut(x))
