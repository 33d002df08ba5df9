"""Ranks that `mpiexec` started: buffer collectives of mpi4py on flat tensors, nothing pickled but small objects.

Most MPI libraries get on with a non-blocking collective only inside calls of the library. A thread of this process
makes them, now and then: tests between local steps would, where ranks share cores, give the core away in the middle of
computing. Where the MPI is not made for threads, the tests between local steps are all there is.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from heartlm.errors import needs
from heartlm.federated.communicator import Pending

if TYPE_CHECKING:
    from mpi4py.MPI import Request

Value = TypeVar("Value")

PROGRESS_EVERY_S = 0.002
"""Between two looks of the thread at what is on its way."""


class MPICommunicator:
    """The ranks of `MPI.COMM_WORLD`.

    Raises:
        HeartlmError: mpi4py is missing.

    Attributes:
        rank: of this process.
        size: how many there are.
        local_rank: of this process among those of its machine.
        local_size: of those, how many.
    """

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except ModuleNotFoundError as error:
            raise needs("mpi", error.name or "mpi4py") from None
        self._mpi, self._comm = MPI, MPI.COMM_WORLD.Dup()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self._progress = _Progress() if MPI.Query_thread() == MPI.THREAD_MULTIPLE else None
        here = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = here.Get_rank(), here.Get_size()
        here.Free()

    def start_sum(self, numbers: Tensor) -> Pending:
        """Begin to add up."""
        return self._under_way(self._comm.Iallreduce(self._mpi.IN_PLACE, numbers.numpy(), self._mpi.SUM), numbers)

    def start_gather(self, payload: Tensor) -> Pending:
        """Begin to gather."""
        gathered = payload.new_empty((self.size, len(payload)))
        return self._under_way(self._comm.Iallgather(payload.numpy(), gathered.numpy()), gathered, payload)

    def _under_way(self, request: Request, result: Tensor, *kept: Tensor) -> Pending:
        if self._progress is None:
            return _Tested(request, result, *kept)
        return self._progress.add(_Pending(request, result, *kept))

    def broadcast(self, numbers: Tensor, root: int = 0) -> None:
        """Take the numbers of rank `root`."""
        self._comm.Bcast(numbers.numpy(), root)

    def gather_objects(self, value: Value) -> list[Value]:
        """What every rank gave."""
        return self._comm.allgather(value)

    def close(self) -> None:
        """Take leave; MPI itself ends with the process."""
        self._comm.Free()

    def abort(self) -> None:
        """End all ranks."""
        self._mpi.COMM_WORLD.Abort(2)


class _Pending:
    """A request, the tensor its result is in, and what must live until it is there."""

    def __init__(self, request: Request, result: Tensor, *kept: Tensor) -> None:
        self._request, self._result, self._kept = request, result, kept
        self._lock, self.is_done = threading.Lock(), False

    def get_on(self) -> None:
        """Look whether it is there, unless somebody waits for it already."""
        if self._lock.acquire(blocking=False):
            try:
                self.is_done = self.is_done or self._request.Test()
            finally:
                self._lock.release()

    def test(self) -> bool:
        return self.is_done

    def wait(self) -> Tensor:
        with self._lock:
            if not self.is_done:
                self._request.Wait()
                self.is_done = True
        return self._result


class _Tested(_Pending):
    """One that nobody gets on with but whoever tests it."""

    def test(self) -> bool:
        self.get_on()
        return self.is_done


class _Progress:
    """A thread that gets on with what is on its way."""

    def __init__(self) -> None:
        self._pending, self._more = list[_Pending](), threading.Condition()
        threading.Thread(target=self._run, name="progress of MPI", daemon=True).start()

    def add(self, pending: _Pending) -> Pending:
        """Get on with `pending`, too."""
        with self._more:
            self._pending.append(pending)
            self._more.notify()
        return pending

    def _run(self) -> None:
        while True:
            with self._more:
                self._more.wait_for(lambda: self._pending)
                under_way = list(self._pending)
            time.sleep(PROGRESS_EVERY_S)
            for each in under_way:
                each.get_on()
            with self._more:
                self._pending = [each for each in self._pending if not each.is_done]
