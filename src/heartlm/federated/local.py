"""Local clients: the clients of a rank train one after the other with a shared model."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from heartlm.federated.client import ClientLost, ClientTask, Update
from heartlm.federated.language import CorpusPatients, LanguageLearning
from heartlm.federated.partition import Member
from heartlm.federated.study_file import FederatedConfig
from heartlm.federated.tiny import TinyLearning, TinyPatients
from heartlm.training.learner import learning_rate

Learning = TinyLearning | LanguageLearning
"""A model, its optimiser and the samples of the clients of a rank."""


def patients_of(study: FederatedConfig) -> TinyPatients | CorpusPatients:
    """Return the patients available to this process.

    Raises:
        HeartlmError: there are no patients, or their recordings or corpus are unusable.
    """
    return TinyPatients(study) if study.model == "tiny_ecg" else CorpusPatients(study)


@dataclass(frozen=True)
class LocalClient:
    """A client that trains in this process.

    Attributes:
        number: number of the client in the study.
        member: name, patients and samples of the client.
        learning: model and optimiser shared by the clients of this rank.
        study: settings.
        kept: optimiser state between rounds.
    """

    number: int
    member: Member
    learning: Learning
    study: FederatedConfig
    kept: dict[str, Tensor]

    def train(self, global_vector: Tensor, task: ClientTask) -> Update:
        """Take local steps from `global_vector`.

        Raises:
            ClientLost: the task simulates a failure.
        """
        begin_s, study, learning = time.perf_counter(), self.study, self.learning
        learning.flat.load(global_vector)
        restore(learning.optimizer, self.kept if study.keep_optimizer else {})
        anchors = learning.flat.views(learning.flat.vector.clone()) if study.strategy == "fedprox" else []
        losses = list[Tensor]()
        for step in range(task.num_steps):
            if task.dies_after == step:
                raise ClientLost(f"died before local step {step + 1}")
            if task.deadline_s is not None and time.perf_counter() - begin_s > task.deadline_s:
                break
            study_step = task.round_index * study.local_steps + step
            losses.append(learning.gradients(self.number, study_step))
            # FedProx adds the gradient of half of `proximal` times the squared distance from the global weights.
            for parameter, anchor in zip(learning.flat.parameters if anchors else [], anchors, strict=True):
                assert parameter.grad is not None
                parameter.grad.add_(parameter.detach() - anchor, alpha=study.proximal)
            rate = learning_rate(
                study_step,
                peak=study.learning_rate,
                warmup_steps=0,
                steps=study.rounds * study.local_steps,
                final_share=study.final_learning_rate,
            )
            learning.step(rate)
        delta = learning.flat.vector.detach().cpu().double().sub_(global_vector)
        loss = float(torch.stack(losses).mean()) if losses else float("nan")
        if study.keep_optimizer:
            self.kept.clear()
            self.kept.update(remembered(learning.optimizer))
        return Update(delta, self.member.num_samples, len(losses), loss, time.perf_counter() - begin_s)


def remembered(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return a copy of the optimiser state in host memory, with keys `index.name`."""
    return {
        f"{place}.{name}": torch.as_tensor(value).detach().to("cpu", copy=True)
        for place, entry in optimizer.state_dict()["state"].items()
        for name, value in entry.items()
        if value is not None
    }


def restore(optimizer: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    """Replace the state of `optimizer` by the result of `remembered`."""
    entries = defaultdict[int, dict[str, Tensor]](dict)
    for key, value in state.items():
        place, name = key.split(".", 1)
        entries[int(place)][name] = value.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": entries})
