"""Clients of a federated study: sampling per round, tasks and updates.

global vector ─► client: local steps on its own patients ─► Update (how the vector should change)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from heartlm.extensions.federated.partition import Member
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.kernels.draws import Stream, Use, draws, uniform


@dataclass(frozen=True)
class Update:
    """The result of a client in a round.

    Attributes:
        delta: local minus global weights, float64 `[P]` in host memory. In double precision, the global weights plus
            the delta of a single client equal the weights of that client to the last bit.
        num_samples: number of training samples (beats, or tokens of a corpus), the weight in the mean.
        num_steps: number of local steps taken.
        loss: mean loss over these steps.
        seconds: duration in s.
    """

    delta: Tensor
    num_samples: int
    num_steps: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class ClientTask:
    """The task of a client in a round.

    Attributes:
        round_index: number of the round, from 0.
        num_steps: number of local steps.
        dies_after: number of local steps before a simulated failure; None for no failure.
    """

    round_index: int
    num_steps: int
    dies_after: int | None = None


class Clients(Protocol):
    """Clients that train on their own patients, here or on the nodes of a federation.

    Attributes:
        kept: by client, its optimiser state between rounds, in host memory; empty for clients on nodes.
    """

    kept: dict[int, dict[str, Tensor]]

    def train(self, global_vector: Tensor, tasks: Mapping[int, ClientTask]) -> Mapping[int, Update | str]:
        """Take local steps from `global_vector`, float32 `[P]` in main memory, which stays as it is.

        Args:
            global_vector: weights to start from.
            tasks: tasks of the clients of a round; those of other ranks' clients are ignored.

        Returns:
            By client, its update, or the reason why it failed; its state is then as before the round.
        """


def sample_clients(study: FederatedConfig, members: Sequence[Member], round_index: int) -> dict[int, ClientTask]:
    """Return the tasks of the clients sampled in round `round_index`, by ascending client number.

    A pure function of seed, round and client. The number of steps of a straggler is uniform from one to all but one. A
    failing client fails before one of its steps, each equally likely.
    """
    num = len(members)

    def chances(use: Use, size: int) -> NDArray[np.float64]:
        return uniform(draws(Stream(study.seed, round_index, use), 0, size))

    # Stable, so that equal draws choose the same clients on every machine.
    order = np.argsort(chances(Use.ASKED, num), kind="stable")
    asked = sorted(int(client) for client in order[: max(1, round(study.participation * num))])
    # Two draws of each client: whether, and how much.
    slow, how_slow = chances(Use.SLOW, 2 * num).reshape(num, 2).T
    lost, how_soon = chances(Use.LOST, 2 * num).reshape(num, 2).T
    result = dict[int, ClientTask]()
    for client in asked:
        steps = study.local_steps
        if slow[client] < study.stragglers:
            steps = max(1, int(how_slow[client] * steps))
        dies = int(how_soon[client] * steps) if lost[client] < study.failures else None
        result[client] = ClientTask(round_index, steps, dies)
    return result
