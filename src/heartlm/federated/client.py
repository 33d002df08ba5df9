"""Clients of a federated study: which are sampled in a round, what each is asked to do, and what it returns.

global vector ─► client: local steps on its own patients ─► Update (how the vector should change)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from heartlm.federated.partition import Member
from heartlm.federated.study_file import FederatedConfig
from heartlm.kernels.draws import Stream, draws, uniform

ASKED_STREAM, SLOW_STREAM, LOST_STREAM = 12, 13, 14


@dataclass(frozen=True)
class Update:
    """What leaves a client after a round.

    Attributes:
        delta: local weights less global ones, float64 `[P]` in main memory: in double precision, so that the global
            weights plus the delta of a single client are that client's weights to the last bit.
        num_samples: the client's training samples (beats, or tokens of a corpus): its weight in the mean.
        num_steps: local steps it took; fewer than asked for where a deadline came first.
        loss: mean over these steps.
        seconds: it took.
    """

    delta: Tensor
    num_samples: int
    num_steps: int
    loss: float
    seconds: float


class ClientLost(Exception):  # noqa: N818
    """A client died in the middle of a round; the round ends without it, and it may take part in the next."""


@dataclass(frozen=True)
class ClientTask:
    """What a client is asked to do in a round.

    Attributes:
        round_index: from 0.
        num_steps: local steps at most.
        deadline_s: seconds after which no further step is started; None for no deadline.
        dies_after: local steps after which it dies, to see what becomes of the rest; None where it lives.
    """

    round_index: int
    num_steps: int
    deadline_s: float | None = None
    dies_after: int | None = None


class Client(Protocol):
    """One that learns on its own patients."""

    @property
    def kept(self) -> dict[str, Tensor]:
        """What it keeps between rounds (the moments of its optimiser), in main memory; changed in place."""

    def train(self, global_vector: Tensor, task: ClientTask) -> Update:
        """Take local steps from `global_vector`, float32 `[P]` in main memory, which stays as it is.

        Raises:
            ClientLost: it died; what it keeps between rounds is as it was before this one.
        """


def sample_clients(study: FederatedConfig, members: Sequence[Member], round_index: int) -> dict[int, ClientTask]:
    """The tasks of the clients sampled in round `round_index`, by client number, ascending.

    A pure function of seed, round and client. A straggler has done a number of steps, uniform from one to one less than
    all, when the deadline comes; a client that fails does so before one of its steps, each equally likely.
    """
    num = len(members)

    def chances(use: int, size: int) -> NDArray[np.float64]:
        return uniform(draws(Stream(study.seed, round_index, use), 0, size))

    order = np.argsort(chances(ASKED_STREAM, num), kind="stable")
    asked = sorted(int(client) for client in order[: max(1, round(study.participation * num))])
    slow, how_slow = chances(SLOW_STREAM, 2 * num).reshape(num, 2).T
    lost, how_soon = chances(LOST_STREAM, 2 * num).reshape(num, 2).T
    result = dict[int, ClientTask]()
    for client in asked:
        steps = study.local_steps
        if slow[client] < study.stragglers:
            steps = int(how_slow[client] * study.local_steps)
            steps = 0 if study.late == "drop" else max(1, steps)
        dies = int(how_soon[client] * max(1, steps)) if lost[client] < study.failures else None
        result[client] = ClientTask(round_index, steps, study.deadline_s, dies)
    return result
