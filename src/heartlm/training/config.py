"""Settings of a training run, as documented fields. Imports no torch.

`depth` sets the size of a model. Width, heads, learning rate and batch size are derived from it unless they are set.
The size of the global batch is a number of windows. The number of ranks and `accumulation` only split it, so they
change results by rounding errors only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, Self

from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError, require
from heartlm.models.config import HEAD_WIDTH, ModelConfig
from heartlm.storage.typed import Checked
from heartlm.training.layout import BatchLayout


@dataclass(frozen=True)
class LearningConfig:
    """Settings of learning, which training runs share with extensions that train.

    Attributes:
        corpus: the corpus folder to train on.
        out: the output folder.
        resume: folder of an interrupted run to continue; its saved settings apply and other settings are refused.
        batch_size: windows per step.
        learning_rate: peak learning rate.
        final_learning_rate: learning rate at the end of the cosine decay, as a fraction of the peak.
        weight_decay: weight decay of AdamW, applied to matrices only.
        seed: seed of all random numbers.
        device: device to train on; auto uses a GPU if one is available, and a different GPU for each rank.
        precision: precision of matrix products; auto is bf16 on a GPU that supports it and fp32 elsewhere.
        threads: CPU threads of torch per rank; by default the number of cores of the rank, at most its CPU quota.
        timeout_s: seconds after which a rank that does not respond counts as lost.
    """

    corpus: Path | None = None
    out: Path | None = None
    resume: Path | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    final_learning_rate: float = 0.05
    weight_decay: float = 0.05
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    threads: int | None = None
    timeout_s: float = 600.0

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        require(self, lambda value: value >= 1, "at least 1", "batch_size", "threads")
        require(self, lambda value: 0 < value < math.inf, "more than 0", "learning_rate", "timeout_s")
        require(self, lambda value: 0 <= value < math.inf, "at least 0", "weight_decay")
        require(self, lambda value: 0 <= value <= 1, "0 to 1", "final_learning_rate")
        require(self, lambda value: 0 <= value < 2**31, "0 to 2147483647", "seed")


@dataclass(frozen=True)
class ComputeConfig:
    """How a run computes, what it reports, and how it handles bad steps.

    Attributes:
        accumulation: micro-batches per rank and step, to save memory; the loss is the mean over the whole global
            batch.
        pin: pin each rank to its own cores when several ranks train on CPUs.
        parallel: how ranks share the work; ddp keeps the whole model on each rank, fsdp keeps a shard; auto is ddp.
        bucket_cap_mb: size of a ddp gradient bucket in MiB.
        compile: compile the model for training (torch.compile), which delays the first step. By default on a GPU, but
            neither the task waveform nor windows of mixed widths. Validation runs uncompiled. On one GPU, steps are
            captured as CUDA graphs unless this is set to false.
        resident: keep the codes of the corpus in the memory of the GPU; by default if they need at most half of what is
            free.
        activation_checkpointing: recompute activations in the backward pass instead of keeping them; saves memory and
            costs about a third more arithmetic.
        prefetch: steps whose batches a thread prepares in advance; by default 2 for a GPU without the codes, else 0.
        bad_steps: action on a step whose loss is not finite or jumps; stop saves the state before the step.
        spike_factor: ratio of the loss or gradient norm to the median of 50 steps above which a step is a jump; 0
            disables the check.
        spans: write a timeline of every step for Perfetto; on a GPU this synchronizes after each part of a step.
        measure: measure speed: record the duration of every step on every rank, without validation, checkpoints or
            saved models.
        tensorboard: also write the metrics as TensorBoard events.
        mlflow: also log the metrics to MLflow, on the server in MLFLOW_TRACKING_URI.
        wandb: also log the metrics to Weights & Biases, or with WANDB_MODE=offline to files in the run folder.
        profile: profile a few steps after the warm-up; writes a trace and a table that names the bottleneck.
    """

    accumulation: int = 1
    pin: bool = True
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    bucket_cap_mb: float = 25.0
    compile: bool | None = None
    resident: bool | None = None
    activation_checkpointing: bool = False
    prefetch: int | None = None
    bad_steps: Literal["stop", "skip"] = "stop"
    spike_factor: float = 0.0
    spans: bool = False
    measure: bool = False
    tensorboard: bool = False
    mlflow: bool = False
    wandb: bool = False
    profile: bool = False


LAYOUT = ("device", "threads", "timeout_s", *(field.name for field in fields(ComputeConfig)))
"""Settings that may change when a run is resumed."""


@dataclass(frozen=True)
class TrainingConfig(ComputeConfig, LearningConfig, Checked):
    """Settings shared by pretraining and fine-tuning.

    Attributes:
        out: the run folder to write; by default runs/ and a name made from the settings.
        window: tokens per window.
        batch_size: windows in the global batch of all ranks; by default about 2048 tokens, more for deeper models.
        steps: optimiser steps.
        learning_rate: peak learning rate; by default 1e-3 at width 128, scaled by the inverse square root of the
            width.
        warmup_steps: steps of linear warm-up; by default a tenth of all steps, at most 100.
        clip: maximum gradient norm.
        seed: seed of initialisation, data order, masks and dropout.
        order: order of the windows; random samples positions with replacement, epochs visits adjacent windows once
            per epoch.
        weights: relative frequency of each database in the random order, for example {mitdb: 2, cudb: 1}; by default
            its number of tokens.
        log_every: steps between lines of metrics.
        validate_every: steps between validations.
        checkpoint_every: steps between checkpoints.
        keep_checkpoints: number of complete checkpoints to keep.
    """

    window: int = 128
    steps: int = 1000
    warmup_steps: int | None = None
    clip: float = 1.0
    order: Literal["random", "epochs"] = "random"
    weights: dict[str, float] = field(default_factory=dict)
    log_every: int = 20
    validate_every: int = 200
    checkpoint_every: int = 200
    keep_checkpoints: int = 2

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        super().check()
        counts = ("window", "accumulation", "steps", "log_every", "validate_every", "checkpoint_every")
        require(self, lambda value: value >= 1, "at least 1", *counts, "keep_checkpoints")
        require(self, lambda value: 0 < value < math.inf, "more than 0", "clip", "bucket_cap_mb")
        require(self, lambda value: 0 <= value < math.inf, "at least 0", "warmup_steps", "prefetch")
        require(self, lambda value: value == 0 or 1 < value < math.inf, "0 or more than 1", "spike_factor")
        self.check_split(1)

    def check_split(self, num_ranks: int) -> None:
        """Raise a HeartlmError unless the global batch splits into micro-batches of `num_ranks` ranks."""
        if self.batch_size is not None:
            BatchLayout(self.batch_size, self.accumulation, Ranks(world_size=num_ranks))

    def required_corpus(self) -> Path:
        """Return the corpus folder.

        Raises:
            HeartlmError: no corpus is given.
        """
        if self.corpus is None:
            raise HeartlmError("corpus: nothing found, a corpus folder expected: give --corpus FOLDER")
        return self.corpus

    def sized(self, shape: ModelConfig) -> Self:
        """Return the settings with batch size, learning rate and warm-up by the size of the model where not set."""
        shape = shape.resolve()
        assert shape.width is not None
        # 2048 tokens, more with depth, and 1e-3 by the square root of the width are of the first models and not tuned.
        # Fine-tuning was no better with 3e-4 (docs/log/beats.md, "Settings of fine-tuning").
        windows = max(1, round(2048 * max(1.0, shape.depth / 4) / self.window))
        return replace(
            self,
            batch_size=self.batch_size or -(-windows // self.accumulation) * self.accumulation,
            learning_rate=self.learning_rate or round(1e-3 * (4 * HEAD_WIDTH / shape.width) ** 0.5, 7),
            warmup_steps=min(100, self.steps // 10) if self.warmup_steps is None else self.warmup_steps,
        )


@dataclass(frozen=True)
class PretrainConfig(TrainingConfig):
    """Settings of pretraining.

    Attributes:
        objective: training objective; masked hides spans of tokens and predicts them from both sides, causal predicts
            the next token. With the leads tokenizer, masked hides leads and stretches of time and predicts their
            voltages.
        mask_share: fraction of tokens hidden by the masked objective.
        mask_span: longest hidden span in tokens.
        depth: number of transformer blocks, or of residual blocks, 4, of the network over leads; sets the size of the
            model.
        width: width of the model; by default 32 times the depth.
        heads: attention heads; by default the width divided by 32.
        dropout: dropout probability in training.
    """

    objective: Literal["masked", "causal"] = "masked"
    mask_share: float = 0.3
    mask_span: int = 4
    depth: int = 4
    width: int | None = None
    heads: int | None = None
    dropout: float = 0.0

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        super().check()
        require(self, lambda value: 0 < value < 1, "between 0 and 1", "mask_share")
        require(self, lambda value: value >= 1, "at least 1", "mask_span", "depth", "width", "heads")
        require(self, lambda value: 0 <= value < 1, "0 to below 1", "dropout")
        if self.objective == "causal" and self.window < 2:
            raise HeartlmError(f"window: {self.window} found, at least 2 expected by the causal objective")

    def resolved(self) -> Self:
        """Return the settings with every one set that follows from the size of the model."""
        return self.sized(ModelConfig((), self.depth, self.width, self.heads))
