"""Which communicator a study gets, and how its ranks agree before the first round."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from heartlm.distributed.communicator import Communicator, LocalCommunicator
from heartlm.distributed.parallel import take_cores
from heartlm.distributed.ranks import Ranks, ReportedByPeer
from heartlm.errors import HeartlmError

LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
"""Where torchrun, Open MPI, MPICH and SLURM say which process of its machine this is."""

Result = TypeVar("Result")

MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
"""What mpiexec (Open MPI, MPICH) and srun --mpi=pmix set."""


def communicator_of(kind: str, device: str, threads: int = 1, timeout_s: float = 600.0) -> Communicator:
    """Meet the other ranks, and take this rank's cores and threads.

    Args:
        kind: torch, mpi, local, or auto for that which started this process.
        device: auto, cpu or cuda.
        threads: of torch in each rank.
        timeout_s: seconds after which a rank that does not answer counts as lost.

    Raises:
        HeartlmError: they cannot be met, or a package is missing.
    """
    kind = _found() if kind == "auto" else kind
    if kind == "torch" and int(os.environ.get("WORLD_SIZE", "0")) > 1:
        from heartlm.distributed.torch_distributed import TorchCommunicator

        return TorchCommunicator(device, threads, timeout_s)
    if kind == "torch" and "WORLD_SIZE" not in os.environ:
        raise HeartlmError("communicator: 'torch' found, but several ranks were not started: use torchrun, or local")
    if kind == "mpi":
        from heartlm.distributed.mpi import MPICommunicator

        communicator = MPICommunicator()
        ranks = Ranks(communicator.rank, communicator.size, communicator.local_rank, communicator.local_size)
        take_cores(ranks, threads, pinned=device == "cpu" or not torch.cuda.is_available())
        return communicator
    torch.set_num_threads(threads)
    return LocalCommunicator()


def _found() -> str:
    if any(name in os.environ for name in MPI_VARIABLES):
        return "mpi"
    return "torch" if "WORLD_SIZE" in os.environ else "local"


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Place of this process among those of its machine, which says which GPU is its own; 0 alone."""
    return next((int(environment[name]) for name in LOCAL_RANKS if name in environment), 0)


class CollectiveError(HeartlmError):
    """An error that every rank has heard of, so that none waits for another; the first tells the user."""


def agreed(communicator: Communicator, act: Callable[[], Result]) -> Result:
    """Call `act` on every rank; where it fails on one, it fails on all, and one of them tells.

    Raises:
        CollectiveError: `act` failed on some rank, and this is the first.
        ReportedByPeer: the same on the others.
    """
    results, told = list[Result](), None
    try:
        results.append(act())
    except HeartlmError as error:
        told = str(error)
    first = next((each for each in communicator.gather_objects(told) if each is not None), None)
    if first is not None:
        raise CollectiveError(first) if communicator.rank == 0 else ReportedByPeer(first)
    return results[0]
