"""Predictions of a fine-tuned model for every token of a recording.

    recordings ─► chunks ─► windows of one width, of several recordings ─► model ─► windows of each recording

Windows overlap by half. The probabilities of a token are averaged over the windows that contain it, so a token near the
edge of one window is also classified from the middle of another. The host reads a batch while a GPU computes the next.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heartlm.corpus.windows import covering_windows
from heartlm.ecg.recording import ARTEFACT
from heartlm.inference.network import InferenceNetwork

MOST_PASSES = 4
"""Number of times that beats are classified again without artefacts."""
NEAR_BEATS = 16
"""Number of detections on each side of an artefact that are classified again without it."""

Codes = NDArray[np.uint16]
Floats = NDArray[np.float32]
Key = TypeVar("Key")


def chunks_of_recordings(model: InferenceNetwork, recordings: Iterable[Codes]) -> Iterator[list[Codes]]:
    """Split `recordings`, in order, into groups of at most as many tokens as `model` computes together, if possible."""
    chunk, num_tokens, most = list[Codes](), 0, model.windows_at_once(1)
    for codes in recordings:
        if chunk and num_tokens + len(codes) > most:
            yield chunk
            chunk, num_tokens = [], 0
        chunk.append(np.asarray(codes))
        num_tokens += len(codes)
    if chunk:
        yield chunk


def over_windows(
    model: InferenceNetwork,
    chunk: Sequence[Codes],
    window: int,
    strides: Sequence[int],
    compute: Callable[[Codes], ArrayLike],
) -> Iterator[tuple[int, slice, Floats]]:
    """Compute on all windows of some recordings.

    Args:
        model: model that decides how many windows are computed together.
        chunk: codes of each recording, uint16 `[num_tokens, num_facets]`.
        window: tokens per window; a shorter recording is one window.
        strides: of each recording, the tokens between the starts of consecutive windows; the last window ends with it.
        compute: method of `model` that takes the codes of windows, uint16 `[num_windows, width, num_facets]`.

    Yields:
        Index of the recording, the tokens of a window, and its row of the result. Windows of a recording are in order.
    """
    by_width = defaultdict[int, list[tuple[int, int]]](list)
    for index, (codes, stride) in enumerate(zip(chunk, strides, strict=True)):
        windows = covering_windows(0, len(codes), window, stride)
        width = int(windows.length[0])  # every window of a recording has the same length
        by_width[width] += [(index, first) for first in windows.first.tolist()]

    def batches() -> Iterator[tuple[list[tuple[int, slice]], Codes]]:
        for width, every in by_width.items():
            size = model.windows_at_once(width)
            for begin in range(0, len(every), size):
                slices = [(index, slice(first, first + width)) for index, first in every[begin : begin + size]]
                yield slices, np.stack([chunk[index][own] for index, own in slices])

    for slices, answers in in_batches(model, batches(), compute):
        for (index, own), answer in zip(slices, answers, strict=True):
            yield index, own, answer


def in_batches(
    model: InferenceNetwork, batches: Iterable[tuple[Key, Codes]], compute: Callable[[Codes], ArrayLike]
) -> Iterator[tuple[Key, Floats]]:
    """Apply `compute` of `model` to the codes of each batch; a GPU computes one batch ahead."""
    ahead, queued = int(model.device != "cpu"), deque[tuple[Key, ArrayLike]]()
    for key, codes in batches:
        queued.append((key, compute(codes)))
        if len(queued) > ahead:
            key, result = queued.popleft()
            yield key, np.asarray(result)
    for key, result in queued:
        yield key, np.asarray(result)


def recording_probabilities(
    model: InferenceNetwork, recordings: Iterable[Codes], window: int, overlaps: Iterable[bool] = itertools.repeat(True)
) -> Iterator[Floats]:
    """Iterate over the class probabilities of every token of each recording.

    Args:
        model: model with a class head; the output of a pooled head applies to every token of its window.
        recordings: codes of all tokens of each recording, uint16 `[num_tokens, num_facets]`; read some ahead.
        window: tokens per window.
        overlaps: whether the windows of each recording overlap by half, which takes twice the time; by default all.

    Yields:
        Probabilities, float32 `[num_tokens, num_classes]`.
    """
    strides = (max(1, window // 2) if overlaps_half else window for overlaps_half in overlaps)
    for chunk in chunks_of_recordings(model, recordings):
        totals = [np.zeros((len(codes), model.num_classes), np.float32) for codes in chunk]
        counts = [np.zeros((len(codes), 1), np.float32) for codes in chunk]
        own = list(itertools.islice(strides, len(chunk)))
        answers = over_windows(model, chunk, window, own, model.probabilities)
        for index, tokens, answer in answers:
            totals[index][tokens] += answer
            counts[index][tokens] += 1
        yield from (total / count for total, count in zip(totals, counts, strict=True))


def without_artefacts(
    classify: Callable[[NDArray[np.bool_]], Floats],
    num_beats: int,
    classes: Sequence[str],
    certain: NDArray[np.bool_] | None = None,
    wide: NDArray[np.bool_] | None = None,
) -> tuple[Floats, NDArray[np.bool_]]:
    """Classify detected beats, and leave those out that are artefacts.

    An artefact changes the intervals of the beats around it, so these are classified again until none is an artefact,
    at most `MOST_PASSES` times. The others keep their first classes: in bigeminy, where two kinds of beats are equally
    frequent, one detection less can change what counts as the usual beat of the recording.

    Args:
        classify: returns class probabilities of the kept beats, `[num_kept, num_classes]`, by whether each is kept,
            bool `[num_beats]`.
        num_beats: number of detected beats.
        classes: names of the classes.
        certain: detections that are heartbeats whatever the model says, bool `[num_beats]`; None for none.
        wide: certain ones that are wider than others: a model that calls one an artefact means that its shape is that
            of no usual beat, and it is ventricular; None for none.

    Returns:
        Probabilities of the classes without `ARTEFACT`, float32 `[num_beats, num_classes]`, and whether each beat is an
        artefact, bool `[num_beats]`.
    """
    kept = np.ones(num_beats, np.bool_)
    probability = classify(kept)
    if ARTEFACT not in classes:
        return probability, ~kept
    artefact = classes.index(ARTEFACT)
    for _ in range(MOST_PASSES):
        artefacts = kept & (probability.argmax(axis=1) == artefact)
        if certain is not None:
            artefacts &= ~certain
        if not artefacts.any():
            break
        kept &= ~artefacts
        near = kept & (np.convolve(np.pad(artefacts, NEAR_BEATS), np.ones(2 * NEAR_BEATS + 1), "valid") > 0)
        probability[near] = classify(kept)[near[kept]]
    if wide is not None:
        moved = wide & kept & (probability.argmax(axis=1) == artefact)
        probability[moved, classes.index("V")] += probability[moved, artefact]
    probability = np.delete(probability, artefact, axis=1)
    return probability / np.maximum(probability.sum(axis=1, keepdims=True), 1e-9), ~kept


def token_probabilities(model: InferenceNetwork, codes: Codes, window: int) -> Floats:
    """Return class probabilities of every token of one recording; see `recording_probabilities`."""
    return next(recording_probabilities(model, [codes], window))


def window_probabilities(model: InferenceNetwork, codes: Codes, window: int) -> Floats:
    """Return class probabilities of windows, each computed from its own tokens only.

    A pooled head classifies the whole window; the probabilities of a token head are averaged over the window. A window
    wider than the model's is split into overlapping parts of the model's width.

    Args:
        model: model with a class head.
        codes: codes of the windows, uint16 `[num_windows, width, num_facets]`.
        window: tokens per window in the model's training.

    Returns:
        Probabilities, float32 `[num_windows, num_classes]`.
    """
    if codes.shape[1] > window:
        return np.stack([each.mean(axis=0) for each in recording_probabilities(model, codes, window)])

    size = model.windows_at_once(codes.shape[1])
    batches = ((begin, codes[begin : begin + size].copy()) for begin in range(0, len(codes), size))
    answers = (answer for _, answer in in_batches(model, batches, model.probabilities))
    return np.concatenate([answer if model.pooled else answer.mean(axis=1) for answer in answers])
