"""A rank of `federated.py`: a study of clients with processes of their own, one of which is killed (SIGKILL).

mpiexec -n 2 python benchmarks/federated_kill.py DATABASE OUT ROUND
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from heartlm.distributed.communicator import agreed, communicator_of
from heartlm.federated.client import ClientTask, Update
from heartlm.federated.federate import ready, run_rounds
from heartlm.federated.isolated import IsolatedClient
from heartlm.federated.study_file import FederatedConfig
from heartlm.federated.study_folder import StudyFolder

VICTIM = 1


class Killed:
    """A client whose process is killed a moment after it was given work in one round."""

    def __init__(self, inner: IsolatedClient, in_round: int) -> None:
        self.inner, self.in_round = inner, in_round
        self.name, self.num_samples = inner.name, inner.num_samples
        self.kept = inner.kept

    def train(self, vector: torch.Tensor, task: ClientTask) -> Update:
        if task.round_index + 1 != self.in_round:
            return self.inner.train(vector, task)

        def kill() -> None:
            assert self.inner.process_id is not None
            os.kill(self.inner.process_id, signal.SIGKILL)

        threading.Timer(0.2, kill).start()
        return self.inner.train(vector, replace(task, num_steps=1_000_000))


def main() -> None:
    database, out, in_round = sys.argv[1:]
    settings: dict[str, Any] = {"rounds": 8, "local_steps": 10, "batch_size": 64, "evaluate_every": 4, "device": "cpu"}
    study = FederatedConfig(
        databases=[database], out=Path(out), partition="iid", clients=4, isolated=True, save_every=4, **settings
    )
    torch.set_flush_denormal(True)
    communicator, folder = (
        communicator_of(study.communicator, study.device, study.threads, study.timeout_s),
        StudyFolder(Path(out)),
    )
    rounds, evaluation = agreed(communicator, lambda: ready(study, folder, communicator))
    clients = dict(rounds.clients)
    if in_round != "none" and VICTIM in clients:
        victim = clients[VICTIM]
        assert isinstance(victim, IsolatedClient)
        clients[VICTIM] = Killed(victim, int(in_round))
        rounds.clients = clients
    run_rounds(rounds, evaluation, folder, communicator)
    communicator.close()


if __name__ == "__main__":
    main()
