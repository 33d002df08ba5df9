"""How ranks add up: one small protocol, three ways behind it.

Sums are of whole numbers only. They come out the same in whatever order a library adds, so `local`, `torch` and `mpi`
agree to the last bit on any number of ranks, without a prescribed order that would forbid a library its fast
algorithms. What is to be added is brought into fixed point before (`heartlm.federated.fixed_point`).
"""

from __future__ import annotations

import time
from typing import Any, Protocol, TypeVar

from torch import Tensor

from heartlm.distributed.ranks import Ranks
from heartlm.distributed.shared_memory import SharedSum, opened

Value = TypeVar("Value")

SHARED_BYTES = 4 << 20
"""That a rank shows the others at once. Ranks that share cores wait for each other's turn every time."""


class Pending(Protocol):
    """Something on its way."""

    @property
    def there_s(self) -> float:
        """When it was found to be there, by `time.perf_counter`; 0 before."""

    def test(self) -> bool:
        """Whether it is there; where the library makes no progress of its own, some is made now."""

    def wait(self) -> Tensor:
        """Wait for it, and return it."""


class Communicator(Protocol):
    """This rank among those that simulate the clients; all ranks call the same methods in the same order."""

    @property
    def rank(self) -> int:
        """Of this process, 0 to below `size`."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def has_async_progress(self) -> bool:
        """Whether what is on its way gets on, and it is noted when it is there, without anybody who tests it."""

    def start_sum(self, numbers: Tensor) -> Pending:
        """Begin to replace `numbers`, int64 `[n]` in main memory, contiguous, by their sums over ranks.

        They must not be touched before the sum is there. Sums wrap around at 2**64.
        """

    def sum(self, numbers: Tensor) -> None:
        """Replace `numbers`, as `start_sum` takes them, by their sums, and wait for it: cheaper than both in turn."""

    def start_gather(self, payload: Tensor) -> Pending:
        """Begin to gather `payload`, uint8 `[n]`, of the same length on all ranks; gives uint8 `[size, n]`."""

    def broadcast(self, numbers: Tensor, root: int = 0) -> None:
        """Replace `numbers` by those of rank `root`."""

    def gather_objects(self, value: Value) -> list[Value]:
        """What every rank gave, by rank; on every rank. Small things only."""

    def close(self) -> None:
        """Take leave of the others."""

    def abort(self) -> None:
        """End all ranks, after an error that the others do not know of."""


class Done:
    """Something that is there already."""

    def __init__(self, value: Tensor) -> None:
        self._value, self.there_s = value, time.perf_counter()

    def test(self) -> bool:
        """It is there."""
        return True

    def wait(self) -> Tensor:
        """Return it."""
        return self._value


class LocalCommunicator:
    """One process that simulates all clients."""

    rank, size, has_async_progress = 0, 1, True

    def start_sum(self, numbers: Tensor) -> Pending:
        """Nothing to add: one rank."""
        return Done(numbers)

    def sum(self, numbers: Tensor) -> None:
        """Nothing to add: one rank."""

    def start_gather(self, payload: Tensor) -> Pending:
        """There is only this one."""
        return Done(payload[None])

    def broadcast(self, numbers: Tensor, root: int = 0) -> None:
        """Nothing to do: one rank."""

    def gather_objects(self, value: Any) -> list[Any]:
        """There is only this one."""
        return [value]

    def close(self) -> None:
        """Nothing to do: one rank."""

    def abort(self) -> None:
        """Nothing to do: one rank."""


def shared_sum_of(communicator: Communicator, timeout_s: float) -> SharedSum | None:
    """Sums through memory that all ranks share; None where they are on several machines, or one of them cannot.

    Libraries copy numbers several times on their way from rank to rank, and whole numbers are twice as long as those of
    a model. In shared memory the sum of both costs the same, since waiting for the other ranks is most of it.
    """
    rank, size = communicator.rank, communicator.size
    return opened(Ranks(rank, size, rank, size), timeout_s, communicator.gather_objects, SHARED_BYTES)
