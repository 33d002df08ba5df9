"""Ranks that `torchrun` started: gloo for CPUs, NCCL for GPUs, which get on by themselves."""

from __future__ import annotations

import functools
import os
import time
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from heartlm.distributed.agreement import host_group
from heartlm.distributed.communicator import Pending, shared_sum_of
from heartlm.distributed.parallel import joined
from heartlm.distributed.shared_memory import SharedSum

Value = TypeVar("Value")


class TorchCommunicator:
    """The ranks of torch's default process group, which is made unless it is there already.

    Args:
        device: where they compute: auto, cpu or cuda.
        threads: CPU threads of each.
        timeout_s: after which a rank that does not answer counts as gone.

    Raises:
        HeartlmError: they cannot meet, or the device is not there.

    Attributes:
        rank: of this process.
        size: how many there are.
        has_async_progress: whether it needs no tests.
    """

    def __init__(self, device: str = "cpu", threads: int | None = None, timeout_s: float = 600.0) -> None:
        self._timeout_s = timeout_s
        self._exit, self.has_async_progress = ExitStack(), False  # it does, but its end would not be noted
        if not dist.is_initialized():
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")  # abort: sums are used unchecked here
            self._exit.enter_context(joined(device, threads=threads, timeout_s=timeout_s))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        nccl = dist.get_backend() == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
        self._host = host_group(timeout_s)

    def start_sum(self, numbers: Tensor) -> Pending:
        """Begin to add up; for NCCL on the GPU, and back."""
        there = numbers.to(self._device, non_blocking=True)
        return _Pending(dist.all_reduce(there, async_op=True), there, numbers)

    def sum(self, numbers: Tensor) -> None:
        """Add up, through shared memory on one machine."""
        if self._shared is not None:
            self._shared(numbers)
        else:
            self.start_sum(numbers).wait()

    @functools.cached_property
    def _shared(self) -> SharedSum | None:
        return shared_sum_of(self, self._timeout_s)

    def start_gather(self, payload: Tensor) -> Pending:
        """Begin to gather; for NCCL on the GPU, and back."""
        there = payload.to(self._device, non_blocking=True)
        gathered = there.new_empty((self.size, len(payload)))
        result = gathered if gathered.device.type == "cpu" else payload.new_empty(gathered.shape)
        work = dist.all_gather(list(gathered.unbind(0)), there, async_op=True)
        return _Pending(work, gathered, result, there)

    def broadcast(self, numbers: Tensor, root: int = 0) -> None:
        """Take the numbers of rank `root`."""
        dist.broadcast(numbers, root, group=self._host)

    def gather_objects(self, value: Value) -> list[Value]:
        """What every rank gave."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._host)
        return values

    def close(self) -> None:
        """Take leave."""
        self._exit.close()

    def abort(self) -> None:
        """Go; the others notice, because the connections end with this process."""


class _Pending:
    """A work of torch, where it computes, where its result belongs, and what must live until it is there."""

    def __init__(self, work: Any, there: Tensor, result: Tensor, *kept: Tensor) -> None:
        self._work, self._there, self._result, self._kept = work, there, result, kept
        self.there_s = 0.0

    def test(self) -> bool:
        if self._work is not None and self._work.is_completed():
            self.wait()
        return self._work is None

    def wait(self) -> Tensor:
        if self._work is not None:
            self._work.wait()
            self._work = None
            if self._there.data_ptr() != self._result.data_ptr():
                self._result.copy_(self._there)
            self.there_s = time.perf_counter()
        return self._result
