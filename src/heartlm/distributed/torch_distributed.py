"""Ranks that `torchrun` started: gloo for CPUs, NCCL for GPUs, which progress by themselves."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heartlm.distributed.agreement import host_group
from heartlm.distributed.communicator import Communicator, Pending
from heartlm.distributed.parallel import joined


class TorchCommunicator(Communicator):
    """The ranks of torch's default process group, which is made unless it is there already.

    Args:
        device: where they compute: auto, cpu or cuda.
        threads: CPU threads of each.
        timeout_s: after which a rank that does not answer counts as gone.

    Raises:
        HeartlmError: they cannot meet, or the device is not there.
    """

    def __init__(self, device: str = "cpu", threads: int | None = None, timeout_s: float = 600.0) -> None:
        self.timeout_s, self._exit = timeout_s, ExitStack()
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
        return _UnderWay(dist.all_reduce(there, async_op=True), there, numbers)

    def gather_objects(self, value: Any) -> list[Any]:
        """What every rank gave."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._host)
        return values

    def close(self) -> None:
        """Take leave. A rank that aborts just ends: the others notice, as its connections end with the process."""
        self._exit.close()


class _UnderWay(Pending):
    """A work of torch, where it computes, and where its result belongs."""

    def __init__(self, work: Any, there: Tensor, result: Tensor) -> None:
        self._work, self._there, self._result, self.there_s = work, there, result, 0.0
        if there.device.type == "cpu":  # with NCCL the future is there before the GPU is, so `wait` takes the time
            work.get_future().then(lambda _: self._found())

    def _found(self) -> None:
        self.there_s = self.there_s or time.perf_counter()

    def wait(self) -> Tensor:
        self._work.wait()
        if self._there.data_ptr() != self._result.data_ptr():
            self._result.copy_(self._there)
        self._found()
        return self._result
