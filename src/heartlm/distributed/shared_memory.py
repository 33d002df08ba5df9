"""Numbers added up through memory that the ranks of a machine share, and between machines among one rank of each.

gloo sends them through the loopback device, which copies each several times and takes the time of the very cores that
train. Here a rank writes its numbers once where all can read them, adds up its part, and reads the sum.

A rank that exited is noticed by the lock it held on its byte of the shared file, which the system takes back however
the rank ended.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from ctypes import addressof, c_char
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heartlm.distributed.agreement import RankConsensus
from heartlm.distributed.ranks import Ranks
from heartlm.kernels.shared_sum import DONE, memory_bytes, shared_sum

FOLDER = Path("/dev/shm")
SLOT_BYTES = 256 << 10
"""Of numbers a round; what ranks share stays in their caches."""

KINDS = {torch.float32: 0, torch.float64: 1, torch.int64: 2}
"""Arguments of the kernel: what to add up."""

PATIENCE_NS = 20_000_000
"""How long the kernel waits before it is seen whether the others are still there."""


class RankGone(RuntimeError):  # noqa: N818
    """Another rank does not answer any more."""


class SharedSum:
    """Adds up tensors over the ranks of one machine; all of them make it, and call it, in the same order.

    Args:
        file: shared by all ranks, empty at first; it may be unlinked once all have made theirs.
        rank: this one.
        num_ranks: how many there are.
        timeout_s: after which a rank that does not answer counts as gone.
        slot_bytes: of numbers a round, whole cache lines; twice as many a rank are shared.

    Raises:
        OSError: there is no memory to share.
    """

    def __init__(self, file: Path, rank: int, num_ranks: int, timeout_s: float, slot_bytes: int = SLOT_BYTES) -> None:
        self._kernel, self.rank, self.num_ranks, self.timeout_s = shared_sum(), rank, num_ranks, timeout_s
        num_bytes, self._slot_bytes = memory_bytes(num_ranks, slot_bytes), slot_bytes
        self._file = file.open("r+b", buffering=0)
        os.posix_fallocate(self._file.fileno(), 0, num_bytes)  # now, as a page that is missing later is a signal
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, rank)
        self._memory = mmap.mmap(self._file.fileno(), num_bytes)
        self._address = addressof(c_char.from_buffer(self._memory))
        self._round = 0

    def __call__(self, numbers: Tensor) -> None:
        """Replace `numbers`, of one of `KINDS`, contiguous, on the CPU, by their sums, the same bits on every rank.

        Raises:
            RankGone: another rank has.
        """
        slot, flat = self._slot_bytes // numbers.element_size(), numbers.view(-1)
        for begin in range(0, len(flat), slot):
            self.begin(flat[begin : begin + slot])()

    def begin(self, numbers: Tensor) -> Callable[[], None]:
        """Show `numbers`, at most a slot of them, to the others; the result is a function that waits for their sums.

        It has to be called before anything else is added up.
        """
        assert numbers.is_contiguous() and numbers.device.type == "cpu" and numbers.nbytes <= self._slot_bytes
        self._round += 1
        place = self._address, self._slot_bytes, self.num_ranks, self.rank, self._round

        def after(stage: int, patience_ns: int) -> int:
            return self._kernel(*place, stage, numbers.data_ptr(), numbers.nbytes, KINDS[numbers.dtype], patience_ns)

        begin_s, stage = time.monotonic(), after(0, 0)

        def wait() -> None:
            nonlocal stage
            gone: list[int] = []
            while stage != DONE:
                stage = after(stage, PATIENCE_NS)
                if stage != DONE and gone:
                    raise RankGone(f"rank {gone[0]} has exited")
                if stage != DONE and time.monotonic() - begin_s > self.timeout_s:
                    raise RankGone(f"no answer within {self.timeout_s:g} s")
                gone = [] if stage == DONE else self._gone()  # its part may have been done: look once more

        return wait

    def _gone(self) -> list[int]:
        return [rank for rank in range(self.num_ranks) if rank != self.rank and self._takes_lock(rank)]

    def _takes_lock(self, rank: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, rank)
        return True


class NodesSum:
    """Adds up tensors over the ranks of several machines: in each through its memory, and between their first ranks.

        of a machine ─► its sum ─► first ranks, over the network ─► total ─► of a machine

    Args:
        of_machine: adds up over the ranks of this machine.
        is_first: whether this is the first rank of its machine.
        between: the group of these ranks.
    """

    def __init__(self, of_machine: SharedSum, is_first: bool, between: dist.ProcessGroup) -> None:
        self._of_machine, self._is_first, self._between = of_machine, is_first, between

    def __call__(self, numbers: Tensor) -> None:
        """Replace `numbers`, as `SharedSum` takes them, by their sums, the same bits on every rank.

        Raises:
            RankGone: a rank of this machine has.
            RuntimeError: the first rank of another machine has exited.
        """
        self._of_machine(numbers)
        self._between_machines(numbers)

    def begin(self, numbers: Tensor) -> Callable[[], None]:
        """As `SharedSum.begin`; machines exchange their sums when it is first waited for."""
        wait_for, is_done = self._of_machine.begin(numbers), False

        def wait() -> None:
            nonlocal is_done
            if not is_done:
                wait_for()
                self._between_machines(numbers)
                is_done = True

        return wait

    def _between_machines(self, numbers: Tensor) -> None:
        if self._is_first:
            dist.all_reduce(numbers, group=self._between)
        else:
            numbers.zero_()
        self._of_machine(numbers)  # the total and zeros


def shared_sum_of(ranks: Ranks, timeout_s: float) -> SharedSum | NodesSum | None:
    """The sum of `ranks`, which all call this; None where no machine has two of them, or one of them cannot.

    Ranks of a machine follow each other, as `torchrun` numbers them.

    Raises:
        RuntimeError: another rank has exited.
    """
    if ranks.world_size == 1:
        return None
    agreement = RankConsensus(timeout_s)
    if max(agreement.all(lambda: ranks.local_world_size)) == 1:
        return None
    of_machine = opened(ranks, timeout_s, lambda mine: agreement.all(lambda: mine))
    if of_machine is None or ranks.world_size == ranks.local_world_size:
        return of_machine
    local_ranks = agreement.all(lambda: ranks.local_rank)
    firsts = [rank for rank, local_rank in enumerate(local_ranks) if local_rank == 0]
    between = dist.new_group(firsts, timeout=timedelta(seconds=timeout_s), backend="gloo")
    agreement.all(lambda: None)  # a rank that ended now would be missed by those that still connect
    return NodesSum(of_machine, ranks.local_rank == 0, between)


def opened(
    ranks: Ranks, timeout_s: float, gather: Callable[[Any], list[Any]], slot_bytes: int = SLOT_BYTES
) -> SharedSum | None:
    """The sum of the ranks of a machine; the ranks of all machines call this. None where one of them cannot.

    Args:
        ranks: this one and how many there are.
        timeout_s: after which a rank that does not answer counts as gone.
        gather: gives what every rank gave it, by rank.
        slot_bytes: see `SharedSum`.
    """
    path, mine = None, None
    if ranks.local_rank == 0:
        with suppress(OSError):
            descriptor, name = tempfile.mkstemp(prefix="heartlm-", dir=FOLDER)
            os.close(descriptor)
            path = Path(name)
    path = gather(path)[ranks.rank - ranks.local_rank]
    if path is not None:
        with suppress(OSError):
            mine = SharedSum(path, ranks.local_rank, ranks.local_world_size, timeout_s, slot_bytes)
    all_have = all(gather(mine is not None))
    if path is not None and ranks.local_rank == 0:
        path.unlink(missing_ok=True)
    return mine if all_have else None
