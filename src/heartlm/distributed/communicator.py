"""Sums over ranks of federated studies: one process, with subclasses for torch and MPI.

Sums are of integers only, so they do not depend on the order of addition. One process, `torch` and `mpi` give equal
results to the last bit on any number of ranks, and libraries can use their fastest algorithms. Values are converted to
fixed point first (`heartlm.extensions.federated.fixed_point`).
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from heartlm.distributed.ranks import Ranks, ReportedByPeer
from heartlm.distributed.shared_memory import SharedSum, opened
from heartlm.errors import HeartlmError

Result = TypeVar("Result")

SHARED_BYTES = 4 << 20
"""Bytes per rank and round of a shared-memory sum. Fewer rounds help ranks that share cores."""

LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
"""Environment variables of the local rank, set by torchrun, Open MPI, MPICH and SLURM."""


class Pending:
    """A completed sum over ranks; base class of sums in progress.

    Attributes:
        completed_s: time at which completion was detected, by `time.perf_counter`; 0 before.
    """

    def __init__(self, result: Tensor) -> None:
        self._result, self.completed_s = result, time.perf_counter()

    def wait(self) -> Tensor:
        """Return the sum, which is complete here; subclasses wait for it."""
        return self._result


class Communicator:
    """Communication between the ranks that simulate clients; all ranks call the same methods in the same order.

    This class is for a single process that simulates all clients.

    Attributes:
        rank: rank of this process, 0 to below `size`.
        size: number of ranks.
        timeout_s: seconds after which a rank that does not respond counts as lost.
    """

    rank, size, timeout_s = 0, 1, 600.0

    def start_sum(self, numbers: Tensor) -> Pending:
        """Start to replace `numbers`, int64 `[n]` in host memory, contiguous, by their sums over ranks.

        Do not access them before the sum is complete. Sums wrap around at 2**64.
        """
        return Pending(numbers)

    def sum(self, numbers: Tensor) -> None:
        """Replace `numbers`, as in `start_sum`, by their sums, and wait; faster than `start_sum` and `wait`.

        Ranks of one machine use shared memory, since communication libraries copy the data several times.
        """
        if self._shared is not None:
            self._shared(numbers)
        else:
            self._sum_apart(numbers)

    @functools.cached_property
    def _shared(self) -> SharedSum | None:
        """Sum through shared memory; None if ranks are on several machines or one cannot share memory."""
        ranks = Ranks(self.rank, self.size, self.rank, self.size)
        return opened(ranks, self.timeout_s, self.gather_objects, SHARED_BYTES) if self.size > 1 else None

    def _sum_apart(self, numbers: Tensor) -> None:
        self.start_sum(numbers).wait()

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the pickled values of all ranks, by rank, on every rank."""
        return [value]

    def close(self) -> None:
        """Leave the group."""

    def abort(self) -> None:
        """End all ranks after an error on this rank."""


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return the rank of this process on its machine, which selects its GPU; 0 for a single process."""
    return next((int(environment[name]) for name in LOCAL_RANKS if name in environment), 0)


class CollectiveError(HeartlmError):
    """An error that all ranks raise together, so that none waits for another; rank 0 reports it."""


def agreed(communicator: Communicator, act: Callable[[], Result]) -> Result:
    """Call `act` on every rank and return its result; if it fails on one rank, it fails on all.

    Raises:
        CollectiveError: `act` failed on some rank, raised on rank 0.
        ReportedByPeer: `act` failed on some rank, raised on the other ranks.
    """
    results, failure = list[Result](), None
    try:
        results.append(act())
    except HeartlmError as error:
        failure = str(error)
    first = next((each for each in communicator.gather_objects(failure) if each is not None), None)
    if first is not None:
        raise CollectiveError(first) if communicator.rank == 0 else ReportedByPeer(first)
    return results[0]
