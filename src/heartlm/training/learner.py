"""What one rank computes in a step: losses and gradients of its micro-batches, and the step of the optimiser."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import AdamW, Optimizer

from heartlm.distributed.communication import GradientSync
from heartlm.distributed.shared_memory import shared_sum_of
from heartlm.distributed.wrapping import gradient_norm, reducing, replicated, sharded
from heartlm.kernels.draws import Stream, draws
from heartlm.models.heart import HeartModel
from heartlm.training.batches import Batch
from heartlm.training.config import TrainingConfig
from heartlm.training.layout import BatchLayout
from heartlm.training.objectives import LossModule, LossSum

DROPOUT_STREAM = 3


class Learner:
    """The model of a run on this rank, wrapped as the settings say, and its optimiser.

    Args:
        model: what learns; it is moved to `device`, and with FSDP its parameters are sharded.
        loss: what it is asked.
        config: settings, resolved.
        device: where to compute.
        precision: of matrix products.
        layout: the part of this rank in every global batch.
        exchange: called for the sums over ranks, and when this rank's gradients are computed and only they are left.

    Attributes:
        model: as it was given.
        optimizer: of its parameters.
    """

    def __init__(
        self,
        model: HeartModel,
        loss: LossSum,
        config: TrainingConfig,
        *,
        device: torch.device,
        precision: torch.dtype,
        layout: BatchLayout,
        exchange: GradientSync | None = None,
    ) -> None:
        self.model, self.config, self.layout, self.ranks = model, config, layout, layout.ranks
        self.device, self.precision = device, precision
        self.alone = LossModule(self.model, loss).to(device)
        self.model.recompute(config.activation_checkpointing)
        if config.compile:
            torch.compiler.reset()  # graphs of an earlier run in this process count towards torch's limit
            for block in self.model.trunk.blocks:  # each by itself: alike, they compile once, and FSDP acts between
                block.compile()
        self.module: nn.Module = self.alone
        if self.ranks.world_size > 1 and config.parallel == "fsdp":
            self.module = sharded(self.alone, list(self.model.trunk.blocks), device)
        self.learning = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [each for each in self.learning if each.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [each for each in self.learning if each.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer: Optimizer = AdamW(groups, betas=(0.9, 0.95), fused=True)
        self.exchange = exchange

    def replicate(self) -> None:
        """Let ranks that are to hold the whole model add up their gradients."""
        if self.ranks.world_size == 1 or isinstance(self.module, FSDPModule):
            return
        on_cpu = self.device.type == "cpu" and all(parameter.dtype == torch.float32 for parameter in self.learning)
        shared = shared_sum_of(self.ranks, self.config.timeout_s) if on_cpu else None
        self.module = replicated(self.alone, self.config.bucket_cap_mb, self.exchange, shared)

    def gradients(
        self, step: int, micro_batches: list[Batch], num_counted: Callable[[], float]
    ) -> tuple[dict[str, float], float]:
        """Compute the gradient of the mean loss over the global batch.

        Args:
            step: from 0.
            micro_batches: of this rank.
            num_counted: of the global batch; asked for after the first loss.

        Returns:
            Sums of this rank's losses, the first under "loss"; and the norm of the whole gradient.
        """
        names, values = self.backward(step, micro_batches, num_counted)
        *losses, whole = values.tolist()  # waits for the device, once
        return dict(zip(names, losses, strict=True)), whole

    def backward(
        self, step: int, micro_batches: list[Batch], num_counted: Callable[[], float]
    ) -> tuple[tuple[str, ...], Tensor]:
        """The same without waiting for the device: names of the losses; and their sums with the norm last."""
        self.module.train()
        names: tuple[str, ...] = ()
        sums: list[Tensor] = []
        for index, batch in enumerate(micro_batches):
            with reducing(self.module, last=index + 1 == len(micro_batches)):
                keys = self._keys(step, index, len(batch.codes))
                with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
                    loss, parts = self.module(batch, keys)
                (loss / max(1.0, num_counted())).backward()
            names = ("loss", *parts)
            sums.append(torch.stack([loss.detach(), *parts.values()]).float())
        if self.exchange is not None:
            self.exchange.returned()
        norm = gradient_norm([p.grad for p in self.learning if p.grad is not None])
        return names, torch.cat([torch.stack(sums).sum(dim=0), norm[None]])

    def step(self, rate: float, norm: float) -> None:
        """Clip the gradient, whose norm is `norm`, and move the weights by `rate`."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if norm + 1e-6 > self.config.clip:
            whole = torch.full((), norm, device=self.device)  # filled there: torch.tensor would send and wait
            nn.utils.clip_grads_with_norm_(self.learning, self.config.clip, whole)
        self.optimizer.step()
        self.forget()

    def forget(self) -> None:
        """Drop the gradient."""
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Sums of the losses of `batch`, in full precision and without dropout."""
        self.alone.eval()
        loss, parts = self.alone(batch.to(self.device), None)
        values = torch.stack([loss, *parts.values()]).tolist()  # waits for the device, once
        return dict(zip(("loss", *parts), values, strict=True))

    def _keys(self, step: int, index: int, num_windows: int) -> Tensor | None:
        """Keys of dropout for micro-batch `index`."""
        if not (num_sites := self.model.num_dropout_sites):
            return None
        first_window = self.layout.first_row(index, num_windows)
        keys = dropout_keys(self.config.seed, step, num_sites, first_window, num_windows)
        if self.device.type == "cuda":
            keys = keys.pin_memory()  # from other memory, sending waits
        return keys.to(self.device, non_blocking=True)


def dropout_keys(seed: int, step: int, num_sites: int, first_window: int, num_windows: int) -> Tensor:
    """Keys of dropout for windows of the global batch from `first_window` on, int32 `[num_sites, num_windows]`."""
    drawn = draws(Stream(seed, step, DROPOUT_STREAM), first_window * num_sites, num_windows * num_sites)
    low_halves = drawn.astype(np.uint32).view(np.int32).reshape(num_windows, num_sites)
    return torch.from_numpy(np.ascontiguousarray(low_halves.T))
