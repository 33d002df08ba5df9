"""What answers: a model without gradients, in NumPy and the kernels on a CPU.

Shapes: B windows, T tokens per window, F facets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heartlm.models.info import ModelInfo

Codes = NDArray[np.integer]
Floats = NDArray[np.float32]
Device = Literal["cpu", "cuda"]


class InferenceNetwork:
    """A model without gradients. Its answers are arrays, or become ones by `np.asarray`, which waits for a GPU.

    `heartlm.models.answering.Answering` has the same methods and computes by torch.

    Attributes:
        config: sizes.
        num_classes: number of classes, 0 of a foundation model.
        pooled: whether it labels windows instead of tokens.
        device: cpu or cuda.
        num_weights: number of weights.
        trees: logits `[B, num_classes]` of boosted trees that answer with a network over leads; None without any.
    """

    device: Device = "cpu"
    num_weights = 0
    trees: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None

    def __init__(self, info: ModelInfo) -> None:
        self.config, self.pooled, self.num_classes = info.config, info.pooled, len(info.classes)

    def windows_at_once(self, width: int) -> int:
        """Return the number of windows of `width` tokens per batch, at least 1."""
        raise NotImplementedError

    def probabilities(self, codes: Codes) -> ArrayLike:
        """Return the probability of each class in windows `[B, T, F]`: `[B, T, num_classes]`, if pooled `[B, ...]`.

        Classes exclude each other, except the statements of a network over leads.
        """
        raise NotImplementedError

    def hidden(self, codes: Codes, layer: int = -1) -> ArrayLike:
        """Return the output of a block, from 0, or of the model for windows `[B, T, F]`.

        Of a transformer it is the state of each token, `[B, T, width]`; of a network over leads, features of the
        window, `[B, num_features]`.
        """
        raise NotImplementedError

    def classified(self, hidden: Floats) -> Floats:
        """Return the probability of each class from states of tokens of a transformer, `[..., width]`."""
        raise NotImplementedError
