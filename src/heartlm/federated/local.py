"""A client in this process: local steps of a model that the clients of a rank share, one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from heartlm.federated.client import Between, ClientLost, ClientTask, Update, nothing
from heartlm.federated.flat import FlatModel
from heartlm.federated.partition import Member, PatientCounts
from heartlm.federated.scores import Scores
from heartlm.federated.study_file import FederatedConfig
from heartlm.training.schedule import learning_rate


class Learning(Protocol):
    """A model, its optimiser and the samples of the clients of a rank.

    Attributes:
        flat: the model.
        optimizer: of its learning parameters.
    """

    flat: FlatModel
    optimizer: torch.optim.Optimizer

    def gradients(self, client: int, step: int) -> Tensor:
        """Compute the gradients of local step `step` of client number `client`; return the mean loss, a scalar."""

    def step(self, rate: float) -> None:
        """Move the weights along the gradients, at `rate`, and drop the gradients."""

    def evaluate(self, part: int, of: int, between: Between) -> Any:
        """Look at part `part` of `of` of the test patients; what comes out can be sent to other ranks."""

    def scores(self, parts: list[Any], final: bool) -> Scores:
        """Scores from what `evaluate` gave on all ranks."""

    def save(self, folder: Path) -> None:
        """Write the model with its present weights."""


class StudyPatients(Protocol):
    """The patients that a study can read here.

    Attributes:
        left_out: recordings that are not used, one line each.
    """

    left_out: list[str]

    def patients(self) -> list[PatientCounts]:
        """Those to train on, by name."""

    def learning(self, members: Sequence[Member], mine: Sequence[int], part: int, of: int) -> Learning:
        """What the clients `mine` of this rank learn from, and part `part` of `of` of what is scored."""

    def of_client(self, member: Member) -> StudyPatients:
        """Those that a client needs in a process of its own; survives pickling."""


@dataclass(frozen=True)
class MakeClient:
    """Makes a client in a process of its own, where its recordings are read.

    Attributes:
        study: settings.
        number: of the client.
        members: all clients.
        patients: of the client.
    """

    study: FederatedConfig
    number: int
    members: Sequence[Member]
    patients: StudyPatients

    def __call__(self) -> LocalClient:
        """Read what the client learns from."""
        torch.set_num_threads(self.study.threads)
        learning, member = self.patients.learning(self.members, [self.number], 0, 1), self.members[self.number]
        return LocalClient(self.number, member.name, member.num_samples, learning, self.study, {})


@dataclass(frozen=True)
class LocalClient:
    """A client whose local steps are taken here.

    Attributes:
        number: of the client in the study.
        name: of the client.
        num_samples: its training samples.
        learning: shared by the clients of this rank.
        study: settings.
        kept: what its optimiser remembers from round to round.
    """

    number: int
    name: str
    num_samples: int
    learning: Learning
    study: FederatedConfig
    kept: dict[str, Tensor]

    def train(self, global_vector: Tensor, task: ClientTask, between: Between = nothing) -> Update:
        """Take local steps from `global_vector`.

        Raises:
            ClientLost: it died, as the task said.
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
            between()
        delta = learning.flat.vector.detach().cpu().double().sub_(global_vector)
        loss = float(torch.stack(losses).mean()) if losses else float("nan")
        if study.keep_optimizer:
            self.kept.clear()
            self.kept.update(remembered(learning.optimizer))
        return Update(delta, self.num_samples, len(losses), loss, time.perf_counter() - begin_s)


def remembered(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What `optimizer` knows of each parameter, copied to main memory; `place.name` of each."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"{place}.{name}": torch.as_tensor(value).detach().to("cpu", copy=True)
        for place, parameter in enumerate(parameters)
        for name, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore(optimizer: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    """Let `optimizer` know what `remembered` gave, and nothing else."""
    places = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.state.clear()
    for key, value in state.items():
        place, name = key.split(".", 1)
        parameter, group = places[int(place)]
        counts_steps = value.ndim == 0 and not group.get("fused")  # which stay on the host
        optimizer.state[parameter][name] = value.to("cpu" if counts_steps else parameter.device, copy=True)
