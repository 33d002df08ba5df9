"""Joining the other ranks of a federated study, through the launcher that started them."""

from __future__ import annotations

import os

import torch

from heartlm.distributed.parallel import take_cores
from heartlm.errors import HeartlmError
from heartlm.extensions.federated.communicator import Communicator
from heartlm.extensions.federated.mpi import MPICommunicator
from heartlm.extensions.federated.torch_distributed import TorchCommunicator

MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
"""Environment variables set by mpiexec (Open MPI, MPICH) and srun --mpi=pmix."""


def communicator_of(kind: str, device: str, threads: int = 1, timeout_s: float = 600.0) -> Communicator:
    """Join the other ranks, and set the cores and threads of this rank.

    Args:
        kind: torch, mpi, local, or auto for the launcher of this process.
        device: auto, cpu or cuda.
        threads: CPU threads of torch per rank.
        timeout_s: seconds after which a rank that does not respond counts as lost.

    Raises:
        HeartlmError: the rendezvous failed, or a package is missing.
    """
    if kind == "auto":
        started = "torch" if "WORLD_SIZE" in os.environ else "local"
        kind = "mpi" if any(name in os.environ for name in MPI_VARIABLES) else started
    if kind == "torch" and int(os.environ.get("WORLD_SIZE", "0")) > 1:
        return TorchCommunicator(device, threads, timeout_s)
    if kind == "torch" and "WORLD_SIZE" not in os.environ:
        raise HeartlmError("communicator: 'torch' found, but several ranks were not started: use torchrun, or local")
    if kind == "mpi":
        communicator = MPICommunicator()
        take_cores(communicator.ranks, threads, pinned=device == "cpu" or not torch.cuda.is_available())
        return communicator
    torch.set_num_threads(threads)
    return Communicator()
