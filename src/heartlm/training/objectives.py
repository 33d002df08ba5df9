"""Losses as sums over the counted tokens of a batch.

The training loop divides by the number of counted tokens of the global batch, so the loss does not depend on how the
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

from heartlm.labels.tokens import IGNORE
from heartlm.models.heart import HeartModel
from heartlm.training.batches import Batch

LossSum = Callable[[HeartModel, Batch, Tensor | None], tuple[Tensor, dict[str, Tensor]]]
"""`loss(model, batch, keys)` → sum over counted tokens, and its parts by name.

`keys` are dropout keys, see `HeartModel.hidden`. The batch is on the device of the model.
"""


class LossModule(nn.Module):
    """A model and its loss as one module for DDP and FSDP, whose hooks run when `forward` is called.

    Attributes:
        model: the model to train.
        loss: function that sums the loss of a batch.
    """

    def __init__(self, model: HeartModel, loss: LossSum) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the loss of `batch`."""
        return self.loss(self.model, batch, batch.keys)


def padding(batch: Batch) -> Tensor | None:
    """Return the mask of valid tokens, or None if all are valid, so that attention needs no mask."""
    return None if batch.all_valid else batch.valid


@dataclass(frozen=True)
class FacetLoss:
    """Cross-entropy of every facet at the counted tokens, averaged over facets, in nats.

    Attributes:
        names: names of the facets in the metrics.
    """

    names: tuple[str, ...]

    def __call__(self, model: HeartModel, batch: Batch, keys: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the loss of `batch`."""
        target, chosen = batch.target.flatten(0, 1), batch.chosen
        if chosen is not None:
            fills = chosen < 0
            chosen = torch.where(fills, len(target) - 1, chosen)
            target = torch.where(fills[:, None], IGNORE, target.index_select(0, chosen))
        hidden, table = model.hidden(batch.codes, padding(batch), keys, chosen)
        sums = model.facet_losses(hidden.reshape(len(target), -1), target, table)
        return sums.mean(), dict(zip(self.names, sums.detach().unbind(), strict=True))


class WeightedLoss(nn.Module):
    """Base class of losses with weights; it is a module, so that these are copied to the device once."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)


class LabelLoss(WeightedLoss):
    """Cross-entropy of the labels, with a weight for each class of each patient.

    The label of a token is `patient × num_classes + class`, so a batch needs no patient numbers.

    Args:
        weight: weight of each class of each patient, float32 `[num_patients, num_classes]`; one row without patients.
    """

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
    """Return a weight for each class of each patient, with mean 1 over the labels.

    The weight of a patient with n of the N labels of a class is proportional to n^−`patient_balance`. The weights of
    the labels of a class sum to N^(1 − `class_balance`), up to a common factor. This limits the influence of a patient
    with most labels of a rare class. A combination that does not occur is weighted as if it occurred once.

    Args:
        labels: class of each token, −1 to ignore, `[num_tokens]`.
        patient: patient number of each token, `[num_tokens]`.
        num_classes: number of classes.
        class_balance: 0 weights every label equally, 1 every class equally.
        patient_balance: 0 weights patients by their number of labels, 1 every patient equally.

    Returns:
        float32 `[num_patients, num_classes]`.
    """
    shape = int(patient.max(initial=0)) + 1, num_classes
    group = (patient * num_classes + labels)[labels >= 0]
    counts = np.bincount(group, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
    weight = np.maximum(counts, 1) ** -patient_balance
    share = np.maximum((weight * counts).sum(axis=0), 1e-12)
    of_class = np.maximum(counts.sum(axis=0), 1)
    weight *= np.where(counts.any(axis=0), of_class ** (1 - class_balance) / share, 1.0)
    weight *= counts.sum() / max((weight * counts).sum(), 1e-12)
    return torch.tensor(weight, dtype=torch.float32)
