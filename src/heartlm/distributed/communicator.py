"""How ranks add up: one process alone, and the ranks of torch and of MPI, which are subclasses of it.

Sums are of whole numbers only. They come out the same in whatever order a library adds, so one process, `torch` and
`mpi` agree to the last bit on any number of ranks, without a prescribed order that would forbid a library its fast
algorithms. What is to be added is brought into fixed point before (`heartlm.federated.fixed_point`).
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from heartlm.distributed.parallel import take_cores
from heartlm.distributed.ranks import Ranks, ReportedByPeer
from heartlm.distributed.shared_memory import SharedSum, opened
from heartlm.errors import HeartlmError

Result = TypeVar("Result")

SHARED_BYTES = 4 << 20
"""That a rank shows the others at once. Ranks that share cores wait for each other's turn every time."""

MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
"""What mpiexec (Open MPI, MPICH) and srun --mpi=pmix set."""

LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
"""Where torchrun, Open MPI, MPICH and SLURM say which process of its machine this is."""


class Pending:
    """A sum over ranks, here already; subclasses wait for theirs.

    Attributes:
        there_s: when it was found to be there, by `time.perf_counter`; 0 before.
    """

    def __init__(self, result: Tensor) -> None:
        self._result, self.there_s = result, time.perf_counter()

    def wait(self) -> Tensor:
        """Wait for it, and return it."""
        return self._result


class Communicator:
    """This rank among those that simulate the clients; all ranks call the same methods in the same order.

    This class is one process that simulates all clients.

    Attributes:
        rank: of this process, 0 to below `size`.
        size: how many ranks there are.
        timeout_s: after which a rank that does not answer counts as gone.
    """

    rank, size, timeout_s = 0, 1, 600.0

    def start_sum(self, numbers: Tensor) -> Pending:
        """Begin to replace `numbers`, int64 `[n]` in main memory, contiguous, by their sums over ranks.

        They must not be touched before the sum is there. Sums wrap around at 2**64.
        """
        return Pending(numbers)

    def sum(self, numbers: Tensor) -> None:
        """Replace `numbers`, as `start_sum` takes them, by their sums, and wait for it: cheaper than both in turn.

        Ranks of one machine add up through shared memory. Libraries copy numbers several times on their way from rank
        to rank, and whole numbers are twice as long as those of a model.
        """
        if self._shared is not None:
            self._shared(numbers)
        else:
            self._sum_apart(numbers)

    @functools.cached_property
    def _shared(self) -> SharedSum | None:
        """None where ranks are on several machines, or one of them cannot share memory."""
        ranks = Ranks(self.rank, self.size, self.rank, self.size)
        return opened(ranks, self.timeout_s, self.gather_objects, SHARED_BYTES) if self.size > 1 else None

    def _sum_apart(self, numbers: Tensor) -> None:
        self.start_sum(numbers).wait()

    def gather_objects(self, value: Any) -> list[Any]:
        """What every rank gave, by rank; on every rank. It is pickled."""
        return [value]

    def close(self) -> None:
        """Take leave of the others."""

    def abort(self) -> None:
        """End all ranks, after an error that the others do not know of."""


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
    if kind == "auto":
        started = "torch" if "WORLD_SIZE" in os.environ else "local"
        kind = "mpi" if any(name in os.environ for name in MPI_VARIABLES) else started
    if kind == "torch" and int(os.environ.get("WORLD_SIZE", "0")) > 1:
        from heartlm.distributed.torch_distributed import TorchCommunicator

        return TorchCommunicator(device, threads, timeout_s)
    if kind == "torch" and "WORLD_SIZE" not in os.environ:
        raise HeartlmError("communicator: 'torch' found, but several ranks were not started: use torchrun, or local")
    if kind == "mpi":
        from heartlm.distributed.mpi import MPICommunicator

        communicator = MPICommunicator()
        take_cores(communicator.ranks, threads, pinned=device == "cpu" or not torch.cuda.is_available())
        return communicator
    torch.set_num_threads(threads)
    return Communicator()


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
