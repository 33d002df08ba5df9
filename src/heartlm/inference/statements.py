"""The probability of each statement about a recording: of the network, the mean over windows, and of the trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heartlm.inference.beat_summary import beat_summary
from heartlm.inference.network import InferenceNetwork
from heartlm.inference.predictions import chunks_of_recordings, over_windows

LEAST = 1e-6
"""Least probability of a statement, and of its absence."""
STRIDES_A_WINDOW = 3
"""Windows begin a third of a window apart."""


def means_over_windows(
    model: InferenceNetwork,
    recordings: Iterable[NDArray[np.uint16]],
    window: int,
    compute: Callable[[NDArray[np.uint16]], ArrayLike],
) -> Iterator[tuple[NDArray[np.uint16], NDArray[np.float64]]]:
    """Iterate over the codes of each recording and the mean over its windows of what `compute` says of a window.

    Args:
        model: network over all leads.
        recordings: codes of the leads tokenizer of each recording, uint16 `[num_tokens, num_facets]`.
        window: tokens per window; a shorter recording is one window.
        compute: method of `model` that takes the codes of windows, `[num_windows, width, num_facets]`, and returns one
            row for each.
    """
    for chunk in chunks_of_recordings(model, recordings):
        totals, counts = [np.zeros(1) for _ in chunk], [0] * len(chunk)
        strides = [max(1, window // STRIDES_A_WINDOW)] * len(chunk)
        for index, _, answer in over_windows(model, chunk, window, strides, compute):
            totals[index] = totals[index] + answer
            counts[index] += 1
        for codes, total, count in zip(chunk, totals, counts, strict=True):
            yield codes, total / count


def statement_probabilities(
    model: InferenceNetwork, recordings: Iterable[NDArray[np.uint16]], window: int
) -> Iterator[NDArray[np.float64]]:
    """Iterate over the probability of each statement about each recording, float64 `[num_statements]`.

    Args:
        model: model of the statements task.
        recordings: codes of the leads tokenizer of each recording, uint16 `[num_tokens, num_facets]`.
        window: tokens per window; a shorter recording is one window.
    """
    for codes, probability in means_over_windows(model, recordings, window, model.probabilities):
        yield _with_trees(model, codes, probability)


def _with_trees(
    model: InferenceNetwork, codes: NDArray[np.uint16], probability: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean, as logits, of `probability` and what the trees of `model` say, if they can read the leads."""
    trees = getattr(model, "trees", None)
    summary = beat_summary(codes) if trees is not None else None
    if trees is None or summary is None:
        return probability
    of_trees = trees(summary[None])[0]
    of_network = np.log(np.maximum(probability, LEAST) / np.maximum(1 - probability, LEAST))
    return np.asarray(1 / (1 + np.exp(-(of_network + of_trees) / 2)))
