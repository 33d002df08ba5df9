"""Losses: what a batch asks of the model, as a sum over the tokens that count.

The loop divides by the number of counting tokens of the whole global batch, so the loss does not depend on how the
batch is split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.models.heart import HeartModel
from heartlm.training.batches import Batch

LossSum = Callable[[HeartModel, Batch, Tensor | None], tuple[Tensor, dict[str, Tensor]]]
"""`loss(model, batch, keys)` → sum over counting tokens, and the same sum part by part.

`keys` are those of dropout, see `HeartModel.hidden`. The batch is where the model is.
"""


class LossModule(nn.Module):
    """A model and its loss as one module, which is what DDP and FSDP wrap: they act when its `forward` is called.

    Attributes:
        model: what learns.
        loss: what it is asked.
    """

    def __init__(self, model: HeartModel, loss: LossSum) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch, keys: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the loss of `batch`."""
        return self.loss(self.model, batch, keys)


def padding(batch: Batch) -> Tensor | None:
    """The mask of valid tokens, or None where all are, which spares the attention its mask."""
    return None if batch.all_valid else batch.valid


@dataclass(frozen=True)
class FacetLoss:
    """Cross-entropy of every facet at the counting tokens, averaged over facets, in nats.

    Attributes:
        names: of the facets, for the metrics.
    """

    names: tuple[str, ...]

    def __call__(self, model: HeartModel, batch: Batch, keys: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the loss of `batch`."""
        counting, target = None, batch.target.flatten(0, 1)
        if batch.num_counted < len(target):
            counting = torch.nonzero_static(batch.counts.flatten(), size=batch.num_counted).squeeze(1)
            target = target.index_select(0, counting)
        hidden, table = model.hidden(batch.codes, padding(batch), keys, counting)
        hidden = hidden.reshape(len(target), -1)
        logits = model.facet_logits(hidden, target, table)
        sums = [F.cross_entropy(x, target[:, facet], reduction="sum") for facet, x in enumerate(logits)]
        return torch.stack(sums).mean(), dict(zip(self.names, (s.detach() for s in sums), strict=True))


class LabelLoss(nn.Module):
    """Cross-entropy of the labels, each class weighed. A module, so that the weights are sent to the device once.

    Args:
        class_weight: float32 `[num_classes]`, averaging one over the training labels.
    """

    class_weight: Tensor

    def __init__(self, class_weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("class_weight", class_weight)

    def forward(self, model: HeartModel, batch: Batch, keys: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the loss of `batch`."""
        logits = model.class_logits(batch.codes, padding(batch), keys)
        target = batch.target.flatten()
        loss = F.cross_entropy(
            logits.flatten(0, -2),
            target,
            weight=self.class_weight,
            ignore_index=-1,
            reduction="sum",
        )
        return loss, {}


def class_weights(labels: NDArray[np.int64], num_classes: int, balance: float) -> Tensor:
    """Weight each class by its frequency to the power −`balance`, averaging one over `labels`.

    A class that never occurs weighs as much as one that occurs once.
    """
    counts = np.bincount(labels[labels >= 0], minlength=num_classes).astype(np.float64)
    weight = np.maximum(counts, 1) ** -balance
    weight *= counts.sum() / max((weight * counts).sum(), 1e-12)
    return torch.tensor(weight, dtype=torch.float32)
