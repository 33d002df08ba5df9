"""A small federated study of synthetic waveforms, in this process or on several ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from heartlm_tiny_ecg.learning import TinyLearning
from heartlm_tiny_ecg.waveforms import NUM_CLASSES, BeatSet

from heartlm.distributed import shared_memory
from heartlm.extensions.federated.aggregate import Aggregator
from heartlm.extensions.federated.communicator import SHARED_BYTES, Communicator
from heartlm.extensions.federated.local import LocalClients
from heartlm.extensions.federated.partition import Member
from heartlm.extensions.federated.rounds import Rounds, Server
from heartlm.extensions.federated.strategy import strategy_of
from heartlm.extensions.federated.study_file import FederatedConfig
from tests.conftest import ROOT

if TYPE_CHECKING:
    from heartlm.extensions.federated.mpi import MPICommunicator
    from heartlm.extensions.federated.torch_distributed import TorchCommunicator

STUDY = FederatedConfig(
    model="tiny_ecg", rounds=4, local_steps=3, batch_size=8, evaluate_every=2, save_every=100, threads=1, device="cpu"
)
SIZES = (40, 24, 32, 17)


def beats(seed: int, num: int, name: str = "patient") -> BeatSet:
    """Random waveforms whose class shows in their width."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, NUM_CLASSES, num)
    bump = np.exp(-((np.linspace(-1, 1, 37) / (0.1 + 0.1 * label[:, None])) ** 2))
    waveform = (bump + 0.1 * generator.standard_normal((num, 37))).astype(np.float32)[:, None]
    return BeatSet(waveform, label.astype(np.int8), np.full(num, name))


def of_waveforms(database: Path) -> list[str]:
    """Options of a study of TinyECG."""
    return ["--model", "tiny_ecg", "--databases", f"[{database}]"]


def members(sizes: tuple[int, ...] = SIZES) -> list[Member]:
    return [Member(f"client-{number}", (f"p{number}",), size) for number, size in enumerate(sizes)]


def learning_of(study: FederatedConfig, clients: range, sizes: tuple[int, ...] = SIZES, rank: int = 0) -> TinyLearning:
    samples = {number: beats(number, sizes[number]) for number in clients}
    return TinyLearning(study, samples, beats(100 + rank, 30, f"test-{rank}"), torch.ones(NUM_CLASSES))


def rounds_of(
    study: FederatedConfig, communicator: Communicator | None = None, sizes: tuple[int, ...] = SIZES
) -> Rounds:
    """The rounds of `study` over clients of so many beats each, on this rank."""
    communicator = communicator or Communicator()
    mine = range(communicator.rank, len(sizes), communicator.size)
    learning = learning_of(study, mine, sizes, communicator.rank)
    clients = LocalClients(study, members(sizes), learning, {number: {} for number in mine})
    mean = Aggregator(study, communicator, len(learning.flat), len(sizes))
    server = Server(learning.flat.on_host(), strategy_of(study))
    return Rounds(study, members(sizes), clients, server, mean, learning, communicator)


def final_vector(communicator: Communicator | None = None, **settings: Any) -> torch.Tensor:
    """Global weights after the last round."""
    torch.set_num_threads(1)
    rounds = rounds_of(replace(STUDY, **settings), communicator)
    rounds.run(lambda: None)
    return rounds.server.vector


def mpiexec(num_ranks: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Start this Python `num_ranks` times; the test is skipped, with a reason, where there is no MPI."""
    pytest.importorskip("mpi4py", reason="mpi4py not found: pip install 'heartlm[mpi]'")
    from lab.steps import mpiexec as starter  # of the benchmarks, which ranks do not import

    try:
        command = [*starter(num_ranks), sys.executable, *words]
    except FileNotFoundError as error:
        pytest.skip(str(error))
    environment = {"HOME": str(Path.home()), **os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def write_final_vectors(kind: str, out: str, settings: dict[str, dict[str, Any]]) -> None:
    """What a rank does: see that both ways to add up agree, run each study, and save the global weights of its rank.

    Ranks of a `kind` that ends in "apart" share no memory, as on several machines.
    """
    communicator: MPICommunicator | TorchCommunicator
    if kind.endswith("apart"):
        shared_memory.FOLDER = Path(out) / "none"
    if kind.startswith("mpi"):
        from heartlm.extensions.federated.mpi import MPICommunicator

        communicator = MPICommunicator()
    else:
        from heartlm.extensions.federated.torch_distributed import TorchCommunicator

        communicator = TorchCommunicator(timeout_s=60.0)
    generator = torch.Generator().manual_seed(communicator.rank)
    numbers = torch.randint(-(2**63), 2**63 - 1, (SHARED_BYTES // 8 + 5,), generator=generator)
    waited_for = numbers.clone()
    communicator.sum(waited_for)
    assert torch.equal(communicator.start_sum(numbers).wait(), waited_for)
    assert (communicator._shared is None) == kind.endswith("apart")
    for name, changed in settings.items():
        path = Path(out) / f"{name}-{kind}-{communicator.size}-{communicator.rank}.pt"
        torch.save(final_vector(communicator, **changed), path)
    communicator.close()


if __name__ == "__main__":
    import json

    for kind in sys.argv[3:]:
        write_final_vectors(kind, sys.argv[1], json.loads(sys.argv[2]))
