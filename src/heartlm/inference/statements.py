"""The probability of each statement about a recording: of the network, the mean over windows, and of the trees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from heartlm.inference.beat_summary import beat_summary
from heartlm.inference.predictions import chunks_of_recordings, over_windows
from heartlm.models.heart import HeartModel
from heartlm.models.leads import LeadsNetwork

LEAST = 1e-6
"""Least probability of a statement, and of its absence."""
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
        for codes, total, count in zip(chunk, totals, counts, strict=True):
            yield _with_trees(model, codes, total / count)


@torch.inference_mode()
def recording_vectors(
    model: LeadsNetwork, recordings: Iterable[NDArray[np.uint16]], window: int
) -> Iterator[NDArray[np.float32] | None]:
    """Iterate over a vector of each recording: the state of the network, the mean over windows, and its summary.

    None for a recording without I, II or a chest lead. Arguments are those of `statement_probabilities`.
    """
    for codes in recordings:
        summary, strides = beat_summary(codes), [max(1, window // STRIDES_A_WINDOW)]
        states = [each for *_, each in over_windows(model, [codes], window, strides, model.vectors)]
        yield None if summary is None else np.concatenate([np.mean(states, axis=0), summary])


def _with_trees(model: HeartModel, codes: NDArray[np.uint16], probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean, as logits, of `probability` and what the trees of `model` say, if they can read the leads."""
    trees = getattr(model, "trees", None)
    summary = beat_summary(codes) if trees is not None else None
    if trees is None or summary is None:
        return probability
    of_trees = trees(torch.from_numpy(summary)[None].to(trees.bias.device))[0].cpu().numpy()
    of_network = np.log(np.maximum(probability, LEAST) / np.maximum(1 - probability, LEAST))
    return np.asarray(1 / (1 + np.exp(-(of_network + of_trees) / 2)))
