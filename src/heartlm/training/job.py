"""What a model learns from a corpus, and what a loop trains with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.windows import Windows, WindowSampler
from heartlm.distributed.ranks import Ranks
from heartlm.models.heart import HeartModel
from heartlm.models.store import ModelInfo
from heartlm.runs.run_folder import RunFolder
from heartlm.training.batches import MakeBatch
from heartlm.training.config import TrainingConfig
from heartlm.training.layout import BatchLayout
from heartlm.training.objectives import LossSum


@dataclass(frozen=True)
class Task:
    """What a model learns from a corpus, in one training or over clients.

    Attributes:
        model: with its first weights, drawn by the seed of the settings.
        info: how the saved model describes itself.
        loss: batches to sums of losses.
        rows: of the corpus, to learn from.
        make_batch: from a seed, windows to batches.
        held_out: rows to validate with; may be empty.
        sampler: windows of every step, where they are not drawn as the settings say.
    """

    model: HeartModel
    info: ModelInfo
    loss: LossSum
    rows: NDArray[np.int64]
    make_batch: Callable[[int], MakeBatch]
    held_out: NDArray[np.int64]
    sampler: WindowSampler | None = None


@dataclass(frozen=True)
class Job:
    """Everything a loop trains with.

    Attributes:
        config: settings, resolved.
        run: where to write.
        model: what learns.
        info: how the saved model describes itself.
        sampler: windows of every step.
        make_batch: windows to batches.
        loss: batches to sums of losses.
        validation: windows of the validation split, in order; none where there is no such split.
        ranks: this process among those that train together; each has the same job.
    """

    config: TrainingConfig
    run: RunFolder
    model: HeartModel
    info: ModelInfo
    sampler: WindowSampler
    make_batch: MakeBatch
    loss: LossSum
    validation: Windows | None = None
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def layout(self) -> BatchLayout:
        """The part of this rank in every global batch.

        Raises:
            HeartlmError: the batch cannot be split among these ranks and micro-batches.
        """
        return BatchLayout(self.sampler.batch_size, self.config.accumulation, self.ranks)
