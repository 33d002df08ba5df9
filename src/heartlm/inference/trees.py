"""Boosted trees as arrays, so that they are saved with a network and need no scikit-learn to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import needs
from heartlm.models.sizes import NUM_LEAVES, NUM_NODES, NUM_TREES
from heartlm.models.weights import Weights


@dataclass(frozen=True)
class TreeArrays:
    """Trees of each class; the logit of a class is its bias and the sum of its trees.

    Attributes:
        feature: feature that each node compares, int16 `[num_classes, NUM_TREES, NUM_NODES]`; −1 for a leaf.
        value: what it is compared with, or the logit of a leaf, float32 of the same shape.
        child: node for features up to the value, and for larger ones, uint8 `[..., 2]`; a leaf leads to itself.
        bias: logit of each class without trees, float32 `[num_classes]`.
    """

    feature: NDArray[np.int16]
    value: NDArray[np.float32]
    child: NDArray[np.uint8]
    bias: NDArray[np.float32]

    def __call__(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return logits `[B, num_classes]` of features `[B, num_features]`."""
        # All nodes of all trees are one row; each tree begins at its own root.
        feature, value, child = self.feature.ravel(), self.value.ravel(), self.child.ravel()
        root = np.arange(0, len(feature), NUM_NODES)
        node = np.broadcast_to(root, (len(features), len(root)))
        for _ in range(NUM_LEAVES - 1):  # no leaf is deeper, and a leaf leads to itself
            compared = np.maximum(feature[node], 0)
            is_larger = np.take_along_axis(features, compared.astype(np.int64), axis=1) > value[node]
            node = root + child[2 * node + is_larger]
            if (feature[node] < 0).all():
                break
        logits = value[node].reshape(len(features), len(self.bias), NUM_TREES)
        return np.asarray(logits.sum(axis=2) + self.bias)


def trees_of(weights: Weights, num_classes: int) -> TreeArrays:
    """Return the trees of a saved model."""
    shape = num_classes, NUM_TREES, NUM_NODES
    feature, value, child = (
        weights.take("feature", *shape),
        weights.take("value", *shape),
        weights.take("child", *shape, 2),
    )
    return TreeArrays(feature, value, child, weights.take("bias", num_classes))


def fitted_trees(features: NDArray[np.float32], labels: NDArray[np.int64], seed: int) -> TreeArrays:
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
    shape = labels.shape[1], NUM_TREES, NUM_NODES
    feature, value = np.full(shape, -1, np.int16), np.zeros(shape, np.float32)
    child, bias = np.zeros((*shape, 2), np.uint8), np.zeros(labels.shape[1], np.float32)
    for place, own in enumerate(labels.T):
        known = own >= 0
        model: Any = HistGradientBoostingClassifier(
            max_iter=NUM_TREES, max_leaf_nodes=NUM_LEAVES, max_features=0.3, early_stopping=False, random_state=seed
        ).fit(features[known], own[known])
        bias[place] = float(model._baseline_prediction.item())
        for number, (predictor,) in enumerate(model._predictors):
            nodes = predictor.nodes
            num, is_leaf = len(nodes), nodes["is_leaf"].astype(bool)
            feature[place, number, :num] = np.where(is_leaf, -1, nodes["feature_idx"].astype(np.int16))
            value[place, number, :num] = np.where(is_leaf, nodes["value"], nodes["num_threshold"])
            for side, name in enumerate(("left", "right")):
                child[place, number, :num, side] = np.where(is_leaf, np.arange(num), nodes[name].astype(np.int64))
    return TreeArrays(feature, value, child, bias)
