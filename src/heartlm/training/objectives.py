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
    """Cross-entropy of the labels, each class of each patient weighed. A module: weights are sent to the device once.

    The label of a token is `patient × num_classes + class`, so a batch need not carry whose its windows are.

    Args:
        weight: of each class of each patient, float32 `[num_patients, num_classes]`; one row where all are one.
    """

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, model: HeartModel, batch: Batch, keys: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the loss of `batch`."""
        logits = model.class_logits(batch.codes, padding(batch), keys).flatten(0, -2)
        label = batch.target.flatten()
        of_class = torch.where(label < 0, -1, label % self.weight.shape[1])
        loss = F.cross_entropy(logits, of_class, ignore_index=-1, reduction="none")
        return (loss * self.weight.flatten()[label.clamp(min=0)]).sum(), {}


def label_weights(
    labels: NDArray[np.int64],
    patient: NDArray[np.int64],
    num_classes: int,
    class_balance: float,
    patient_balance: float = 0.0,
) -> Tensor:
    """Weigh the labels of each class of each patient, averaging one.

    A patient with n of the N labels of a class has weights in proportion to n to the power −`patient_balance` there;
    all weights of the class add up to N to the power 1 − `class_balance`. So one patient with most of a rare class
    does not decide what the class looks like. What never occurs weighs as if it occurred once.

    Args:
        labels: class of each token, −1 to ignore, `[num_tokens]`.
        patient: number of its patient, `[num_tokens]`.
        num_classes: how many classes there are.
        class_balance: 0 weighs all labels alike, 1 all classes.
        patient_balance: 0 weighs all patients by their labels, 1 all alike.

    Returns:
        float32 `[num_patients, num_classes]`.
    """
    shape = int(patient.max(initial=0)) + 1, num_classes
    place = (patient * num_classes + labels)[labels >= 0]
    counts = np.bincount(place, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
    weight = np.maximum(counts, 1) ** -patient_balance
    share = np.maximum((weight * counts).sum(axis=0), 1e-12)
    of_class = np.maximum(counts.sum(axis=0), 1)
    weight *= np.where(counts.any(axis=0), of_class ** (1 - class_balance) / share, 1.0)
    weight *= counts.sum() / max((weight * counts).sum(), 1e-12)
    return torch.tensor(weight, dtype=torch.float32)


def class_weights(labels: NDArray[np.int64], num_classes: int, balance: float) -> Tensor:
    """Weight each class by its frequency to the power −`balance`, averaging one over `labels`.

    A class that never occurs weighs as much as one that occurs once.
    """
    return label_weights(labels, np.zeros_like(labels), num_classes, balance)[0]
