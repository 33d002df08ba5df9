"""Settings of a training run, as documented fields. Imports no torch.

One dial, `depth`, sets the size of a model; width, heads, learning rate and batch follow from it unless they are set.
The global batch is a number of windows; ranks and accumulation only split it, which changes nothing but rounding.
`LAYOUT` names the settings that may change when a run is resumed: how it computes, and what becomes of bad steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError, require
from heartlm.models.config import HEAD_WIDTH
from heartlm.training.layout import BatchLayout

WAVEFORM_WINDOW, WAVEFORM_BATCH, WAVEFORM_THRESHOLD = 400, 128, 0.3
"""Tokens of a window of the task waveform, 4 s; by default windows of a batch, and the probability that means VF.

The threshold is about that which patient-wise folds gave (`benchmarks/waveform.py`).
"""

LAYOUT = (
    "accumulation",
    "device",
    "threads",
    "pin",
    "parallel",
    "bucket_cap_mb",
    "timeout_s",
    "compile",
    "activation_checkpointing",
    "prefetch",
    "spans",
    "measure",
    "tensorboard",
    "wandb",
    "profile",
    "bad_steps",
    "spike_factor",
)
"""Settings that may change when a run is resumed: how it computes, and what becomes of bad steps."""


@dataclass
class LearningConfig:
    """What trainings and federated studies have in common.

    Attributes:
        corpus: the corpus folder to train on.
        out: the folder to write.
        resume: continue what was interrupted in this folder; its own settings hold and all others are refused.
        batch_size: windows of a step.
        learning_rate: peak learning rate.
        final_learning_rate: share of the peak that the cosine decay ends at.
        weight_decay: of AdamW, on matrices only.
        seed: of everything random.
        device: where to train; auto takes a GPU where there is one, of several ranks each its own.
        precision: auto is bf16 on a GPU that has it and fp32 elsewhere.
        threads: CPU threads of torch in each rank; by default as many as it has cores.
        timeout_s: seconds after which a rank that does not answer counts as gone.
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


@dataclass
class TrainingConfig(LearningConfig):
    """What pretraining and fine-tuning have in common.

    Attributes:
        out: the run folder to write; by default runs/ and a name made from the settings.
        window: tokens a window.
        batch_size: windows in a global batch, that of all ranks; by default about 2048 tokens, more for deeper models.
        accumulation: micro-batches each rank splits its part of a global batch into, to save memory; the loss is that
            of the whole batch.
        steps: optimiser steps.
        learning_rate: peak learning rate; by default 1e-3 at width 128, falling with the square root of the width.
        warmup_steps: steps of linear warm-up; by default a tenth of all steps, at most 100.
        clip: largest norm of the gradient.
        seed: of initialisation, order of data, masks and dropout.
        order: random draws windows anywhere, again and again; epochs gives windows side by side, each once an epoch;
            blocks does so too, reading a corpus larger than memory block by block.
        weights: share of each database in the windows drawn, for example {mitdb: 2, cudb: 1}; by default its tokens.
            For the random order.
        pin: keep each of several ranks that train on CPUs on cores of its own.
        parallel: how ranks share the work; ddp keeps the whole model on each, fsdp a part of it; auto is ddp.
        bucket_cap_mb: MiB of gradients that ddp sends together.
        compile: compile the blocks of the model for training (torch.compile), which takes a while before the first
            step; validation runs them uncompiled.
        activation_checkpointing: compute activations a second time in the backward pass instead of keeping them; saves
            memory, costs about a third more arithmetic.
        prefetch: steps whose batches are prepared ahead, in a thread; by default 2 on a GPU, 0 on a CPU.
        bad_steps: what to do with a step whose loss is not finite or jumps; stop keeps the state before it.
        spike_factor: a loss or gradient norm over this many times the median of 50 steps is a jump; 0 allows all.
        log_every: steps between lines of metrics.
        validate_every: steps between validations.
        checkpoint_every: steps between checkpoints.
        keep_checkpoints: complete checkpoints that stay.
        spans: write where the time of every step went, for Perfetto; on a GPU this waits for each part of a step.
        measure: train for the sake of its speed: keep what every step of every rank took, and neither validate nor
            save checkpoints and models; a study of scaling sets it.
        tensorboard: write the metrics as TensorBoard events, too.
        wandb: send the metrics to Weights & Biases, too; offline keeps them in the run folder for  wandb sync.
        profile: look closely at a few steps after the warm-up: a trace, and a table that names the bottleneck.
    """

    window: int = 128
    accumulation: int = 1
    steps: int = 1000
    warmup_steps: int | None = None
    clip: float = 1.0
    order: Literal["random", "epochs", "blocks"] = "random"
    weights: dict[str, float] = field(default_factory=dict)
    pin: bool = True
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    bucket_cap_mb: float = 25.0
    compile: bool = False
    activation_checkpointing: bool = False
    prefetch: int | None = None
    bad_steps: Literal["stop", "skip"] = "stop"
    spike_factor: float = 0.0
    log_every: int = 20
    validate_every: int = 200
    checkpoint_every: int = 200
    keep_checkpoints: int = 2
    spans: bool = False
    measure: bool = False
    tensorboard: bool = False
    wandb: Literal["none", "online", "offline"] = "none"
    profile: bool = False

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

    def ignored(self, num_ranks: int) -> list[str]:
        """What of these settings means nothing to `num_ranks` ranks, one line each."""
        lines = []
        if self.parallel != "auto" and num_ranks == 1:
            lines.append(f"parallel: {self.parallel} found, ignored: one rank trains alone; use torchrun")
        if self.bucket_cap_mb != TrainingConfig.bucket_cap_mb and (num_ranks == 1 or self.parallel == "fsdp"):
            lines.append(f"bucket_cap_mb: {self.bucket_cap_mb} found, ignored: only ddp on several ranks has buckets")
        return lines

    def checked_corpus(self) -> Path:
        """The corpus folder, once every field was checked.

        Raises:
            HeartlmError: an impossible setting, or no corpus named.
        """
        self.check()
        if self.corpus is None:
            raise HeartlmError("corpus: nothing found, a corpus folder expected: give --corpus FOLDER")
        return self.corpus

    def follow(self, depth: int, width: int) -> None:
        """Fill in what follows from the size of the model."""
        if self.batch_size is None:
            windows = max(1, round(2048 * max(1.0, depth / 4) / self.window))
            self.batch_size = -(-windows // self.accumulation) * self.accumulation
        if self.learning_rate is None:
            self.learning_rate = round(1e-3 * (4 * HEAD_WIDTH / width) ** 0.5, 7)
        if self.warmup_steps is None:
            self.warmup_steps = min(100, self.steps // 10)


@dataclass
class PretrainConfig(TrainingConfig):
    """Settings of pretraining.

    Attributes:
        objective: masked hides spans of tokens and predicts them from both sides; causal predicts the next token.
        mask_share: share of tokens hidden by the masked objective.
        mask_span: longest run of tokens hidden together.
        depth: the dial: number of transformer blocks.
        width: width of the model; by default 32 for each block.
        heads: attention heads; by default one for each 32 of width.
        dropout: share of activations dropped in training.
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


@dataclass
class FinetuneConfig(TrainingConfig):
    """Settings of fine-tuning.

    Attributes:
        run: the run folder of the pretrained model, or of a fine-tuned one, whose head is kept if the labels are
            the same, or the name of a shipped one, such as foundation; none for the task waveform, whose small network
            learns from random weights.
        patients: learn from these patients alone, such as mitdb/101,svdb/800, and their beats on drawn rhythms; by
            default from all of the training split.
        task: beats labels every beat with its AAMI class; rhythm labels every beat as in the rhythm or not; waveform
            labels 4 s of the signal as VF, VT, asystole, noise or other, and takes a corpus of the millivolt
            tokenizer. Classes and patients are drawn alike and windows disturbed in ways of its own.
        from_scratch: start from random weights instead of the pretrained ones: the baseline of every score.
        head: token labels each token; window labels a window as a whole by the majority of its tokens.
        rhythm: the rhythm that the rhythm task looks for.
        flutter: how atrial flutter counts when the rhythm is AFIB.
        shortest_window: train on mixed widths: each step cuts its windows into halves, quarters and so on, none shorter
            than this. The model then labels windows of any width in between.
        threshold: the probability from which a window or beat counts as in the rhythm, by default 0.5, or a window as
            VF, by default 0.3; stored with the model. Choose it on patients that are neither trained on nor tested.
        class_balance: 0 weighs every labelled token alike, 1 every class alike, 0.5 lies between.
        patient_balance: 0 weighs a class by its labels, 1 gives every patient with labels of it an equal part in it.
        facet_dropout: share of codes hidden from the model in training.
        waveform_dropout: share of windows whose waveform codes are all hidden in training (beat tokenizer): the model
            learns not to rely on what a beat looks like where its timing and its comparison with others tell more.
        dropout: share of activations dropped in training.
    """

    run: Path | None = None
    patients: str | None = None
    task: Literal["beats", "rhythm", "waveform"] = "beats"
    from_scratch: bool = False
    head: Literal["token", "window"] = "token"
    rhythm: str = "AFIB"
    flutter: Literal["negative", "positive", "left out"] = "negative"
    shortest_window: int | None = None
    threshold: float | None = None
    class_balance: float = 0.5
    patient_balance: float = 0.5
    facet_dropout: float = 0.1
    waveform_dropout: float = 0.5
    dropout: float = 0.1

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        from heartlm.ecg.rhythms import RHYTHMS

        super().check()
        if self.task == "waveform":
            self._check_waveform()
        else:
            _ = self.foundation
        if self.rhythm not in RHYTHMS:
            raise HeartlmError(f"rhythm: {self.rhythm!r} found, one of {', '.join(RHYTHMS)} expected")
        require(self, lambda value: 0 <= value <= 1, "0 to 1", "class_balance", "patient_balance")
        require(self, lambda value: 0 <= value < 1, "0 to below 1", "facet_dropout", "waveform_dropout", "dropout")
        require(self, lambda value: 0 < value < 1, "between 0 and 1", "threshold")
        require(self, lambda value: 1 <= value <= self.window, f"1 to {self.window}, the window", "shortest_window")
        if self.shortest_window is not None and self.compile:
            raise HeartlmError("compile: true found, but windows of mixed widths have no one shape: leave it out")
        if self.head == "window" and self.task == "beats":
            raise HeartlmError("head: 'window' found, but the beats task labels tokens: use --head token")

    @property
    def patient_ids(self) -> tuple[str, ...]:
        """The patients to learn from; empty where all are."""
        return tuple(name.strip() for name in (self.patients or "").split(",") if name.strip())

    @property
    def foundation(self) -> Path:
        """The run folder of the pretrained model.

        Raises:
            HeartlmError: none is named.
        """
        if self.run is None:
            raise HeartlmError("run: nothing found, a run folder expected: heartlm finetune RUN --corpus FOLDER")
        return self.run

    def _check_waveform(self) -> None:
        if self.patients:
            raise HeartlmError("patients: names found, none expected by the task waveform")
        if self.run is not None:
            raise HeartlmError(f"run: {self.run} found, none expected: the task waveform learns from random weights")
        if self.window not in (TrainingConfig.window, WAVEFORM_WINDOW):
            raise HeartlmError(f"window: {self.window} found, {WAVEFORM_WINDOW} expected by the task waveform (4 s)")
        if self.weights or self.order != "random":
            raise HeartlmError("order: random without weights expected by the task waveform, which draws classes alike")
