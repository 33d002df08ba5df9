"""Estimate the memory of a training step by a dry run: the training code runs on fake tensors, which hold no data.

    tokenizer, settings ─► model, learner ─► two steps under FakeTensorMode ─► peak bytes of a rank, by kind
                                             in torch's fake process group

The dry run allocates no weights and starts no other rank, so a run on thousands of ranks can be planned on any machine.
It counts tensors of torch. It does not count the memory of Python, of libraries and of the process group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import AdamW, Optimizer

from heartlm.distributed.ranks import Ranks
from heartlm.distributed.wrapping import replicated
from heartlm.models.heart import HeartModel
from heartlm.tokenizers.base import Tokenizer
from heartlm.training.batches import Batch
from heartlm.training.config import PretrainConfig
from heartlm.training.layout import BatchLayout
from heartlm.training.learner import Learner
from heartlm.training.objectives import FacetLoss
from heartlm.training.pretrain import model_to_pretrain

Sharing = Literal["ddp", "zero1", "fsdp"]
MOST_RANKS = 1024


@dataclass(frozen=True)
class StepMemory:
    """Bytes on one rank at the peak of a step.

    Attributes:
        parameters: weights and buffers; with FSDP, including the weights gathered at the peak.
        gradients: gradients of the weights.
        optimizer: moments of AdamW.
        activations: tensors saved for the backward pass, and the batch.
        rest: gradients of activations, and temporary tensors of the optimiser.
        num_parameters: number of parameters of the whole model.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    rest: int
    num_parameters: int

    @property
    def peak(self) -> int:
        """Total bytes."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.rest


def step_memory(config: PretrainConfig, tokenizer: Tokenizer, num_ranks: int, sharing: Sharing) -> StepMemory:
    """Dry-run two steps of pretraining on a CPU as rank 0 of `num_ranks`, and return the memory of the second.

    The first step creates the optimiser state and fills the operation cache of DTensor. DTensor infers the shape of a
    result by running the operation once on whole tensors, which allocates memory only in a dry run. DDP wraps the model
    for the second step only: DDP rebuilds its buckets after its first step, which needs real data.

    Args:
        config: settings; `parallel` and `device` are ignored.
        tokenizer: tokenizer of the codes that the model reads and predicts.
        num_ranks: number of ranks; a single rank shares nothing.
        sharing: what ranks share; ddp keeps everything on each rank, zero1 shards the optimiser state, fsdp shards all.

    Raises:
        HeartlmError: a setting is invalid, or the batch does not divide among the ranks.
    """
    config = config.resolved()
    with torch.device("meta"):
        model = model_to_pretrain(config, tokenizer)
    num_parameters = model.num_parameters
    config.check_split(num_ranks)
    tracker = _Tracker()
    with _fake_group(num_ranks), FakeTensorMode(allow_non_fake_inputs=True):
        learner = learner_of(model, config, tokenizer, Ranks(0, num_ranks), sharing)
        take_step(learner, config, 0)
        state: Optimizer = learner.optimizer
        tracker.track_external(learner.module, state.optim if isinstance(state, ZeroRedundancyOptimizer) else state)
        buckets = 0
        with tracker:
            tracker.root = learner.module
            if num_ranks > 1 and sharing != "fsdp":
                before = _kinds(tracker, "current")["Total"]
                learner.module = tracker.root = replicated(
                    learner.loss_module, config.bucket_cap_mb, learner.grad_sync, shared=lambda _: None, synced=False
                )
                buckets = _kinds(tracker, "current")["Total"] - before
            take_step(learner, config, 1)
    peak = _kinds(tracker, "peak")
    optimizer = _kinds(tracker, "current")["Optstate"]  # the peak may include temporary tensors of the optimiser
    gradients = buckets or peak["Gradient"]  # the tracker counts a bucket as activations until it holds gradients
    return StepMemory(
        parameters=peak["Parameter"] + peak["Buffer"],
        gradients=gradients,
        optimizer=min(optimizer, peak["Optstate"]),
        activations=peak["Activation"] + peak["Gradient"] - gradients,
        rest=peak["Temp"] + peak["Other"] + max(0, peak["Optstate"] - optimizer),
        num_parameters=num_parameters,
    )


def learner_of(
    model: HeartModel, config: PretrainConfig, tokenizer: Tokenizer, ranks: Ranks, sharing: Sharing
) -> Learner:
    """Return the learner of a rank on a CPU, not yet wrapped by DDP."""
    config = replace(config, parallel="fsdp" if sharing == "fsdp" else "ddp")
    assert config.batch_size is not None, "sized fills it in"
    layout = BatchLayout(config.batch_size, config.accumulation, ranks)
    loss = FacetLoss(tuple(facet.name for facet in tokenizer.facets))
    precision = torch.bfloat16 if config.precision == "bf16" else torch.float32
    learner = Learner(model, loss, config, device=torch.device("cpu"), precision=precision, layout=layout)
    if ranks.world_size > 1 and sharing == "zero1":
        groups = learner.optimizer.param_groups
        learner.optimizer = ZeroRedundancyOptimizer(groups, AdamW, betas=(0.9, 0.95), fused=True)
    return learner


def take_step(learner: Learner, config: PretrainConfig, step: int) -> None:
    """Take one step with gradient clipping on unpadded windows of code 0, with the usual number of tokens hidden."""
    causal, num_windows = config.objective == "causal", learner.layout.num_windows
    num_tokens = config.window - causal
    num_counting = num_tokens if causal else max(1, round(config.mask_share * num_tokens))
    size = num_windows // config.accumulation
    codes = torch.zeros(size, num_tokens, len(learner.model.config.facet_sizes), dtype=torch.int64)
    counts = (torch.arange(num_tokens) < num_counting).expand(size, num_tokens).contiguous()
    valid = torch.ones(size, num_tokens, dtype=torch.bool)
    per_window = np.full(size, num_tokens), np.full(size, num_counting)
    chosen = None if causal else torch.arange(size * num_counting)
    batch = Batch(codes, codes.clone(), counts, valid, *per_window, chosen, learner.draw_keys(step, 0, size))
    learner.backward([batch] * config.accumulation, lambda: num_windows * num_counting)
    learner.update(0.0, norm=2 * config.clip)


class _Tracker(MemTracker):  # type: ignore[no-untyped-call]
    """Tracks several steps and micro-batches; torch's `MemTracker` rejects a second forward pass.

    Attributes:
        root: module whose forward pass starts a micro-batch.
    """

    root: nn.Module

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        if module is self.root:
            self.reset_mod_stats()
        super()._pre_fw_hook(module, inputs)


def _kinds(tracker: MemTracker, when: str) -> dict[str, int]:
    """Return bytes on the CPU by the kinds of memory that torch distinguishes."""
    sizes = tracker.get_tracker_snapshot(when)[torch.device("cpu")]
    return {str(getattr(kind, "value", kind)): size for kind, size in sizes.items()}


@contextmanager
def _fake_group(num_ranks: int) -> Iterator[None]:
    """Create the fake process group of rank 0 of `num_ranks`, whose collectives return at once; none for one rank."""
    if num_ranks == 1:
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
