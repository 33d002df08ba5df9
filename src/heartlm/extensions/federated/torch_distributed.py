"""Ranks started by `torchrun`: gloo for CPUs, NCCL for GPUs, both with asynchronous progress."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heartlm.distributed.agreement import host_group
from heartlm.distributed.parallel import joined
from heartlm.extensions.federated.communicator import Communicator, Pending


class TorchCommunicator(Communicator):
    """The ranks of the default process group of torch, which is created if necessary.

    Args:
        device: device of the ranks: auto, cpu or cuda.
        threads: CPU threads per rank.
        timeout_s: seconds after which a rank that does not respond counts as lost.

    Raises:
        HeartlmError: the rendezvous failed, or the device is not available.
    """

    def __init__(self, device: str = "cpu", threads: int | None = None, timeout_s: float = 600.0) -> None:
        self.timeout_s, self._exit = timeout_s, ExitStack()
        if not dist.is_initialized():
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")  # abort, since results are not checked here
            self._exit.enter_context(joined(device, threads=threads, timeout_s=timeout_s))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        nccl = dist.get_backend() == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
        self._host = host_group(timeout_s)

    def start_sum(self, numbers: Tensor) -> Pending:
        """Start the sum; with NCCL, copy the numbers to the GPU and the sums back."""
        on_device = numbers.to(self._device, non_blocking=True)
        return _TorchPending(dist.all_reduce(on_device, async_op=True), on_device, numbers)

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._host)
        return values

    def close(self) -> None:
        """Leave the group. A rank that aborts only exits: the others detect its closed connections."""
        self._exit.close()


class _TorchPending(Pending):
    """A collective of torch in progress, with its device buffer and its result buffer."""

    def __init__(self, work: Any, on_device: Tensor, result: Tensor) -> None:
        self._work, self._on_device, self._result, self.completed_s = work, on_device, result, 0.0
        if on_device.device.type == "cpu":  # with NCCL the future completes before the GPU, so `wait` takes the time
            work.get_future().then(lambda _: self._note_completion())

    def _note_completion(self) -> None:
        self.completed_s = self.completed_s or time.perf_counter()

    def wait(self) -> Tensor:
        self._work.wait()
        if self._on_device.data_ptr() != self._result.data_ptr():
            self._result.copy_(self._on_device)
        self._note_completion()
        return self._result
