"""From windows to batches: inputs, targets and which tokens count, all a pure function of seed and step.

    windows ─► draft (host: codes gathered, what is hidden, labels) ─► device ─► batch (inputs, targets, what counts)

Shapes: B windows, T tokens a window, F facets.

What is random is drawn for the windows at hand alone, at the place in the stream that the global batch gives them, so
many ranks draw together what one would.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.windows import Windows, draws, uniform
from heartlm.ecg.beats import BEAT_CLASSES
from heartlm.ecg.rhythms import RHYTHM_INDEX
from heartlm.kernels.gather import gather_windows

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
        num_valid: how many those are in each window, int64 `[B]`, on the host.
        num_counting: tokens (or windows) that count in each window, int64 `[B]`, on the host.
    """

    codes: Tensor
    target: Tensor
    counts: Tensor
    valid: Tensor
    num_valid: NDArray[np.int64]
    num_counting: NDArray[np.int64]

    @property
    def num_counted(self) -> int:
        """How many tokens (or windows) the loss is normalised by; asks nothing of the device."""
        return int(self.num_counting.sum())

    @property
    def num_tokens(self) -> int:
        """How many tokens are valid; asks nothing of the device."""
        return int(self.num_valid.sum())

    @property
    def all_valid(self) -> bool:
        """Whether there is no padding, so that attention needs no mask."""
        return bool((self.num_valid == self.codes.shape[1]).all())

    def to(self, device: torch.device) -> Batch:
        """The same on `device`; itself where it is there."""
        codes, target, counts, valid = (tensor.to(device) for tensor in self._tensors)
        return Batch(codes, target, counts, valid, self.num_valid, self.num_counting)

    def part(self, index: int, of: int) -> Batch:
        """Micro-batch `index` of `of` equal ones; views, nothing is copied."""
        size = len(self.codes) // of
        rows = slice(index * size, (index + 1) * size)
        codes, target, counts, valid = (tensor[rows] for tensor in self._tensors)
        return Batch(codes, target, counts, valid, self.num_valid[rows], self.num_counting[rows])

    @property
    def _tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.codes, self.target, self.counts, self.valid


@dataclass(frozen=True)
class Draft:
    """What the host says of a batch; its tensors travel to the device in the types they are stored in.

    Attributes:
        num_valid: valid tokens of each window, int64 `[B]`, on the host.
        num_counting: tokens (or windows) that count in each window, int64 `[B]`, on the host.
        length: `num_valid` again, to travel.
        codes: as the corpus holds them, uint16 `[B, W, F]`, W the width of the windows.
        hidden: tokens `[B, W]` or codes `[B, W, F]` to hide, bool; None where nothing is.
        labels: int64 `[B, W]` or `[B]`; None where codes are predicted.
    """

    num_valid: NDArray[np.int64]
    num_counting: NDArray[np.int64]
    length: Tensor
    codes: Tensor
    hidden: Tensor | None = None
    labels: Tensor | None = None

    def to(self, device: torch.device) -> Draft:
        """The same with its tensors on `device`."""
        named = {name: getattr(self, name) for name in ("length", "codes", "hidden", "labels")}
        moved = {name: value.to(device, non_blocking=True) for name, value in named.items() if value is not None}
        return replace(self, **moved)


class MakeBatch(ABC):
    """Makes batches of one kind out of windows of `corpus`."""

    corpus: Corpus

    def __call__(
        self, windows: Windows, step: int | None, first_window: int = 0, batch_size: int | None = None
    ) -> Batch:
        """Make the batch of `windows`, on the host.

        Args:
            windows: the windows at hand: a block of the global batch, or all of it.
            step: whose random numbers are drawn; None makes a batch for validation, without random masks but those of
                step 0.
            first_window: place of the first of `windows` in the global batch.
            batch_size: windows in the global batch; by default it ends with `windows`.
        """
        return self.finish(self.draft(windows, step, first_window, batch_size))

    @abstractmethod
    def draft(self, windows: Windows, step: int | None, first_window: int = 0, batch_size: int | None = None) -> Draft:
        """Draw and gather what the batch of `windows` needs, on the host."""

    @abstractmethod
    def finish(self, draft: Draft) -> Batch:
        """Make the batch where the tensors of `draft` are."""

    def gathered(self, windows: Windows) -> Tensor:
        """Codes of `windows`, uint16 `[B, W, F]`."""
        codes = self.corpus.codes
        return torch.from_numpy(gather_windows(codes, windows.first, windows.length, windows.width))


def valid_tokens(length: Tensor, num_tokens: int) -> Tensor:
    """Which of `num_tokens` are before the `length` `[B]` of their window; bool `[B, T]`."""
    return torch.arange(num_tokens, device=length.device) < length[:, None]


@dataclass(frozen=True)
class MaskedBatches(MakeBatch):
    """Hides spans of tokens, all facets of each, behind the mask codes; the hidden ones are the targets."""

    corpus: Corpus
    mask_codes: NDArray[np.int64]
    share: float
    longest: int
    seed: int

    def draft(self, windows: Windows, step: int | None, first_window: int = 0, batch_size: int | None = None) -> Draft:
        """Gather the codes and choose what to hide."""
        hidden = hide_spans(
            windows.length,
            windows.width,
            self.share,
            self.longest,
            (self.seed, step or 0, MASK_STREAM),
            first_window,
            batch_size,
        )
        return Draft(
            windows.length,
            hidden.sum(axis=1),
            torch.from_numpy(windows.length),
            self.gathered(windows),
            torch.from_numpy(hidden),
        )

    def finish(self, draft: Draft) -> Batch:
        """Hide what was chosen."""
        assert draft.hidden is not None
        target = draft.codes.to(torch.int64)
        masks = torch.from_numpy(self.mask_codes).to(target.device)
        codes = torch.where(draft.hidden[..., None], masks, target)
        valid = valid_tokens(draft.length, codes.shape[1])
        return Batch(codes, target, draft.hidden, valid, draft.num_valid, draft.num_counting)


def hide_spans(
    length: NDArray[np.int64],
    width: int,
    share: float,
    longest: int,
    random: tuple[int, int, int],
    first_window: int = 0,
    batch_size: int | None = None,
) -> NDArray[np.bool_]:
    """Choose about `share` of the valid tokens, in runs of 1 to `longest`; at least one in each window; `[B, width]`.

    Args:
        length: valid tokens of each window, `[B]`.
        width: tokens of a window.
        share: of the tokens to hide.
        longest: tokens of the longest run.
        random: seed, step and stream to draw from.
        first_window: place of the first window in the global batch.
        batch_size: windows in the global batch; by default it ends with these.
    """
    num_windows = len(length)
    of = first_window + num_windows if batch_size is None else batch_size
    first, num = first_window * width, num_windows * width
    # the stream holds, for the whole batch: a number a token, a number a window, half a number a token
    begins = (uniform(draws(*random, first, num)) < share / ((longest + 1) / 2)).reshape(num_windows, width)
    sure = uniform(draws(*random, of * width + first_window, num_windows))
    begins[np.arange(num_windows), np.floor(sure * length).astype(int)] = True
    halves = draws(*random, of * (width + 1) + first // 2, num // 2 + 1).view(np.uint32)[first % 2 :][:num]
    run = (halves.astype(np.uint64) * np.uint64(longest) >> np.uint64(32)).reshape(num_windows, width)
    hidden = np.zeros((num_windows, width), np.bool_)
    for back in range(min(longest, width)):
        reaches = begins & (run >= back)
        hidden[:, back:] |= reaches[:, : width - back]
    return hidden & (np.arange(width) < length[:, None])


@dataclass(frozen=True)
class CausalBatches(MakeBatch):
    """Predicts each token from those before it; T is one less than the width of the windows."""

    corpus: Corpus

    def draft(self, windows: Windows, step: int | None, first_window: int = 0, batch_size: int | None = None) -> Draft:
        """Gather the codes."""
        num_valid = np.minimum(windows.length, windows.width - 1)
        return Draft(num_valid, windows.length - 1, torch.from_numpy(windows.length), self.gathered(windows))

    def finish(self, draft: Draft) -> Batch:
        """Put inputs and targets one token apart."""
        codes = draft.codes.to(torch.int64)
        valid = valid_tokens(draft.length, codes.shape[1])
        return Batch(codes[:, :-1], codes[:, 1:], valid[:, 1:], valid[:, :-1], draft.num_valid, draft.num_counting)


@dataclass(frozen=True)
class LabelBatches(MakeBatch):
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

    def draft(self, windows: Windows, step: int | None, first_window: int = 0, batch_size: int | None = None) -> Draft:
        """Gather codes and labels, and choose what to hide."""
        of_tokens = gather_windows(self.labels, windows.first, windows.length, windows.width)
        of_tokens[~windows.valid] = IGNORE
        labels = majority(of_tokens) if self.pooled else of_tokens
        num_counting = (labels != IGNORE).reshape(len(windows), -1).sum(axis=1)
        hidden = None
        if step is not None and self.facet_dropout:
            shape = (len(windows), windows.width, self.corpus.codes.shape[1])
            first = first_window * shape[1] * shape[2]
            drawn = uniform(draws(self.seed, step, DROP_STREAM, first, int(np.prod(shape))))
            hidden = torch.from_numpy((drawn < self.facet_dropout).reshape(shape))
        length, codes = torch.from_numpy(windows.length), self.gathered(windows)
        return Draft(windows.length, num_counting, length, codes, hidden, torch.from_numpy(labels))

    def finish(self, draft: Draft) -> Batch:
        """Hide what was chosen."""
        assert draft.labels is not None
        codes = draft.codes.to(torch.int64)
        if draft.hidden is not None:
            codes = torch.where(draft.hidden, torch.from_numpy(self.mask_codes).to(codes.device), codes)
        valid = valid_tokens(draft.length, codes.shape[1])
        return Batch(codes, draft.labels, draft.labels != IGNORE, valid, draft.num_valid, draft.num_counting)


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
