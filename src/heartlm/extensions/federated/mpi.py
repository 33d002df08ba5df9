"""Ranks started by `mpiexec`: buffer collectives of mpi4py on flat tensors; only small objects are pickled.

Most MPI libraries progress a non-blocking sum only inside library calls. If ranks share cores, such a call can yield
the core for milliseconds during computation. So a background thread starts the sums in order and tests them
periodically. It has its own communicator, separate from the calls of the main thread. Without thread support in MPI,
every sum blocks.
"""

from __future__ import annotations

import atexit
import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from torch import Tensor

from heartlm.distributed.ranks import Ranks
from heartlm.errors import needs
from heartlm.extensions.federated.communicator import Communicator, Pending

if TYPE_CHECKING:
    from mpi4py.MPI import Request

PROGRESS_EVERY_S = 0.002
"""Seconds between two tests by the thread while sums are in progress."""
IDLE_S = 0.005
"""Seconds between two checks by the thread while no sum is in progress.

The thread is woken only when the main thread waits. On a shared core, waking it earlier would yield the core to another
rank."""


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
        self._progress = _Progress() if MPI.Query_thread() == MPI.THREAD_MULTIPLE else None
        on_machine = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.ranks = Ranks(self.rank, self.size, on_machine.Get_rank(), on_machine.Get_size())
        on_machine.Free()

    def start_sum(self, numbers: Tensor) -> Pending:
        """Start the sum in the background thread."""
        comm, mpi = self._background, self._mpi
        if self._progress is None:
            self._sum_apart(numbers)
            return Pending(numbers)
        begin = functools.partial(comm.Iallreduce, mpi.IN_PLACE, numbers.numpy(), mpi.SUM)
        pending = _MpiPending(begin, numbers, self._progress.wake)
        self._progress.asked.append(pending)
        return pending

    def _sum_apart(self, numbers: Tensor) -> None:
        self._comm.Allreduce(self._mpi.IN_PLACE, numbers.numpy(), self._mpi.SUM)

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        return self._comm.allgather(value)

    def close(self) -> None:
        """Free the communicators; MPI itself ends with the process."""
        if self._progress is not None:
            self._progress.stop()
        self._comm.Free()
        self._background.Free()

    def abort(self) -> None:
        """End all ranks."""
        self._mpi.COMM_WORLD.Abort(2)


class _MpiPending(Pending):
    """A collective that the thread starts and tests; `wake` makes the thread wait for it."""

    def __init__(self, begin: Callable[[], Request], result: Tensor, wake: threading.Event) -> None:
        self._begin, self._result, self._wake, self.completed_s = begin, result, wake, 0.0
        self._request: Request | None = None
        self._done = Future[None]()

    def progress(self, waits: bool) -> None:
        """Start, test or wait for the collective; `wait` raises an error of these calls."""
        try:
            if self._request is None:
                self._request = self._begin()
                return
            if waits:
                self._request.Wait()
            elif not self._request.Test():
                return
            self.completed_s = time.perf_counter()
            self._done.set_result(None)
        except Exception as error:
            self.completed_s = time.perf_counter()
            self._done.set_exception(error)

    def wait(self) -> Tensor:
        if not self.completed_s:
            self._wake.set()
        self._done.result()
        return self._result


class _Progress:
    """A thread that starts the collectives in `asked`, in order, and tests them until they are complete."""

    def __init__(self) -> None:
        self.asked, self.wake, self._is_over = deque[_MpiPending](), threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="progress of MPI", daemon=True)
        self._thread.start()
        atexit.register(self.stop)  # freeing a tensor in a thread during interpreter exit crashes

    def stop(self) -> None:
        """End the thread, when no sum is in progress."""
        self._is_over = True
        self.wake.set()
        self._thread.join()

    def _run(self) -> None:
        under_way = list[_MpiPending]()
        while not self._is_over:
            waits = self.wake.wait(PROGRESS_EVERY_S if under_way else IDLE_S)
            self.wake.clear()
            while self.asked:
                under_way.append(self.asked.popleft())
                under_way[-1].progress(waits=False)
            for pending in under_way:
                if not pending.completed_s:
                    pending.progress(waits)
            under_way = [each for each in under_way if not each.completed_s]
