"""The boosted trees of `heartlm.inference.trees` as tensors, which are saved with a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from heartlm.models.sizes import NUM_LEAVES, NUM_NODES, NUM_TREES


class Trees(nn.Module):
    """Trees of each class; the logit of a class is its bias and the sum of its trees.

    Attributes:
        feature: feature that each node compares, int16 `[num_classes, NUM_TREES, NUM_NODES]`; −1 for a leaf.
        value: what it is compared with, or the logit of a leaf, float32 of the same shape.
        child: node for features up to the value, and for larger ones, uint8 `[..., 2]`; a leaf leads to itself.
        bias: logit of each class without trees, float32 `[num_classes]`.
    """

    feature: Tensor
    value: Tensor
    child: Tensor
    bias: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        shape = num_classes, NUM_TREES, NUM_NODES
        self.register_buffer("feature", torch.full(shape, -1, dtype=torch.int16))
        self.register_buffer("value", torch.zeros(shape))
        self.register_buffer("child", torch.zeros(*shape, 2, dtype=torch.uint8))
        self.register_buffer("bias", torch.zeros(num_classes))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits `[B, num_classes]` of features `[B, num_features]`."""
        # All nodes of all trees are one row; each tree begins at its own root.
        feature, value, child = self.feature.flatten().long(), self.value.flatten(), self.child.flatten().long()
        root = torch.arange(0, len(feature), NUM_NODES, device=features.device)
        node = root.expand(len(features), -1)
        for _ in range(NUM_LEAVES - 1):  # no leaf is deeper, and a leaf leads to itself
            compared = feature[node]
            is_larger = features.gather(1, compared.clamp(min=0)) > value[node]
            node = root + child[2 * node + is_larger.long()]
            # An exporter unrolls the loop, for which it must not depend on the features.
            if not torch.compiler.is_exporting() and (feature[node] < 0).all():
                break
        logits = value[node].view(len(features), len(self.bias), NUM_TREES)
        return logits.sum(dim=2) + self.bias


def tensors_of(trees: Any) -> Trees:
    """Return the trees of `heartlm.inference.trees` as tensors."""
    tensors = Trees(len(trees.bias))
    tensors.load_state_dict({name: torch.from_numpy(value) for name, value in vars(trees).items()})
    return tensors
