"""From windows to batches: inputs, targets and which tokens count, all a pure function of seed and step.

Shapes: B windows, T tokens a window, F facets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.windows import Windows, generator
from heartlm.ecg.beats import BEAT_CLASSES
from heartlm.ecg.rhythms import RHYTHM_INDEX

MASK_STREAM, DROP_STREAM = 1, 2
IGNORE = -1


@dataclass(frozen=True)
class Batch:
    """What one step learns from.

    Attributes:
        codes: inputs, int64 `[B, T, F]`.
        target: codes to predict, int64 `[B, T, F]`, or labels, int64 `[B, T]` (or `[B]` for windows), −1 to ignore.
        counts: which tokens (or windows) the loss counts, bool, the target's shape without facets.
        valid: tokens inside the recording, bool `[B, T]`.
    """

    codes: NDArray[np.int64]
    target: NDArray[np.int64]
    counts: NDArray[np.bool_]
    valid: NDArray[np.bool_]

    @property
    def num_counted(self) -> int:
        """How many tokens (or windows) the loss is normalised by."""
        return int(self.counts.sum())

    def part(self, index: int, of: int) -> Batch:
        """Micro-batch `index` of `of` equal ones."""
        size = len(self.codes) // of
        rows = slice(index * size, (index + 1) * size)
        return Batch(self.codes[rows], self.target[rows], self.counts[rows], self.valid[rows])


MakeBatch = Callable[[Windows, int | None], Batch]
"""`make(windows, step)`; step None makes a batch for validation, without random masks but those of step 0."""


@dataclass(frozen=True)
class MaskedBatches:
    """Hides spans of tokens, all facets of each, behind the mask codes; the hidden ones are the targets."""

    corpus: Corpus
    mask_codes: NDArray[np.int64]
    share: float
    longest: int
    seed: int

    def __call__(self, windows: Windows, step: int | None) -> Batch:
        """Make the batch of `windows`."""
        codes = self.corpus.codes[windows.index].astype(np.int64)
        hidden = hide_spans(windows.valid, self.share, self.longest, generator(self.seed, step or 0, MASK_STREAM))
        return Batch(np.where(hidden[..., None], self.mask_codes, codes), codes, hidden, windows.valid)


def hide_spans(valid: NDArray[np.bool_], share: float, longest: int, random: np.random.Generator) -> NDArray[np.bool_]:
    """Choose about `share` of the valid tokens, in runs of 1 to `longest`; at least one in each window; `[B, T]`."""
    num_windows, width = valid.shape
    mean_length = (longest + 1) / 2
    begins = random.random((num_windows, width)) < share / mean_length
    begins[np.arange(num_windows), np.floor(random.random(num_windows) * valid.sum(axis=1)).astype(int)] = True
    length = random.integers(1, longest + 1, (num_windows, width))
    hidden = np.zeros_like(valid)
    for back in range(min(longest, width)):
        reaches = begins & (length > back)
        hidden[:, back:] |= reaches[:, : width - back]
    return hidden & valid


@dataclass(frozen=True)
class CausalBatches:
    """Predicts each token from those before it."""

    corpus: Corpus

    def __call__(self, windows: Windows, step: int | None) -> Batch:
        """Make the batch of `windows`; T is one less than their width."""
        codes = self.corpus.codes[windows.index].astype(np.int64)
        valid = windows.valid
        return Batch(codes[:, :-1], codes[:, 1:], valid[:, 1:], valid[:, :-1])


@dataclass(frozen=True)
class LabelBatches:
    """Labels of every token, or of each window; in training some codes are hidden.

    Attributes:
        labels: label of every token of the corpus, int64 `[num_tokens]`, −1 to ignore.
        pooled: label windows by the majority of their labelled tokens.
        facet_dropout: share of codes hidden in training.
    """

    corpus: Corpus
    labels: NDArray[np.int64]
    mask_codes: NDArray[np.int64]
    pooled: bool
    facet_dropout: float
    seed: int

    def __call__(self, windows: Windows, step: int | None) -> Batch:
        """Make the batch of `windows`."""
        index = windows.index
        codes = self.corpus.codes[index].astype(np.int64)
        labels = np.where(windows.valid, self.labels[index], IGNORE)
        if step is not None and self.facet_dropout:
            random = generator(self.seed, step, DROP_STREAM)
            codes = np.where(random.random(codes.shape) < self.facet_dropout, self.mask_codes, codes)
        target = majority(labels) if self.pooled else labels
        return Batch(codes, target, target != IGNORE, windows.valid)


def majority(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The most frequent label of each row of `[B, T]`, −1s left out, the lower of equals; −1 where there is none."""
    counts = np.stack([(labels == label).sum(axis=1) for label in range(int(labels.max(initial=0)) + 1)], axis=1)
    return np.where(counts.any(axis=1), counts.argmax(axis=1), IGNORE).astype(np.int64)


BEAT_TASK_CLASSES: tuple[str, ...] = BEAT_CLASSES[:4]
"""The classes of the beats task: N, S, V, F. Q beats are not learnt and not scored, as in de Chazal 2004."""


def beat_labels(beat_class: NDArray[np.int8]) -> NDArray[np.int64]:
    """Labels of the beats task, int64 `[num_tokens]`: Q and unlabelled beats are ignored."""
    return np.where(beat_class < len(BEAT_TASK_CLASSES), beat_class, IGNORE).astype(np.int64)


def rhythm_labels(rhythm: NDArray[np.int8], wanted: str, flutter: str) -> NDArray[np.int64]:
    """Labels of the rhythm task, int64 `[num_tokens]`: 1 in the wanted rhythm, 0 in another, −1 where unlabelled.

    Args:
        rhythm: rhythm index of each token, −1 unlabelled.
        wanted: name of the rhythm looked for.
        flutter: `"negative"`, `"positive"` or `"left out"`: how AFL counts when AFIB is wanted.
    """
    labels = np.where(rhythm < 0, IGNORE, (rhythm == RHYTHM_INDEX[wanted]).astype(np.int64))
    if wanted == "AFIB" and flutter != "negative":
        labels[rhythm == RHYTHM_INDEX["AFL"]] = 1 if flutter == "positive" else IGNORE
    return labels
