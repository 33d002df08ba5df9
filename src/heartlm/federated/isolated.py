"""Clients in processes of their own: one that is killed, or runs out of memory, loses its round and no other.

    rank ──(task, global weights, what was kept)──► process of a client ──(update, what to keep)──► rank

A new process is started in the next round that samples the client. It gets what the client kept before the round it
died in, which the rank holds. Processes are spawned, not forked: a forked copy of an MPI process is of no use.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.federated.client import ClientLost, ClientTask, Update
from heartlm.federated.local import LocalClient, patients_of
from heartlm.federated.partition import Member
from heartlm.federated.study_file import FederatedConfig
from heartlm.federated.tiny import TinyPatients
from heartlm.parent import end_with_parent
from heartlm.training.full_speed import at_full_speed

MakeClient = Callable[[], LocalClient]
"""Makes the client inside its process: reads its recordings there, and nowhere else."""

Vector = NDArray[np.generic]

_client: LocalClient
"""The client of a process that `_make` started."""


@dataclass
class IsolatedClient:
    """A client whose local steps are taken in a process of its own.

    Attributes:
        name: of the client.
        num_samples: its training samples.
        make: makes it in its process; has to survive pickling.
        kept: what its optimiser remembers from round to round.
        process_id: of its process; None while it has none.
    """

    name: str
    num_samples: int
    make: MakeClient
    kept: dict[str, Tensor] = field(default_factory=dict)
    process_id: int | None = None
    _process: ProcessPoolExecutor | None = None

    def train(self, global_vector: Tensor, task: ClientTask) -> Update:
        """Let its process take local steps.

        Raises:
            ClientLost: the process died; the next round starts another.
            HeartlmError: what went wrong in it was the user's mistake.
        """
        try:
            if self._process is None:
                context = multiprocessing.get_context("spawn")
                self._process = ProcessPoolExecutor(1, context, _make, (self.make, os.getpid()))
                self.process_id = self._process.submit(os.getpid).result()
            kept = {key: each.numpy() for key, each in self.kept.items()}
            update, delta, kept = self._process.submit(_train, global_vector.numpy(), task, kept).result()
        except BrokenProcessPool as error:
            self.close()
            raise ClientLost("its process died") from error
        self.kept.clear()
        self.kept.update({key: torch.from_numpy(each) for key, each in kept.items()})
        return replace(update, delta=torch.from_numpy(delta))

    def close(self) -> None:
        """End its process."""
        if self._process is not None:
            self._process.shutdown(cancel_futures=True)
        self._process = self.process_id = None


def read_client(study: FederatedConfig, number: int, members: Sequence[Member]) -> LocalClient:
    """Client `number` of `members`, whose recordings are read here, in its process."""
    torch.set_num_threads(study.threads)
    patients, member = patients_of(study), members[number]
    if isinstance(patients, TinyPatients):
        patients.test = []  # the ranks score
    return LocalClient(number, member.name, member.num_samples, patients.learning(members, [number], 0, 1), study, {})


def _make(make: MakeClient, parent: int) -> None:
    global _client
    end_with_parent(parent)
    _client = make()


@at_full_speed()
def _train(
    global_vector: Vector, task: ClientTask, kept: dict[str, Vector]
) -> tuple[Update, Vector, dict[str, Vector]]:
    _client.kept.clear()
    _client.kept.update({key: torch.from_numpy(each) for key, each in kept.items()})
    update = _client.train(torch.from_numpy(global_vector), task)
    after = {key: each.numpy() for key, each in _client.kept.items()}
    return replace(update, delta=torch.zeros(0)), update.delta.numpy(), after
