"""Local clients: the clients of a rank train one after the other with a shared model."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heartlm.extensions.federated.client import ClientTask, Update
from heartlm.extensions.federated.models import Learning
from heartlm.extensions.federated.partition import Member
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.training.learner import learning_rate


@dataclass
class LocalClients:
    """Clients that train in this process.

    Attributes:
        study: settings.
        members: all clients of the study.
        learning: model and optimiser shared by the clients of this rank.
        kept: optimiser state between rounds of each client of this rank, by its number; modified in place.
    """

    study: FederatedConfig
    members: Sequence[Member]
    learning: Learning
    kept: dict[int, dict[str, Tensor]]

    def train(self, global_vector: Tensor, tasks: Mapping[int, ClientTask]) -> dict[int, Update | str]:
        """Train one after the other the clients of this rank that have a task; see `Clients`."""
        return {n: self._train(n, global_vector, task) for n, task in tasks.items() if n in self.kept}

    def _train(self, number: int, global_vector: Tensor, task: ClientTask) -> Update | str:
        begin_s, study, learning = time.perf_counter(), self.study, self.learning
        learning.flat.vector.copy_(global_vector)
        restore(learning.optimizer, self.kept[number])
        anchors = learning.flat.views(learning.flat.vector.clone()) if study.strategy == "fedprox" else []
        losses = list[Tensor]()
        for step in range(task.num_steps):
            if task.dies_after == step:
                return f"died before local step {step + 1}"
            study_step = task.round_index * study.local_steps + step
            losses.append(learning.gradients(number, study_step))
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
        self.kept[number] = remembered(learning.optimizer)
        loss, num_samples = float(torch.stack(losses).mean()), self.members[number].num_samples
        return Update(delta, num_samples, len(losses), loss, time.perf_counter() - begin_s)


def remembered(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return a copy of the optimiser state in host memory, with keys `index.name`."""
    return {
        f"{index}.{name}": torch.as_tensor(value).detach().to("cpu", copy=True)
        for index, entry in optimizer.state_dict()["state"].items()
        for name, value in entry.items()
        if value is not None
    }


def restore(optimizer: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    """Replace the state of `optimizer` by the result of `remembered`."""
    entries = defaultdict[int, dict[str, Tensor]](dict)
    for key, value in state.items():
        index, name = key.split(".", 1)
        entries[int(index)][name] = value.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": entries})
