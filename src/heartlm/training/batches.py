"""Batches from windows: inputs, targets and the mask of counted tokens, a pure function of seed and step.

    windows ─► draft (host: codes, what is hidden, labels) ─► device ─► batch (inputs, targets)

Shapes: B windows, W their width, T tokens of a window that the model sees, F facets.

Random numbers are drawn for the local windows only, at their position in the stream of the global batch. So the result
does not depend on the number of ranks.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.windows import Windows
from heartlm.kernels.draws import Stream, Use, draws, draws_below, hide_spans
from heartlm.kernels.gather import gather_codes, gather_windows
from heartlm.labels.tokens import IGNORE

if TYPE_CHECKING:
    from heartlm.training.resident import ResidentCodes


CodesForm = Literal["int64", "stored", "windows"]
"""Form of `HostBatch.codes`: for a CPU, as in the corpus, or the places of the windows of resident codes."""


@dataclass(frozen=True)
class Batch:
    """Inputs and targets of one step.

    Attributes:
        codes: inputs, int64 `[B, T, F]`.
        target: codes to predict, int64 `[B, T, F]`, or labels, int64 `[B, T]` (or `[B]` for windows), −1 to ignore.
        counts: tokens (or windows) that count in the loss, bool, shape of the target without facets.
        valid: tokens inside the recording, bool `[B, T]`.
        num_valid: number of valid tokens in each window, int64 `[B]`, on the host.
        num_counting: number of counted tokens (or windows) in each window, int64 `[B]`, on the host.
        chosen: places of the tokens to predict in the flattened `[B × T]`, ascending, int64 `[N]`; −1 at the end
            fills up a static shape and is ignored. None predicts all tokens.
        keys: dropout keys, see `HeartModel.hidden`; None without dropout.
        is_rare: whether the shape is so rare that it is not worth compiling.
    """

    codes: Tensor
    target: Tensor
    counts: Tensor
    valid: Tensor
    num_valid: NDArray[np.int64]
    num_counting: NDArray[np.int64]
    chosen: Tensor | None = None
    keys: Tensor | None = None
    is_rare: bool = False

    @property
    def num_counted(self) -> int:
        """Number of tokens (or windows) that normalises the loss; no synchronisation with the device."""
        return int(self.num_counting.sum())

    @property
    def num_tokens(self) -> int:
        """Number of valid tokens; no synchronisation with the device."""
        return int(self.num_valid.sum())

    @property
    def all_valid(self) -> bool:
        """Whether the batch has no padding, so that attention needs no mask."""
        return self.num_tokens == self.valid.numel()

    def to(self, device: torch.device) -> Batch:
        """Return the batch on `device`."""
        tensors: dict[str, Any] = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **tensors)


@dataclass(frozen=True)
class BatchPosition:
    """Position of windows in the data order, which determines their random numbers.

    Attributes:
        step: step number; None for validation, which uses the masks of step 0.
        first_window: index of the first window in the global batch; in validation, in all its windows.
        batch_size: windows in the global batch, or in the validation.
    """

    step: int | None
    first_window: int
    batch_size: int

    def stream(self, seed: int, use: Use) -> Stream:
        """Return the random stream of the step."""
        return Stream(seed, self.step or 0, use)


@dataclass(frozen=True)
class HostBatch:
    """The parts of a batch, computed on the host and then copied to the device, where `MakeBatch.finish` joins them.

    Attributes:
        codes: codes of the windows, `[B, W, F]`: int64, or uint16 as in the corpus, which copies faster to a GPU; or
            first token and number of valid tokens of each window, int64 `[B, 2]`, if the codes are on the GPU.
        valid: tokens inside the recording, bool `[B, W]`.
        num_valid: number of valid input tokens of each window, int64 `[B]`.
        num_counting: number of counted tokens (or windows) in each window, int64 `[B]`.
        hidden: tokens `[B, W]` or codes `[B, W, F]` to hide, bool; None to hide nothing.
        labels: labels, int64 `[B, W]` or `[B]`; None if codes are predicted.
        chosen: see `Batch.chosen`.
        keys: see `Batch.keys`.
        is_rare: see `Batch.is_rare`.
    """

    codes: Tensor
    valid: Tensor
    num_valid: NDArray[np.int64]
    num_counting: NDArray[np.int64]
    hidden: Tensor | None = None
    labels: Tensor | None = None
    chosen: Tensor | None = None
    keys: Tensor | None = None
    is_rare: bool = False

    def parts(self, num: int) -> list[HostBatch]:
        """Split into `num` equal micro-batches, in order, as views; before `chosen`, `keys`, `is_rare` are set."""
        if num == 1:
            return [self]

        def part(x: Any, index: int) -> Any:
            return x if x is None or x is False else x[index * len(x) // num : (index + 1) * len(x) // num]

        return [HostBatch(**{name: part(x, index) for name, x in vars(self).items()}) for index in range(num)]

    def with_codes(self, resident: ResidentCodes | None) -> HostBatch:
        """Return the batch with codes as int64, on its device: the given ones, or those of `resident` windows."""
        codes = self.codes.to(torch.int64) if resident is None else resident.gather(self.codes)
        return replace(self, codes=codes)


class MakeBatch(ABC):
    """Base class of builders of batches from windows of `corpus`.

    Attributes:
        can_be_resident: whether the device can gather the codes itself.
    """

    corpus: Corpus
    can_be_resident: ClassVar[bool] = True

    def __call__(
        self, windows: Windows, step: int | None, first_window: int = 0, batch_size: int | None = None
    ) -> Batch:
        """Make the batch of `windows`, on the host.

        Args:
            windows: windows of the global batch, or of a part of it.
            step: step number for the random numbers; None for validation, which uses the masks of step 0.
            first_window: index of the first of `windows` in the global batch.
            batch_size: windows in the global batch; by default it ends with `windows`.
        """
        global_batch = first_window + len(windows) if batch_size is None else batch_size
        return self.finish(self.choose(self.draft(windows, BatchPosition(step, first_window, global_batch))))

    def choose(self, draft: HostBatch, is_static: bool = False) -> HostBatch:
        """Set `chosen` of a micro-batch; with `is_static`, to a length that does not depend on what was drawn."""
        return draft

    @abstractmethod
    def draft(self, windows: Windows, position: BatchPosition, form: CodesForm = "int64") -> HostBatch:
        """Compute the host part of the batch of `windows`, with its codes in this form."""

    @abstractmethod
    def finish(self, draft: HostBatch) -> Batch:
        """Build the batch on the device of `draft`, in which codes are int64."""

    def inputs(self, windows: Windows, form: CodesForm) -> tuple[Tensor, Tensor]:
        """Return `HostBatch.codes` of `windows` in this form, and which tokens are valid `[B, W]`."""
        if form == "windows":
            codes = np.stack([windows.first, windows.length], axis=1)
        else:
            gather = gather_windows if form == "stored" else gather_codes
            codes = gather(self.corpus.codes, windows.first, windows.length, windows.width)
        is_whole = windows.length.min() == windows.width
        valid = _all_valid(len(windows), windows.width) if is_whole else torch.from_numpy(windows.valid)
        return torch.from_numpy(codes), valid


@functools.cache
def _all_valid(num_windows: int, width: int) -> Tensor:
    """Return a mask without padding, which is never changed; most batches have this one."""
    return torch.ones((num_windows, width), dtype=torch.bool)


@dataclass(frozen=True)
class MaskedBatches(MakeBatch):
    """Replaces all facets of spans of tokens by the mask codes; the hidden tokens are the targets."""

    corpus: Corpus
    mask_codes: NDArray[np.int64]
    share: float
    longest: int
    seed: int

    def draft(self, windows: Windows, position: BatchPosition, form: CodesForm = "int64") -> HostBatch:
        """Choose the spans to hide."""
        stream = position.stream(self.seed, Use.MASK)
        in_batch = position.first_window, position.batch_size
        hidden, num_hidden = hide_spans(self.share, self.longest, stream, windows.length, windows.width, *in_batch)
        return HostBatch(*self.inputs(windows, form), windows.length, num_hidden, torch.from_numpy(hidden))

    def choose(self, draft: HostBatch, is_static: bool = False) -> HostBatch:
        """Choose the hidden tokens; a static choice is filled up to a bound, unless more are hidden, which is rare."""
        assert draft.hidden is not None
        chosen, is_rare = np.flatnonzero(draft.hidden.numpy()), False
        if is_static:
            num_windows, width = draft.hidden.shape
            bound = most_hidden(self.share, self.longest, num_windows, width)
            is_rare = len(chosen) > bound
            chosen = chosen if is_rare else _filled(chosen, bound)
        return replace(draft, chosen=torch.from_numpy(chosen), is_rare=is_rare)

    def finish(self, draft: HostBatch) -> Batch:
        """Replace the hidden tokens by the mask codes."""
        codes, hidden = draft.codes, draft.hidden
        assert hidden is not None
        masked = torch.where(hidden[..., None], _on_device(tuple(self.mask_codes.tolist()), codes.device), codes)
        return _batch(draft, masked, codes, hidden, draft.valid)


def most_hidden(share: float, longest: int, num_windows: int, width: int) -> int:
    """Return a bound of the tokens that `hide_spans` hides in a batch: the mean and four standard deviations.

    A token is shown if no span that begins at it or before it reaches it. Besides, one span begins in each window for
    sure. Tokens of a span are hidden together, so the variance is at most `longest` times that of single tokens.
    """
    begin = share / ((longest + 1) / 2)
    shown = math.prod(1 - begin * (longest - before) / longest for before in range(longest))
    hidden = 1 - shown + shown * (longest + 1) / 2 / width
    num_tokens = num_windows * width
    bound = num_tokens * hidden + 4 * math.sqrt(num_tokens * hidden * max(0.0, 1 - hidden) * longest)
    return min(num_tokens, -(-math.ceil(bound) // 8) * 8)


def _filled(chosen: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return `place` filled up with −1 to `size`."""
    return np.concatenate([chosen, np.full(size - len(chosen), IGNORE, np.int64)])


def _batch(draft: HostBatch, codes: Tensor, target: Tensor, counts: Tensor, valid: Tensor) -> Batch:
    counted = draft.num_valid, draft.num_counting
    return Batch(codes, target, counts, valid, *counted, draft.chosen, draft.keys, draft.is_rare)


@functools.cache
def _on_device(mask_codes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the mask codes on the device, cached, since a copy in each step would synchronise."""
    return torch.tensor(mask_codes, device=device)


@dataclass(frozen=True)
class CausalBatches(MakeBatch):
    """Batches for predicting each token from the tokens before it; T is the width of the windows minus one."""

    corpus: Corpus

    def draft(self, windows: Windows, position: BatchPosition, form: CodesForm = "int64") -> HostBatch:
        """Count the tokens; nothing is random."""
        num_valid = np.minimum(windows.length, windows.width - 1)
        return HostBatch(*self.inputs(windows, form), num_valid, windows.length - 1)

    def choose(self, draft: HostBatch, is_static: bool = False) -> HostBatch:
        """Choose the tokens that have a next one, unless all have; a static choice has the places of all tokens."""
        counts = draft.valid[:, 1:].numpy()
        if draft.num_counting.min() == counts.shape[1]:
            return draft
        chosen = np.flatnonzero(counts)
        return replace(draft, chosen=torch.from_numpy(_filled(chosen, counts.size) if is_static else chosen))

    def finish(self, draft: HostBatch) -> Batch:
        """Shift the targets by one token."""
        codes, valid = draft.codes, draft.valid
        return _batch(draft, codes[:, :-1], codes[:, 1:], valid[:, 1:], valid[:, :-1])


@dataclass(frozen=True)
class LabelBatches(MakeBatch):
    """Batches with a label for every token or every window; in training some codes are hidden.

    Attributes:
        labels: label of every token of the corpus, int64 `[num_tokens]`, −1 to ignore; see `LabelLoss`.
        pooled: whether to label windows, by the majority of their labelled tokens.
        facet_dropout: fraction of codes hidden in training.
        seed: seed of the hidden codes and of the widths.
        shortest: smallest width of the equal parts into which each training step splits its windows. The width is
            drawn from the width of the windows, its half, its quarter and so on. None does not split.
        num_kept: number of leading facets that are never hidden, since the head also reads them.
        waveform_dropout: fraction of windows whose shape and deviation codes are all hidden in training.
    """

    corpus: Corpus
    labels: NDArray[np.int64]
    mask_codes: NDArray[np.int64]
    pooled: bool
    facet_dropout: float
    seed: int
    shortest: int | None = None
    num_kept: int = 0
    waveform_dropout: float = 0.0

    def draft(self, windows: Windows, position: BatchPosition, form: CodesForm = "int64") -> HostBatch:
        """Gather the labels, and draw the hidden codes and the width."""
        token_labels = gather_windows(self.labels, windows.first, windows.length, windows.width)
        token_labels[~windows.valid] = IGNORE
        width = windows.width
        if self.shortest is not None and position.step is not None:
            widths = part_widths(width, self.shortest)
            width = widths[int(draws(position.stream(self.seed, Use.WINDOW_WIDTH), 0, 1)[0]) % len(widths)]
        token_labels = token_labels.reshape(-1, width)
        labels = majority(token_labels) if self.pooled else token_labels
        num_counting = (labels != IGNORE).reshape(len(token_labels), -1).sum(axis=1)
        hides = position.step is not None and (self.facet_dropout or self.waveform_dropout)
        hidden = torch.from_numpy(self._dropped(windows, position)) if hides else None
        codes, valid = self.inputs(windows, form)
        part_valid = valid.view(-1, width)
        part_valid[:, 0] = True  # a part may be all padding, and attention to no token at all is not a number
        num_valid = part_valid.numpy().sum(axis=1)
        return HostBatch(codes, valid, num_valid, num_counting, hidden, torch.from_numpy(labels))

    def _dropped(self, windows: Windows, position: BatchPosition) -> NDArray[np.bool_]:
        shape = len(windows), windows.width, self.corpus.codes.shape[1]
        first = position.first_window * shape[1] * shape[2]
        stream = position.stream(self.seed, Use.HIDDEN_FACETS)
        hidden = draws_below(self.facet_dropout, stream, first, int(np.prod(shape))).reshape(shape)
        if self.waveform_dropout:
            stream = position.stream(self.seed, Use.HIDDEN_WAVEFORMS)
            bare = draws_below(self.waveform_dropout, stream, position.first_window, len(windows))
            hidden |= bare[:, None, None] & self._of_waveform
        hidden[..., : self.num_kept] = False
        return hidden

    @functools.cached_property
    def _of_waveform(self) -> NDArray[np.bool_]:
        names = [facet["name"] for facet in self.corpus.manifest["tokenizer"]["facets"]]
        return np.array([name.startswith(("shape_", "deviation_")) for name in names])

    def finish(self, draft: HostBatch) -> Batch:
        """Replace the hidden codes by the mask codes."""
        codes, labels, num_windows = draft.codes, draft.labels, len(draft.num_valid)
        assert labels is not None
        if draft.hidden is not None:
            codes = torch.where(draft.hidden, _on_device(tuple(self.mask_codes.tolist()), codes.device), codes)
        codes, valid = codes.view(num_windows, -1, codes.shape[2]), draft.valid.reshape(num_windows, -1)
        return _batch(draft, codes, labels, labels != IGNORE, valid)


class LabelledWindows(MakeBatch):
    """Base class of batches with labels of whole windows, `[B]` or `[B, num_labels]`, augmented in training."""

    can_be_resident = False  # the codes of augmented windows are made on the host

    def finish(self, draft: HostBatch) -> Batch:
        """Count the windows with a known label."""
        labels = draft.labels
        assert labels is not None
        counts = (labels != IGNORE).reshape(len(labels), -1).any(dim=1)
        return _batch(draft, draft.codes, labels, counts, draft.valid)


def part_widths(widest: int, shortest: int) -> list[int]:
    """Return the possible widths of equal parts of a window: `widest`, its half and so on, not below `shortest`."""
    widths = [widest]
    while widths[-1] % 2 == 0 and widths[-1] // 2 >= shortest:
        widths.append(widths[-1] // 2)
    return widths


def majority(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the most frequent label ≥ 0 of each row of `[B, T]`, the lowest in a tie; −1 for a row without labels."""
    present = np.unique(np.append(labels[labels != IGNORE], 0))
    counts = np.stack([(labels == label).sum(axis=1) for label in present], axis=1)
    return np.where(counts.any(axis=1), present[counts.argmax(axis=1)], IGNORE).astype(np.int64)
