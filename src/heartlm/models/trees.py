"""Boosted trees as tensors, so that they are saved with a network and need no scikit-learn to answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heartlm.errors import needs

NUM_TREES, NUM_LEAVES = 100, 15
"""Trees of each class, and leaves of a tree."""
NUM_NODES = 2 * NUM_LEAVES - 1


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


def fitted_trees(features: NDArray[np.float32], labels: NDArray[np.int64], seed: int) -> Trees:
    """Fit trees to labels by scikit-learn's histogram-based gradient boosting.

    Args:
        features: `[num_cases, num_features]`, finite.
        labels: of each class 1, 0, or −1 if not known, `[num_cases, num_classes]`; each class has both.
        seed: random seed of the features that a split may use.

    Raises:
        HeartlmError: scikit-learn is not installed.
    """
    with needs("score"):
        from sklearn.ensemble import HistGradientBoostingClassifier
    trees = Trees(labels.shape[1])
    for place, own in enumerate(labels.T):
        known = own >= 0
        model: Any = HistGradientBoostingClassifier(
            max_iter=NUM_TREES, max_leaf_nodes=NUM_LEAVES, max_features=0.3, early_stopping=False, random_state=seed
        ).fit(features[known], own[known])
        trees.bias[place] = float(model._baseline_prediction.item())
        for number, (predictor,) in enumerate(model._predictors):
            nodes = predictor.nodes
            num, is_leaf = len(nodes), nodes["is_leaf"].astype(bool)
            index = np.arange(num)
            trees.feature[place, number, :num] = torch.from_numpy(
                np.where(is_leaf, -1, nodes["feature_idx"].astype(np.int16))
            )
            trees.value[place, number, :num] = torch.from_numpy(
                np.where(is_leaf, nodes["value"], nodes["num_threshold"]).astype(np.float32)
            )
            both = np.stack([np.where(is_leaf, index, nodes[side].astype(np.int64)) for side in ("left", "right")], 1)
            trees.child[place, number, :num] = torch.from_numpy(both.astype(np.uint8))
    return trees
