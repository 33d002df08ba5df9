"""Descriptions of a training task and of a training job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.windows import Windows, WindowSampler
from heartlm.distributed.ranks import Ranks
from heartlm.models.info import ModelInfo
from heartlm.runs.run_folder import RunFolder
from heartlm.training.config import TrainingConfig
from heartlm.training.layout import BatchLayout

if TYPE_CHECKING:
    from heartlm.models.heart import HeartModel
    from heartlm.training.batches import MakeBatch
    from heartlm.training.objectives import LossSum


@dataclass(frozen=True)
class TrainingTask:
    """Settings, model, loss and data to train with, for central or federated training.

    Attributes:
        config: resolved settings.
        model: model with initial weights from the seed in the settings.
        info: description to save with the model.
        loss: function from a batch to sums of losses.
        rows: rows of the corpus to train on.
        make_batch: function from a seed to a builder of batches.
        held_out: rows of the corpus for validation; may be empty.
        sampler: sampler of the windows of every step; None uses the settings.
    """

    config: TrainingConfig
    model: HeartModel
    info: ModelInfo
    loss: LossSum
    rows: NDArray[np.int64]
    make_batch: Callable[[int], MakeBatch]
    held_out: NDArray[np.int64]
    sampler: WindowSampler | None = None


@dataclass(frozen=True)
class Job:
    """The inputs of the training loop.

    Attributes:
        task: model, loss and data.
        config: resolved settings.
        folder: run folder to write.
        sampler: sampler of the windows of every step.
        make_batch: builder of batches from windows.
        validation: windows of the validation split, in order; None without such a split.
        ranks: rank of this process and number of ranks; every rank has the same job.
    """

    task: TrainingTask
    config: TrainingConfig
    folder: RunFolder
    sampler: WindowSampler
    make_batch: MakeBatch
    validation: Windows | None = None
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def layout(self) -> BatchLayout:
        """The part of this rank in every global batch.

        Raises:
            HeartlmError: the batch cannot be split among these ranks and micro-batches.
        """
        return BatchLayout(self.sampler.batch_size, self.config.accumulation, self.ranks)
