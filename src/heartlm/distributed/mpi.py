"""Ranks that `mpiexec` started: buffer collectives of mpi4py on flat tensors, nothing pickled but small objects.

Most MPI libraries progress a non-blocking sum only inside calls of the library, and where ranks share cores a
call gives the core away, for milliseconds, in the middle of computing. So a thread of this process makes the calls: it
begins what was asked for, in order, and tests it periodically, over a communicator of its own, so that the calls of the
main thread do not get in between. Where the MPI is not made for threads, every sum is waited for at once.
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

from heartlm.distributed.communicator import Communicator, Pending
from heartlm.distributed.ranks import Ranks
from heartlm.errors import needs

if TYPE_CHECKING:
    from mpi4py.MPI import Request

PROGRESS_EVERY_S = 0.002
"""Between two tests by the thread of what is on its way."""
IDLE_S = 0.005
"""The same while nothing is. The thread is not woken up before something is waited for: on a shared core that would
take it from the main thread, and give it to another rank."""


class MPICommunicator(Communicator):
    """The ranks of `MPI.COMM_WORLD`.

    Raises:
        HeartlmError: mpi4py is missing.

    Attributes:
        ranks: this process among all, and among those of its machine.
    """

    timeout_s = math.inf  # MPI itself ends all ranks where one has died

    def __init__(self) -> None:
        with needs("mpi"):
            from mpi4py import MPI
        self._mpi, self._comm, self._background = MPI, MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Dup()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self._progress = _Progress() if MPI.Query_thread() == MPI.THREAD_MULTIPLE else None
        here = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.ranks = Ranks(self.rank, self.size, here.Get_rank(), here.Get_size())
        here.Free()

    def start_sum(self, numbers: Tensor) -> Pending:
        """Begin to add up."""
        comm, mpi = self._background, self._mpi
        if self._progress is None:
            self._sum_apart(numbers)
            return Pending(numbers)
        begin = functools.partial(comm.Iallreduce, mpi.IN_PLACE, numbers.numpy(), mpi.SUM)
        pending = _UnderWay(begin, numbers, self._progress.wake)
        self._progress.asked.append(pending)
        return pending

    def _sum_apart(self, numbers: Tensor) -> None:
        self._comm.Allreduce(self._mpi.IN_PLACE, numbers.numpy(), self._mpi.SUM)

    def gather_objects(self, value: Any) -> list[Any]:
        """What every rank gave."""
        return self._comm.allgather(value)

    def close(self) -> None:
        """Take leave; MPI itself ends with the process."""
        if self._progress is not None:
            self._progress.stop()
        self._comm.Free()
        self._background.Free()

    def abort(self) -> None:
        """End all ranks."""
        self._mpi.COMM_WORLD.Abort(2)


class _UnderWay(Pending):
    """A collective that the thread begins and tests; `wake` asks the thread to wait for it."""

    def __init__(self, begin: Callable[[], Request], result: Tensor, wake: threading.Event) -> None:
        self._begin, self._result, self._wake, self.there_s = begin, result, wake, 0.0
        self._request: Request | None = None
        self._done = Future[None]()

    def progress(self, waits: bool) -> None:
        """Begin it, test it, or wait for it; whoever waits for it gets the error if that fails."""
        try:
            if self._request is None:
                self._request = self._begin()
            elif waits:
                self._request.Wait()
                self._found()
            elif self._request.Test():
                self._found()
        except Exception as error:
            self.there_s = time.perf_counter()
            self._done.set_exception(error)

    def _found(self) -> None:
        self.there_s = time.perf_counter()
        self._done.set_result(None)

    def wait(self) -> Tensor:
        if not self.there_s:
            self._wake.set()
        self._done.result()
        return self._result


class _Progress:
    """A thread that begins the collectives that were `asked` for, in order, and tests them until they are there."""

    def __init__(self) -> None:
        self.asked, self.wake, self._is_over = deque[_UnderWay](), threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="progress of MPI", daemon=True)
        self._thread.start()
        atexit.register(self.stop)  # a thread that frees a tensor while Python ends takes the process with it

    def stop(self) -> None:
        """Let the thread end; nothing is on its way any more."""
        self._is_over = True
        self.wake.set()
        self._thread.join()

    def _run(self) -> None:
        under_way = list[_UnderWay]()
        while not self._is_over:
            waits = self.wake.wait(PROGRESS_EVERY_S if under_way else IDLE_S)
            self.wake.clear()
            while self.asked:
                under_way.append(self.asked.popleft())
                under_way[-1].progress(waits=False)
            for pending in under_way:
                if not pending.there_s:
                    pending.progress(waits)
            under_way = [each for each in under_way if not each.there_s]
