"""Models that federated studies train: heart language models, and those that other distributions add.

    study.model ─► patients of this process ─► clients ─► learning of the clients of this rank

Another distribution names a class, called with the settings of the study, as an entry point of the group
`heartlm.federated_models`; `studies/tiny_ecg` is one. A node of a federation has the models that are installed there: a
study that it receives names a model and brings no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from heartlm.extensions.federated.flat import FlatModel
from heartlm.extensions.federated.language import LanguageLearning
from heartlm.extensions.federated.partition import Member, PatientCounts
from heartlm.extensions.federated.study_file import LANGUAGE, FederatedConfig, other_model


class Learning(Protocol):
    """A model, its optimiser and the samples of the clients of a rank.

    Attributes:
        flat: the model.
        optimizer: optimiser of its parameters.
    """

    flat: FlatModel
    optimizer: torch.optim.Optimizer

    def gradients(self, client: int, step: int) -> Tensor:
        """Compute the gradients of a local step, and return its loss."""

    def step(self, rate: float) -> None:
        """Take an optimiser step with learning rate `rate`."""

    def evaluate(self) -> Any:
        """Return this rank's part for `scores_of`."""

    def save(self, folder: Any) -> None:
        """Write the model."""


class Patients(Protocol):
    """The patients available to this process.

    Attributes:
        left_out: recordings that are not used, one line each.
    """

    left_out: list[str]

    def patients(self) -> list[PatientCounts]:
        """Return the training patients, by name."""

    def use_on_node(self, class_counts: list[int]) -> None:
        """Weight classes by the counts of all nodes, and score nothing: the server does."""

    def learning(self, members: Sequence[Member], mine: Sequence[int], part: int, of: int) -> Learning:
        """Return the model and samples of the clients `mine`, and part `part` of `of` of what is scored."""


def patients_of(study: FederatedConfig) -> Patients:
    """Return the patients available to this process.

    Raises:
        HeartlmError: the model is not installed, there are no patients, or their recordings or corpus are unusable.
    """
    if study.model in LANGUAGE:
        return LanguageLearning(study)
    patients: Patients = other_model(study.model).load()(study)
    return patients
