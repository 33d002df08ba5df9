"""The probability of each statement about a recording: the mean over its windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from heartlm.inference.predictions import chunks_of_recordings, over_windows
from heartlm.models.heart import HeartModel

STRIDES_A_WINDOW = 3
"""Windows begin a third of a window apart."""


@torch.inference_mode()
def statement_probabilities(
    model: HeartModel, recordings: Iterable[NDArray[np.uint16]], window: int
) -> Iterator[NDArray[np.float64]]:
    """Iterate over the probability of each statement about each recording, float64 `[num_statements]`.

    Args:
        model: model of the statements task.
        recordings: codes of the leads tokenizer of each recording, uint16 `[num_tokens, num_facets]`.
        window: tokens per window; a shorter recording is one window.
    """
    for chunk in chunks_of_recordings(model, recordings):
        totals = [np.zeros(model.num_classes) for _ in chunk]
        counts = [0] * len(chunk)
        strides = [max(1, window // STRIDES_A_WINDOW)] * len(chunk)
        for index, _, answer in over_windows(
            model, chunk, window, strides, lambda part: model.class_logits(part).sigmoid()
        ):
            totals[index] += answer
            counts[index] += 1
        yield from (total / count for total, count in zip(totals, counts, strict=True))
