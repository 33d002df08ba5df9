"""All-reduce through shared memory between the ranks of a machine, and over gloo between machines.

gloo sends data through the loopback device, which copies it several times on the cores that train. Here each rank
writes its numbers to shared memory once, sums its part, and reads the result.

Each rank locks its byte of the shared file. The kernel releases the lock when a rank exits, which the others detect.
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
from heartlm.kernels.library import kernel

FOLDER = Path("/dev/shm")
SLOT_BYTES = 256 << 10
"""Bytes of numbers per round; small enough for the shared memory to stay in cache."""

CACHE_LINE_BYTES = 64
DONE = 3
"""The kernel's last stage; at another it waits for a rank that is missing."""

KINDS = {torch.float32: 0, torch.float64: 1, torch.int64: 2}
"""Kernel arguments for the supported dtypes."""

PATIENCE_NS = 20_000_000
"""Nanoseconds that the kernel waits before the other ranks are checked."""


class RankGone(RuntimeError):  # noqa: N818
    """Another rank does not respond."""


class SharedSum:
    """Sums tensors over the ranks of one machine; all ranks create and call it in the same order.

    Args:
        file: file shared by all ranks, initially empty; it may be unlinked after all ranks created their object.
        rank: rank of this process.
        num_ranks: number of ranks.
        timeout_s: seconds after which a rank that does not respond counts as lost.
        slot_bytes: bytes of numbers per round, whole cache lines; shared memory has twice as many per rank.

    Raises:
        OSError: shared memory is not available.
    """

    def __init__(self, file: Path, rank: int, num_ranks: int, timeout_s: float, slot_bytes: int = SLOT_BYTES) -> None:
        self._kernel: Callable[..., int] = kernel("shared_sum", by_address=True)
        self.rank, self.num_ranks, self.timeout_s, self._slot_bytes = rank, num_ranks, timeout_s, slot_bytes
        # Two slots a rank: who starts a round writes to one while slow ranks still read the other.
        num_bytes = num_ranks * CACHE_LINE_BYTES + 2 * num_ranks * slot_bytes
        self._file = file.open("r+b", buffering=0)
        os.posix_fallocate(self._file.fileno(), 0, num_bytes)  # allocated now, since a missing page later raises SIGBUS
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, rank)
        self._memory = mmap.mmap(self._file.fileno(), num_bytes)
        self._address = addressof(c_char.from_buffer(self._memory))
        self._round = 0

    def __call__(self, numbers: Tensor) -> None:
        """Replace `numbers`, of a dtype in `KINDS`, contiguous, on the CPU, by their sums, bit-identical on every rank.

        Raises:
            RankGone: another rank exited or does not respond.
        """
        slot, flat = self._slot_bytes // numbers.element_size(), numbers.view(-1)
        for begin in range(0, len(flat), slot):
            self.begin(flat[begin : begin + slot])()

    def begin(self, numbers: Tensor) -> Callable[[], None]:
        """Start the sum of `numbers`, at most a slot; return a function that waits for it.

        Call that function before the next sum starts.
        """
        assert numbers.is_contiguous() and numbers.device.type == "cpu" and numbers.nbytes <= self._slot_bytes
        self._round += 1
        shared = self._address, self._slot_bytes, self.num_ranks, self.rank, self._round

        def after(stage: int, patience_ns: int) -> int:
            return self._kernel(*shared, stage, numbers.data_ptr(), numbers.nbytes, KINDS[numbers.dtype], patience_ns)

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
                if stage != DONE:  # the part of a rank that has exited may be complete: check once more
                    gone = [rank for rank in range(self.num_ranks) if rank != self.rank and self._takes_lock(rank)]

        return wait

    def _takes_lock(self, rank: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, rank)
        return True


class NodesSum:
    """Sums tensors over the ranks of several machines: shared memory in each, and gloo between their first ranks.

        of a machine ─► its sum ─► first ranks, over the network ─► total ─► of a machine

    Args:
        on_machine: sum over the ranks of this machine.
        is_first: whether this is the first rank of its machine.
        between: process group of the first ranks.
    """

    def __init__(self, on_machine: SharedSum, is_first: bool, between: dist.ProcessGroup) -> None:
        self._on_machine, self._is_first, self._between = on_machine, is_first, between

    def __call__(self, numbers: Tensor) -> None:
        """Replace `numbers`, as in `SharedSum`, by their sums, bit-identical on every rank.

        Raises:
            RankGone: another rank exited or does not respond.
        """
        self._on_machine(numbers)
        self._between_machines(numbers)

    def begin(self, numbers: Tensor) -> Callable[[], None]:
        """Start as in `SharedSum.begin`; machines exchange their sums at the first wait."""
        wait_for, is_done = self._on_machine.begin(numbers), False

        def wait() -> None:
            nonlocal is_done
            if not is_done:
                wait_for()
                self._between_machines(numbers)
                is_done = True

        return wait

    def _between_machines(self, numbers: Tensor) -> None:
        if self._is_first:
            try:
                dist.all_reduce(numbers, group=self._between)
            except RuntimeError as error:
                raise RankGone(str(error)) from error
        else:
            numbers.zero_()
        self._on_machine(numbers)  # the total and zeros


def shared_sum_of(ranks: Ranks, timeout_s: float) -> SharedSum | NodesSum | None:
    """Return the sum over `ranks`; None if no machine has two ranks or a rank has no shared memory. Collective.

    Ranks of a machine have consecutive numbers, as with `torchrun`.

    Raises:
        RuntimeError: another rank exited.
    """
    if ranks.world_size == 1:
        return None
    agreement = RankConsensus(timeout_s)
    if max(agreement.all(lambda: ranks.local_world_size)) == 1:
        return None
    on_machine = opened(ranks, timeout_s, lambda mine: agreement.all(lambda: mine))
    if on_machine is None or ranks.world_size == ranks.local_world_size:
        return on_machine
    local_ranks = agreement.all(lambda: ranks.local_rank)
    firsts = [rank for rank, local_rank in enumerate(local_ranks) if local_rank == 0]
    between = dist.new_group(firsts, timeout=timedelta(seconds=timeout_s), backend="gloo")
    agreement.all(lambda: None)  # wait until all ranks are connected, before any can exit
    return NodesSum(on_machine, ranks.local_rank == 0, between)


def opened(
    ranks: Ranks, timeout_s: float, gather: Callable[[Any], list[Any]], slot_bytes: int = SLOT_BYTES
) -> SharedSum | None:
    """Return the sum over the ranks of a machine, or None if a rank has no shared memory. Collective over all machines.

    Args:
        ranks: rank of this process and number of ranks.
        timeout_s: seconds after which a rank that does not respond counts as lost.
        gather: function that gathers a value from every rank, by rank.
        slot_bytes: see `SharedSum`.
    """
    path, shared_sum = None, None
    if ranks.local_rank == 0:
        with suppress(OSError):
            descriptor, name = tempfile.mkstemp(prefix="heartlm-", dir=FOLDER)
            os.close(descriptor)
            path = Path(name)
    try:
        path_of_machine = gather(path)[ranks.rank - ranks.local_rank]
        if path_of_machine is not None:
            with suppress(OSError):
                shared_sum = SharedSum(path_of_machine, ranks.local_rank, ranks.local_world_size, timeout_s, slot_bytes)
        all_have = all(gather(shared_sum is not None))
    finally:  # `gather` fails if a rank exited, and files in /dev/shm take memory until the machine restarts
        if path is not None:
            path.unlink(missing_ok=True)
    return shared_sum if all_have else None
