"""Ranks started by `mpiexec`: buffer collectives of mpi4py on flat tensors; only small objects are pickled.

Most MPI libraries progress a non-blocking sum only inside library calls. If ranks share cores, such a call can yield
the core for milliseconds during computation. So a background thread starts the sums in order, one at a time, and tests
each periodically. It has its own communicator, separate from the calls of the main thread. Without thread support in
MPI, every sum blocks.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from torch import Tensor

from heartlm.distributed.communicator import Communicator, Pending
from heartlm.distributed.ranks import Ranks
from heartlm.errors import needs

if TYPE_CHECKING:
    from mpi4py.MPI import Request

PROGRESS_EVERY_S = 0.002
"""Seconds between two tests by the thread while a sum is in progress."""


class MPICommunicator(Communicator):
    """The ranks of `MPI.COMM_WORLD`.

    Raises:
        HeartlmError: mpi4py is missing.

    Attributes:
        ranks: rank of this process in the world and on its machine.
    """

    timeout_s = math.inf  # MPI itself ends all ranks if one dies

    def __init__(self) -> None:
        with needs("mpi"):
            from mpi4py import MPI
        self._mpi, self._comm, self._background = MPI, MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Dup()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self._pool = ThreadPoolExecutor(1, "progress of MPI") if MPI.Query_thread() == MPI.THREAD_MULTIPLE else None
        here = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.ranks = Ranks(self.rank, self.size, here.Get_rank(), here.Get_size())
        here.Free()

    def start_sum(self, numbers: Tensor) -> Pending:
        """Start the sum in the background thread."""
        if self._pool is None:
            self._sum_apart(numbers)
            return Pending(numbers)
        buffer = numbers.numpy()
        return _UnderWay(
            self._pool, lambda: self._background.Iallreduce(self._mpi.IN_PLACE, buffer, self._mpi.SUM), numbers
        )

    def _sum_apart(self, numbers: Tensor) -> None:
        self._comm.Allreduce(self._mpi.IN_PLACE, numbers.numpy(), self._mpi.SUM)

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        return self._comm.allgather(value)

    def close(self) -> None:
        """Free the communicators; MPI itself ends with the process."""
        if self._pool is not None:
            self._pool.shutdown()
        self._comm.Free()
        self._background.Free()

    def abort(self) -> None:
        """End all ranks."""
        self._mpi.COMM_WORLD.Abort(2)


class _UnderWay(Pending):
    """A sum that the thread of `pool` starts and tests periodically; `wait` makes the thread wait for it."""

    def __init__(self, pool: ThreadPoolExecutor, begin: Callable[[], Request], result: Tensor) -> None:
        self._result, self.there_s, self._is_awaited = result, 0.0, threading.Event()
        self._done = pool.submit(self._run, begin)

    def _run(self, begin: Callable[[], Request]) -> None:
        request = begin()
        while not request.Test():
            if self._is_awaited.wait(PROGRESS_EVERY_S):
                request.Wait()
                break
        self.there_s = time.perf_counter()

    def wait(self) -> Tensor:
        self._is_awaited.set()
        self._done.result()
        return self._result
