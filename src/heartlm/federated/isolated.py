"""Clients in processes of their own: one that is killed, or runs out of memory, loses its round and no other.

    rank ──(task, global weights, what was kept)──► process of a client ──(update, what to keep)──► rank

A new process is started in the next round that samples the client. It gets what the client kept before the round it
died in, which the rank holds. Processes are spawned, not forked: a forked copy of an MPI process is of no use.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor

from heartlm.errors import HeartlmError
from heartlm.federated.client import Between, ClientLost, ClientTask, Update, nothing
from heartlm.federated.local import LocalClient
from heartlm.training.full_speed import at_full_speed

MakeClient = Callable[[], LocalClient]
"""Makes the client inside its process: reads its recordings there, and nowhere else."""

LOOK_EVERY_S = 0.002
"""Time between polls of pending sums while a client's process takes its local steps."""


@dataclass
class IsolatedClient:
    """A client whose local steps are taken in a process of its own.

    Attributes:
        name: of the client.
        num_samples: its training samples.
        make: makes it in its process; has to survive pickling.
        kept: what its optimiser remembers from round to round.
    """

    name: str
    num_samples: int
    make: MakeClient
    kept: dict[str, Tensor] = field(default_factory=dict)
    _process: BaseProcess | None = None
    _connection: Connection[Any, Any] | None = None

    @property
    def process_id(self) -> int | None:
        """Of its process; None while it has none."""
        return None if self._process is None else self._process.pid

    def train(self, global_vector: Tensor, task: ClientTask, between: Between = nothing) -> Update:
        """Let its process take local steps.

        Raises:
            ClientLost: the process died; the next round starts another.
            HeartlmError: what went wrong in it was the user's mistake.
        """
        if self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, other_end = context.Pipe()
            self._process = context.Process(target=_serve, args=(other_end, self.make), daemon=True)
            self._process.start()
            other_end.close()
        connection, process = self._connection, self._process
        try:
            connection.send((task, global_vector.numpy(), {key: each.numpy() for key, each in self.kept.items()}))
            while not connection.poll(LOOK_EVERY_S):
                between()
            answer = connection.recv()
        except (EOFError, OSError) as error:
            self.close()
            status = None if process is None else process.exitcode
            how = "" if status is None else f" of signal {-status}" if status < 0 else f" with status {status}"
            raise ClientLost(f"its process died{how}") from error
        if isinstance(answer, Exception):
            raise answer
        update: Update
        update, delta, kept = answer
        self.kept.clear()
        self.kept.update({key: torch.from_numpy(each) for key, each in kept.items()})
        return replace(update, delta=torch.from_numpy(delta))

    def close(self) -> None:
        """End its process."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.join(timeout=10)
            if self._process.is_alive():
                self._process.kill()
        self._process = self._connection = None


@at_full_speed()
def _serve(connection: Connection[Any, Any], make: MakeClient) -> None:
    """The process of a client: does tasks until the rank closes the connection."""
    client = make()
    while True:
        try:
            task, global_vector, kept = connection.recv()
        except EOFError:
            return
        client.kept.clear()
        client.kept.update({key: torch.from_numpy(each) for key, each in kept.items()})
        try:
            update = client.train(torch.from_numpy(global_vector), task)
        except (ClientLost, HeartlmError) as error:
            connection.send(error)
            continue
        nothing_heavy = replace(update, delta=torch.zeros(0))
        connection.send((nothing_heavy, update.delta.numpy(), {key: each.numpy() for key, each in client.kept.items()}))
