"""Ranks that `mpiexec` started: buffer collectives of mpi4py on flat tensors, nothing pickled but small objects.

Most MPI libraries get on with a non-blocking collective only inside calls of the library, and where ranks share cores a
call gives the core away, for milliseconds, in the middle of computing. So a thread of this process makes the calls: it
begins what was asked for, in order, and looks after it now and then, over a communicator of its own, so that the calls
of the main thread do not get in between. Where the MPI is not made for threads, the calls are made between local steps.
"""

from __future__ import annotations

import atexit
import functools
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from heartlm.distributed.communicator import Pending, shared_sum_of
from heartlm.distributed.shared_memory import SharedSum
from heartlm.errors import needs

if TYPE_CHECKING:
    from mpi4py.MPI import Request

Value = TypeVar("Value")

PROGRESS_EVERY_S = 0.002
"""Between two looks of the thread at what is on its way."""
IDLE_S = 0.005
"""The same while nothing is. The thread is not woken up: on a shared core that would take it from the main thread, and
give it to another rank."""


class MPICommunicator:
    """The ranks of `MPI.COMM_WORLD`.

    Raises:
        HeartlmError: mpi4py is missing.

    Attributes:
        rank: of this process.
        size: how many there are.
        has_async_progress: whether a thread of this process looks after what is on its way.
        local_rank: of this process among those of its machine.
        local_size: of those, how many.
    """

    def __init__(self) -> None:
        with needs("mpi"):
            from mpi4py import MPI
        self._mpi, self._comm, self._background = MPI, MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Dup()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self._progress = _Progress() if MPI.Query_thread() == MPI.THREAD_MULTIPLE else None
        self.has_async_progress = self._progress is not None
        here = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = here.Get_rank(), here.Get_size()
        here.Free()

    def start_sum(self, numbers: Tensor) -> Pending:
        """Begin to add up."""
        comm, mpi = self._background, self._mpi
        return self._under_way(lambda: comm.Iallreduce(mpi.IN_PLACE, numbers.numpy(), mpi.SUM), numbers)

    def sum(self, numbers: Tensor) -> None:
        """Add up, through shared memory on one machine."""
        if self._shared is not None:
            self._shared(numbers)
        else:
            self._comm.Allreduce(self._mpi.IN_PLACE, numbers.numpy(), self._mpi.SUM)

    @functools.cached_property
    def _shared(self) -> SharedSum | None:
        return shared_sum_of(self, timeout_s=math.inf)  # MPI itself ends all ranks where one has died

    def start_gather(self, payload: Tensor) -> Pending:
        """Begin to gather."""
        comm, gathered = self._background, payload.new_empty((self.size, len(payload)))
        return self._under_way(lambda: comm.Iallgather(payload.numpy(), gathered.numpy()), gathered)

    def _under_way(self, begin: Callable[[], Request], result: Tensor) -> Pending:
        if self._progress is not None:
            return self._progress.add(begin, result)
        pending = _Tested(begin, result, lambda: None)
        pending.begin()
        return pending

    def broadcast(self, numbers: Tensor, root: int = 0) -> None:
        """Take the numbers of rank `root`."""
        self._comm.Bcast(numbers.numpy(), root)

    def gather_objects(self, value: Value) -> list[Value]:
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


class _Pending:
    """Something to begin and to wait for.

    Args:
        begin: makes the request.
        result: what it is in when it is there.
        begin_all: begins whatever was asked for until now, in order.
    """

    def __init__(self, begin: Callable[[], Request], result: Tensor, begin_all: Callable[[], None]) -> None:
        self._begin, self._result, self._begin_all = begin, result, begin_all
        self._request: Request | None = None
        self._error: Exception | None = None
        self._lock, self.there_s = threading.Lock(), 0.0

    def begin(self) -> None:
        """Make the request; if that fails, whoever waits gets the error."""
        try:
            self._request = self._begin()
        except Exception as error:
            self._error, self.there_s = error, time.perf_counter()

    def get_on(self) -> None:
        """Look whether it is there, unless somebody waits for it already."""
        if self._request is not None and self._lock.acquire(blocking=False):
            try:
                if not self.there_s and self._request.Test():
                    self.there_s = time.perf_counter()
            finally:
                self._lock.release()

    def test(self) -> bool:
        return self.there_s > 0

    def wait(self) -> Tensor:
        if not self.there_s:
            if self._request is None:
                self._begin_all()
            with self._lock:
                if not self.there_s:
                    assert self._request is not None
                    self._request.Wait()
                    self.there_s = time.perf_counter()
        if self._error is not None:
            raise self._error
        return self._result


class _Tested(_Pending):
    """One that makes progress only when it is tested."""

    def test(self) -> bool:
        self.get_on()
        return self.there_s > 0


class _Progress:
    """A thread that looks now and then whether something is asked for, begins it, and gets on with it."""

    def __init__(self) -> None:
        self._asked, self._under_way = list[_Pending](), list[_Pending]()
        self._lock, self._beginning, self._over = threading.Lock(), threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress of MPI", daemon=True)
        self._thread.start()
        atexit.register(self.stop)  # a thread that frees a tensor while Python ends takes the process with it

    def stop(self) -> None:
        """Let the thread end; nothing is on its way any more."""
        self._over.set()
        self._thread.join()

    def add(self, begin: Callable[[], Request], result: Tensor) -> Pending:
        """Begin this, too, and get on with it."""
        pending = _Pending(begin, result, self._begin_all)
        with self._lock:
            self._asked.append(pending)
        return pending

    def _begin_all(self) -> None:
        """Begin what was asked for, in order: the main thread, where it cannot wait, or this one."""
        with self._beginning:
            with self._lock:
                asked, self._asked = self._asked, []
            for pending in asked:
                pending.begin()
            with self._lock:
                self._under_way += asked

    def _run(self) -> None:
        while not self._over.wait(PROGRESS_EVERY_S if self._under_way else IDLE_S):
            if self._asked:
                self._begin_all()
            for each in list(self._under_way):
                each.get_on()
            with self._lock:
                self._under_way = [each for each in self._under_way if not each.there_s]
