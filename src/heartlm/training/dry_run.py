"""The memory of a training step, from a dry run: the step's own code on tensors that have shapes and no numbers.

    tokenizer, settings ─► model, learner ─► two steps under FakeTensorMode ─► peak bytes of a rank, by kind
                                             in torch's fake process group

Nothing of the model's size is allocated and no other rank exists, so thousands of ranks can be planned anywhere. What
torch allocates is counted; memory of Python, of libraries and of the process group is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    """Bytes of a rank when a step needs most.

    Attributes:
        parameters: weights and buffers, with FSDP also those gathered at that moment.
        gradients: of the weights.
        optimizer: moments of AdamW.
        activations: what the forward pass keeps for the backward pass, and the batch.
        rest: gradients of activations, and scratch of the optimiser.
        num_parameters: of the whole model.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    rest: int
    num_parameters: int

    @property
    def peak(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.rest


def step_memory(config: PretrainConfig, tokenizer: Tokenizer, num_ranks: int, sharing: Sharing) -> StepMemory:
    """Run two steps of pretraining on a CPU dry, as rank 0 of `num_ranks`; what follows from the depth is filled in.

    The first is not counted. It leaves the state of the optimiser, and what DTensor remembers of operations: to learn
    the shape of a result DTensor runs it once on whole tensors, which allocates nothing outside of a dry run. DDP takes
    the second step alone: it orders its buckets again after its first, which needs numbers.

    Args:
        config: settings; `parallel` and `device` do not count.
        tokenizer: whose codes the model reads and predicts.
        num_ranks: how many train together; one alone shares nothing.
        sharing: ddp keeps everything on each rank, zero1 a part of the optimiser's state, fsdp a part of all.

    Raises:
        HeartlmError: an impossible setting, or a batch that does not split among the ranks.
    """
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
                    learner.alone, config.bucket_cap_mb, shared=lambda _: None, synced=False
                )
                buckets = _kinds(tracker, "current")["Total"] - before
            take_step(learner, config, 1)
    peak = _kinds(tracker, "peak")
    optimizer = _kinds(tracker, "current")["Optstate"]  # at the peak it may hold scratch of the optimiser, too
    gradients = buckets or peak["Gradient"]  # the tracker counts a bucket as activations until its gradients come
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
    """The learner of a rank on a CPU, which DDP does not wrap yet."""
    config.parallel = "fsdp" if sharing == "fsdp" else "ddp"
    assert config.batch_size is not None, "follow fills it in"
    layout = BatchLayout(config.batch_size, config.accumulation, ranks)
    loss = FacetLoss(tuple(facet.name for facet in tokenizer.facets))
    precision = torch.bfloat16 if config.precision == "bf16" else torch.float32
    learner = Learner(model, loss, config, device=torch.device("cpu"), precision=precision, layout=layout)
    if ranks.world_size > 1 and sharing == "zero1":
        groups = learner.optimizer.param_groups
        learner.optimizer = ZeroRedundancyOptimizer(groups, AdamW, betas=(0.9, 0.95), fused=True)
    return learner


def take_step(learner: Learner, config: PretrainConfig, step: int) -> None:
    """One step, clipped, on windows without padding, all codes 0 and the usual number of tokens hidden."""
    causal, num_windows = config.objective == "causal", learner.layout.num_windows
    num_tokens = config.window - causal
    num_counting = num_tokens if causal else max(1, round(config.mask_share * num_tokens))
    codes = torch.zeros(num_windows, num_tokens, len(learner.model.config.facet_sizes), dtype=torch.int64)
    counts = (torch.arange(num_tokens) < num_counting).expand(num_windows, num_tokens).contiguous()
    valid = torch.ones(num_windows, num_tokens, dtype=torch.bool)
    per_window = np.full(num_windows, num_tokens), np.full(num_windows, num_counting)
    batch = Batch(codes, codes.clone(), counts, valid, *per_window)
    learner.backward(step, batch.micro_batches(config.accumulation), lambda: batch.num_counted)
    learner.step(0.0, norm=2 * config.clip)


class _Tracker(MemTracker):  # type: ignore[no-untyped-call]
    """Counts over several steps and micro-batches; by itself torch's refuses a second forward pass.

    Attributes:
        root: the module whose forward pass starts each of them.
    """

    root: nn.Module

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        if module is self.root:
            self.reset_mod_stats()
        super()._pre_fw_hook(module, inputs)


def _kinds(tracker: MemTracker, when: str) -> dict[str, int]:
    """Bytes on the CPU by torch's names of kinds of memory."""
    found = tracker.get_tracker_snapshot(when)[torch.device("cpu")]
    return {str(getattr(kind, "value", kind)): size for kind, size in found.items()}


@contextmanager
def _fake_group(num_ranks: int) -> Iterator[None]:
    """The process group of rank 0 of `num_ranks`, in which every exchange ends at once; none where it is alone."""
    if num_ranks == 1:
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
