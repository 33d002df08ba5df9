"""Model wrappers: gradients summed over ranks (DDP), or parameters sharded over them (FSDP).

    rank 0   micro-batches ─► loss module ─► gradients ┐
    rank 1   micro-batches ─► loss module ─► gradients ┼─► their sum, on every rank (DDP) or each its shard (FSDP)
    …                                                  ┘

The loss of a rank is its sum over counted tokens, divided by their number in the global batch. So gradients are summed,
not averaged: a mean of per-rank means would be wrong if ranks have different numbers of tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from heartlm.distributed.communication import GradientSync


def sharded(module: nn.Module, blocks: Sequence[nn.Module], device: torch.device) -> nn.Module:
    """Shard the parameters of `module` in place over the ranks (FSDP2): each block, and the rest."""
    with unset_fake_temporarily():  # the mesh reads its ranks from a tensor, also in a dry run
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in (*blocks, module):
        shard = fully_shard(part, mesh=mesh)
        shard.set_gradient_divide_factor(1.0)
        shard.set_force_sum_reduction_for_comms(True)
    return module


def replicated(
    module: nn.Module,
    bucket_cap_mb: float,
    grad_sync: GradientSync,
    shared: Callable[[Tensor], None] | None = None,
    synced: bool = True,
) -> DistributedDataParallel:
    """Wrap `module` in DDP, which sums gradients over ranks, bucket by bucket, during the backward pass.

    Args:
        module: module on its device; every trainable parameter is used in every loss.
        bucket_cap_mb: size of a gradient bucket in MiB.
        grad_sync: measures the sums; called after the last gradient and for blocking sums.
        shared: blocking sum of a bucket in place; by default the process group sums asynchronously.
        synced: whether to broadcast the parameters of rank 0; must be false in a dry run.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames broadcast_buffers, 2.11 has only that
        wrapped = DistributedDataParallel(
            module, broadcast_buffers=False, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True, init_sync=synced
        )

    def add_up(bucket: Any) -> torch.futures.Future[Tensor]:
        if bucket.is_last():
            grad_sync.ready()
        if shared is None:
            reduced = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            summed: torch.futures.Future[Tensor] = reduced.then(lambda future: future.value()[0])
            return summed
        with grad_sync.waiting():
            shared(bucket.buffer())
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    wrapped.register_comm_hook(None, lambda _, bucket: add_up(bucket))  # torch rejects string annotations
    return wrapped


def reducing(module: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Return a context for a micro-batch; gradients are summed over ranks only in the `last` one of a step."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm over all gradients, including all shards."""
    norm = nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
