"""Ranks that `mpiexec` started: buffer collectives of mpi4py on flat tensors, nothing pickled but small objects.

Most MPI libraries get on with a non-blocking collective only inside calls of the library, so somebody has to call
`test` while it is under way; the rounds do between local steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from heartlm.errors import needs
from heartlm.federated.communicator import Pending

if TYPE_CHECKING:
    from mpi4py.MPI import Request

Value = TypeVar("Value")


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
        here = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = here.Get_rank(), here.Get_size()
        here.Free()

    def start_sum(self, numbers: Tensor) -> Pending:
        """Begin to add up."""
        return _Pending(self._comm.Iallreduce(self._mpi.IN_PLACE, numbers.numpy(), self._mpi.SUM), numbers)

    def start_gather(self, payload: Tensor) -> Pending:
        """Begin to gather."""
        gathered = payload.new_empty((self.size, len(payload)))
        return _Pending(self._comm.Iallgather(payload.numpy(), gathered.numpy()), gathered, payload)

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

    def test(self) -> bool:
        return self._request.Test()

    def wait(self) -> Tensor:
        self._request.Wait()
        return self._result
