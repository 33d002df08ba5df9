"""Windows of a step as a pure function of the seed and the step.

Shapes: B windows in the global batch, T tokens per window, R rows of the corpus, F facets.

A counter-based generator (Philox) starts at (seed, step), so step s does not depend on earlier steps and a run can
resume at any step. The generator can also start at any position within a step, so a rank draws only its own windows of
the global batch. With n ranks and a micro-batches each, the global batch consists of n × a equal consecutive blocks of
windows. Micro-batch j of rank r is block r × a + j, so layouts 1 × 4, 2 × 2 and 4 × 1 compute on the same blocks.

No window crosses the end of a recording. A window of a shorter recording is padded at its end; the padding is marked
invalid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.rows import RecordTable
from heartlm.errors import HeartlmError
from heartlm.kernels.draws import Stream, Use, draws, mix, permute
from heartlm.kernels.library import kernel


@dataclass(frozen=True)
class Windows:
    """Windows of one width.

    Attributes:
        first: first token of each window, int64 `[B]`.
        length: number of valid tokens in each window, int64 `[B]`.
        width: number of tokens T per window.
    """

    first: NDArray[np.int64]
    length: NDArray[np.int64]
    width: int

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Mask of the tokens inside the recording; `[B, T]`."""
        inside: NDArray[np.bool_] = np.arange(self.width) < self.length[:, None]
        return inside

    @property
    def index(self) -> NDArray[np.int64]:
        """Index of every token in the corpus; padding repeats the last valid token; int64 `[B, T]`."""
        offset = np.minimum(np.arange(self.width), self.length[:, None] - 1)
        index: NDArray[np.int64] = self.first[:, None] + offset
        return index

    def __getitem__(self, part: slice) -> Windows:
        # Kernels read these arrays by address, so a strided selection must be copied to be contiguous.
        return Windows(np.ascontiguousarray(self.first[part]), np.ascontiguousarray(self.length[part]), self.width)

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class WindowSampler(ABC):
    """Base class of the samplers, which return the windows of a step.

    Attributes:
        first: first token of each row, int64 `[R]`.
        num_tokens: number of tokens of each row, int64 `[R]`, none of them 0.
        width: number of tokens T per window.
        batch_size: number of windows B in the global batch.
        seed: random seed of the order.
    """

    first: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    width: int
    batch_size: int
    seed: int

    def windows(self, step: int, first_window: int = 0, num_windows: int | None = None) -> Windows:
        """Return the global batch of `step`, or `num_windows` of it starting at `first_window`."""
        num = self.batch_size - first_window if num_windows is None else num_windows
        return Windows(*self._drawn(step, first_window, num), self.width)

    @abstractmethod
    def _drawn(self, step: int, first_window: int, num_windows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first token and the number of valid tokens of each window."""


@dataclass(frozen=True)
class RandomSampler(WindowSampler):
    """Draw windows with replacement: rows by their probability, positions uniformly within a row.

    The stream of a step holds a draw for the row of each window of the batch, then one for the position of each.

    Attributes:
        probability: probability of each row, float64 `[R]`, with sum one.
    """

    probability: NDArray[np.float64]

    @cached_property
    def _reach(self) -> NDArray[np.float64]:
        """Cumulative probability of the rows, `[R]`."""
        return np.cumsum(self.probability)

    def _drawn(self, step: int, first_window: int, num_windows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        first, length = np.empty(num_windows, np.int64), np.empty(num_windows, np.int64)
        stream_position = self.seed, 0, step, first_window, self.batch_size, num_windows
        rows = self._reach, self.first, self.num_tokens, len(self.first)
        kernel("draw_windows")(*stream_position, *rows, self.width, first, length)
        return first, length


@dataclass(frozen=True)
class EpochSampler(WindowSampler):
    """Divide every row into consecutive windows, the last one shorter, and return each window once per epoch.

    The order is a pure function of the seed and the epoch, without stored state. A step may span two epochs: no window
    is omitted or repeated.

        place in the epoch ─► columns ─► permuted ─► rotated ─► window number, row by row
    """

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Cumulative number of windows up to and including each row, `[R]`."""
        return np.cumsum(-(-self.num_tokens // self.width))

    @property
    def num_windows(self) -> int:
        """Number of windows in an epoch."""
        return int(self._ends[-1])

    def _drawn(self, step: int, first_window: int, num_windows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.numbered(self._numbers(step, first_window, num_windows))

    def numbered(self, number: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return first token and number of valid tokens of windows by their number, 0 to `num_windows`, row by row."""
        row = np.searchsorted(self._ends, number, side="right")
        # `where` discards the last end, which the index −1 of the first row reads.
        start = (number - np.where(row > 0, self._ends[row - 1], 0)) * self.width
        return self.first[row] + start, np.minimum(self.num_tokens[row] - start, self.width)

    def _numbers(self, step: int, first_window: int, num_windows: int) -> NDArray[np.int64]:
        first = step * self.batch_size + first_window
        epoch, position = np.divmod(np.arange(first, first + num_windows), self.num_windows)
        row, column = np.divmod(position, self.batch_size)
        # places are laid out column by column; the first `longer` columns have one more place
        height, longer = divmod(self.num_windows, self.batch_size)
        position = column * height + np.minimum(column, longer) + row
        for each in np.unique(epoch):
            inside = epoch == each
            rotation, _, key = draws(Stream(self.seed, int(each), Use.EPOCH_ORDER), 0, 3)
            shuffled = permute(position[inside], self.num_windows, mix(np.array([key])))
            position[inside] = (shuffled + int(rotation) % self.num_windows) % self.num_windows
        return position


def sampler(
    records: RecordTable,
    rows: NDArray[np.int64],
    *,
    width: int,
    batch_size: int,
    seed: int,
    weights: Mapping[str, float] | None = None,
    order: str = "random",
) -> WindowSampler:
    """Return a sampler over `rows`.

    Args:
        records: all rows of the corpus.
        rows: indices of the rows to draw from, ascending.
        width: number of tokens per window.
        batch_size: number of windows in the global batch.
        seed: random seed of the order.
        weights: fraction of windows from each database, by default proportional to its tokens. Within a database, rows
            are drawn in proportion to their tokens. Only for the random order.
        order: `random` draws windows at any position, with replacement; `epochs` returns consecutive windows, each once
            per epoch.

    Raises:
        HeartlmError: there are no tokens to draw from, or a weight is invalid or names an unknown database.
    """
    if len(rows) == 0:
        raise HeartlmError("the split to train on holds no tokens: look at the splits in the corpus manifest")
    shared = records.first_token[rows], records.num_tokens[rows], width, batch_size, seed
    if order == "random":
        return RandomSampler(*shared, _probability(records, rows, weights or {}))
    if weights:
        raise HeartlmError(f"weights: {dict(weights)} found, none expected with order {order!r}: use order 'random'")
    return EpochSampler(*shared)


def _probability(records: RecordTable, rows: NDArray[np.int64], weights: Mapping[str, float]) -> NDArray[np.float64]:
    probability = records.num_tokens[rows].astype(np.float64)
    if weights:
        databases = records.database[rows]
        unknown = sorted(set(weights) - set(databases.tolist()))
        if unknown:
            known = ", ".join(np.unique(databases).tolist())
            raise HeartlmError(f"weights: no database {unknown[0]!r} to draw from; there are {known}")
        if min(weights.values()) < 0 or not 0 < sum(weights.values()) < np.inf:
            raise HeartlmError(f"weights: {dict(weights)} found, none below 0 and at least one above expected")
        for name in np.unique(databases):
            inside = databases == name
            probability[inside] *= weights.get(str(name), 0.0) / probability[inside].sum()
    shares: NDArray[np.float64] = probability / probability.sum()
    return shares


def covering_windows(first: int, num_tokens: int, width: int, stride: int) -> Windows:
    """Return windows at intervals of `stride` that cover a recording; the last window ends at the last token."""
    starts: Sequence[int] = range(0, max(num_tokens - width, 0) + stride, stride)
    start = np.unique(np.minimum(np.array(starts, np.int64), max(num_tokens - width, 0)))
    return Windows(first + start, np.full(len(start), min(num_tokens, width), np.int64), width)
