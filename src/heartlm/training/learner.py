"""The computation of one rank in a step: losses and gradients of its micro-batches, and the optimiser step."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import AdamW, Optimizer

from heartlm.distributed.communication import GradientSync
from heartlm.distributed.shared_memory import shared_sum_of
from heartlm.distributed.wrapping import gradient_norm, reducing, replicated, sharded
from heartlm.instrumentation.meters import Meters
from heartlm.kernels.draws import Stream, Use, draws
from heartlm.models.heart import HeartModel
from heartlm.storage.atomic import cache_folder
from heartlm.system.memory import keep_memory
from heartlm.training.batches import Batch
from heartlm.training.config import TrainingConfig
from heartlm.training.layout import BatchLayout
from heartlm.training.objectives import LossModule, LossSum

QUEUED_DEVICES = {"cuda"}
"""Types of devices for which steps are queued; tests add the CPU."""


class Learner:
    """The model of a run on this rank, wrapped for DDP or FSDP, and its optimiser.

    Args:
        model: model to train; moved to `device`, and sharded with FSDP.
        loss: function from a batch to sums of losses.
        config: resolved settings.
        device: device to compute on.
        precision: dtype of matrix products.
        layout: part of this rank in every global batch.
        grad_sync: measures sums of gradients over ranks; by default for nothing.

    Attributes:
        model: the given model.
        loss_module: the model and its loss, not wrapped by DDP.
        trainable: parameters that are trained.
        optimizer: optimiser of these parameters.
        is_queued: whether steps are queued, so that none may read a number on the host.
        is_static: whether shapes must not depend on what was drawn.
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
        grad_sync: GradientSync | None = None,
    ) -> None:
        self.model, self.config, self.layout, self.ranks = model, config, layout, layout.ranks
        self.device, self.precision = device, precision
        self.grad_sync = grad_sync or GradientSync(Meters(), device)
        self.compiles, self.is_queued = compiles(config, model, device), device.type in QUEUED_DEVICES
        self.is_static = self.compiles or self.is_queued
        self.loss_module = LossModule(self.model, loss).to(device)
        if self.is_queued:
            self.model.batch_facets()
        self.model.recompute(config.activation_checkpointing)
        if self.compiles:
            keep_compiled_code()
            torch.compiler.reset()  # graphs of an earlier run in this process count towards the cache limit of torch
            self.model.compile()
        self.module: nn.Module = self.loss_module
        if self.ranks.world_size > 1 and config.parallel == "fsdp":
            self.module = sharded(self.loss_module, list(self.model.trunk.blocks), device)
        self.trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        # as for GPT-3 and in nanoGPT: gains and biases, of one dimension, do not decay, and β₂ is not torch's 0.999;
        # docs/log has no trial of other values
        groups = [
            {"params": [each for each in self.trainable if each.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [each for each in self.trainable if each.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer: Optimizer = AdamW(groups, betas=(0.9, 0.95), fused=True)

    def replicate(self) -> None:
        """Wrap the model in DDP, unless it runs on one rank or is sharded."""
        if self.ranks.world_size == 1 or isinstance(self.module, FSDPModule):
            return
        on_cpu = self.device.type == "cpu" and all(parameter.dtype == torch.float32 for parameter in self.trainable)
        shared = shared_sum_of(self.ranks, self.config.timeout_s) if on_cpu else None
        self.module = replicated(self.loss_module, self.config.bucket_cap_mb, self.grad_sync, shared)

    def backward(
        self, batches: Sequence[Batch], num_counted: Callable[[], float | Tensor]
    ) -> tuple[tuple[str, ...], Tensor, Tensor]:
        """Compute the gradient of the mean loss over the global batch, without synchronisation with the host.

        Args:
            batches: micro-batches of this rank.
            num_counted: returns the number of counted tokens of the global batch; called after each forward pass.

        Returns:
            Names of the losses, the first "loss"; their sums over `batches`; the norm of the gradient over all ranks.
        """
        self.module.train()
        names: tuple[str, ...] = ()
        sums: list[Tensor] = []
        for index, batch in enumerate(batches):
            # to compile a rare shape would stop the run for a minute, for one step
            eager = torch.compiler.set_stance("force_eager") if batch.is_rare else nullcontext()
            with eager, reducing(self.module, last=index + 1 == len(batches)):
                with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
                    loss, parts = self.module(batch)
                (loss / num_counted()).backward()
            names = ("loss", *parts)
            sums.append(torch.stack([loss.detach(), *parts.values()]).float())
        self.grad_sync.returned()
        return names, torch.stack(sums).sum(dim=0), self.gradient_norm()

    def gradient_norm(self) -> Tensor:
        """Return the norm of the gradient over all ranks."""
        return gradient_norm([each.grad for each in self.trainable if each.grad is not None])

    def update(self, rate: float | Tensor, norm: float | Tensor, is_taken: bool | Tensor = True) -> None:
        """Take an optimiser step with the gradient, clipped by its norm, and reset the gradient.

        Args:
            rate: learning rate.
            norm: norm of the gradient.
            is_taken: whether to take the step; otherwise only the gradient is reset.
        """
        clip, optimizer = self.config.clip, self.optimizer
        for group in optimizer.param_groups:
            group["lr"] = rate
        if self.is_queued:
            # AdamW divides gradients by the scale, which clips them, and does nothing where `found_inf` is 1
            scale = torch.clamp((torch.as_tensor(norm) + 1e-6) / clip, min=1.0)
            optimizer.grad_scale = scale  # type: ignore[attr-defined]
            optimizer.found_inf = 1 - torch.as_tensor(is_taken).float()  # type: ignore[attr-defined]
            optimizer.step()
        elif is_taken:
            if float(norm) + 1e-6 > clip:  # a CPU need not wait for the norm, and saves a pass where nothing is clipped
                nn.utils.clip_grads_with_norm_(self.trainable, clip, torch.as_tensor(norm))
            optimizer.step()
        self.forget()

    def forget(self) -> None:
        """Reset the gradients to None."""
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Return sums of the losses of `batch`, in full precision and without dropout."""
        self.loss_module.eval()
        loss, parts = self.loss_module(batch.to(self.device))
        values = torch.stack([loss, *parts.values()]).tolist()  # the only synchronisation with the device
        return dict(zip(("loss", *parts), values, strict=True))

    def draw_keys(self, step: int, index: int, num_rows: int) -> Tensor | None:
        """Return the dropout keys of micro-batch `index`, on the host; None without dropout."""
        if not (num_sites := self.model.num_dropout_sites):
            return None
        first_window = self.layout.first_row(index, num_rows)
        return dropout_keys(self.config.seed, step, num_sites, first_window, num_rows)


def compiles(config: TrainingConfig, model: HeartModel, device: torch.device) -> bool:
    """Return whether training compiles the model: as set, by default on a GPU where windows have one width."""
    if config.compile is not None:
        return config.compile
    mixes_widths = getattr(config, "shortest_window", None) is not None
    return device.type == "cuda" and model.config.network == "transformer" and not mixes_widths


def keep_compiled_code() -> None:
    """Let Inductor keep compiled code in heartlm's cache folder, unless the environment names a folder.

    Its own default is in /tmp, which a reboot empties, so that the first run after it would compile again.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        folder = cache_folder() / "compiled"
        with suppress(OSError):  # not writable: the default of Inductor
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def dropout_keys(seed: int, step: int, num_sites: int, first_window: int, num_windows: int) -> Tensor:
    """Return dropout keys of windows of the global batch from `first_window` on, int32 `[num_sites, num_windows]`."""
    drawn = draws(Stream(seed, step, Use.DROPOUT), first_window * num_sites, num_windows * num_sites)
    low_halves = drawn.astype(np.uint32).view(np.int32).reshape(num_windows, num_sites)
    return torch.from_numpy(np.ascontiguousarray(low_halves.T))


def learning_rate(step: int, *, peak: float, warmup_steps: int, steps: int, final_share: float) -> float:
    """Return the rate at `step`: linear warm-up to `peak`, then cosine decay to `final_share * peak`, the last rate."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = (step - warmup_steps) / max(1, steps - 1 - warmup_steps)
    return peak * (final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


@contextmanager
def at_full_speed() -> Iterator[None]:
    """Keep freed memory for reuse, and flush denormal numbers to zero within the context.

    Denormal numbers slow a CPU down tenfold. Can also be used as a function decorator.
    """
    keep_memory()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
