"""Which windows a step sees: a pure function of the seed and the step.

Shapes: B windows in the global batch, T tokens a window, R rows of the corpus, F facets.

A counter-based generator (Philox) is started at (seed, step), so step s needs no memory of the steps before it: a run
resumes anywhere. It is also started anywhere within a step, so a rank draws its own windows of the global batch and no
others. With n ranks and a micro-batches each, the global batch is n × a equal blocks of windows side by side;
micro-batch j of rank r is block r × a + j, so 1 × 4, 2 × 2 and 4 × 1 of them compute on the very same blocks.

No window crosses a recording; one shorter than the window fills its end with padding, marked invalid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.order import EpochOrder
from heartlm.corpus.schema import RecordTable
from heartlm.errors import HeartlmError
from heartlm.kernels.draws import Rows, Stream, draw_windows

BLOCK_BYTES = 8 << 20
"""Bytes of a block of the order `blocks`: enough for any disk to read at its full rate."""


@dataclass(frozen=True)
class Windows:
    """Windows of one width.

    Attributes:
        first: first token of each, int64 `[B]`.
        length: how many of its tokens are valid, int64 `[B]`.
        width: T.
    """

    first: NDArray[np.int64]
    length: NDArray[np.int64]
    width: int

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Which tokens are inside the recording; `[B, T]`."""
        inside: NDArray[np.bool_] = np.arange(self.width) < self.length[:, None]
        return inside

    @property
    def index(self) -> NDArray[np.int64]:
        """Index of every token in the corpus, padding repeating the last valid one; int64 `[B, T]`."""
        offset = np.minimum(np.arange(self.width), self.length[:, None] - 1)
        index: NDArray[np.int64] = self.first[:, None] + offset
        return index

    def __getitem__(self, part: slice) -> Windows:
        # Kernels read these arrays, so every other window must lie as close as every window does.
        return Windows(np.ascontiguousarray(self.first[part]), np.ascontiguousarray(self.length[part]), self.width)

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class WindowSampler(ABC):
    """Says which windows a step sees.

    Attributes:
        first: first token of each row drawn from, int64 `[R]`.
        num_tokens: tokens of each, int64 `[R]`, none of them 0.
        width: T.
        batch_size: B.
        seed: of the order.
    """

    first: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    width: int
    batch_size: int
    seed: int

    def windows(self, step: int, first_window: int = 0, num_windows: int | None = None) -> Windows:
        """The global batch of `step`, or `num_windows` of it from `first_window` on."""
        num = self.batch_size - first_window if num_windows is None else num_windows
        return Windows(*self._drawn(step, first_window, num), self.width)

    @abstractmethod
    def _drawn(self, step: int, first_window: int, num_windows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First token of each window, and its valid tokens."""

    def buffer_at(self, step: int) -> int:
        """Number of the buffer that `step` begins in, see `reads`."""
        return 0

    def reads(self, buffer: int, first_window: int, num_windows: int) -> list[slice]:
        """Tokens that a part of every global batch reads from `buffer`; empty where nothing is worth reading ahead."""
        return []


@dataclass(frozen=True)
class RandomSampler(WindowSampler):
    """Draws windows with replacement: rows by their probability, positions uniform within a row.

    Attributes:
        probability: of drawing from each row, float64 `[R]`, summing to one.
    """

    probability: NDArray[np.float64]

    @cached_property
    def _rows(self) -> Rows:
        return Rows(self.first, self.num_tokens, np.cumsum(self.probability))

    def _drawn(self, step: int, first_window: int, num_windows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        stream = Stream(self.seed, step)
        return draw_windows(self._rows, self.width, stream, first_window, num_windows, self.batch_size)


@dataclass(frozen=True)
class EpochSampler(WindowSampler):
    """Cuts every row into windows side by side, the last one shorter, and gives each once in every epoch.

    Attributes:
        block: windows of a block, which is read from disk as one; None shuffles all windows as one.
    """

    block: int | None = None

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """How many windows there are up to and with each row, `[R]`."""
        return np.cumsum(-(-self.num_tokens // self.width))

    @cached_property
    def order(self) -> EpochOrder:
        """The order of the windows, numbered row by row."""
        num_windows = int(self._ends[-1])
        return EpochOrder(num_windows, self.batch_size, self.seed, min(self.block or num_windows, num_windows))

    def _drawn(self, step: int, first_window: int, num_windows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self._placed(self.order.numbers(step, first_window, num_windows))

    def _placed(self, number: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        row = np.searchsorted(self._ends, number, side="right")
        start = (number - np.where(row > 0, self._ends[row - 1], 0)) * self.width
        return self.first[row] + start, np.minimum(self.num_tokens[row] - start, self.width)

    def buffer_at(self, step: int) -> int:
        """Number of the buffer that `step` begins in, see `reads`."""
        return self.order.buffer_at(step)

    def reads(self, buffer: int, first_window: int, num_windows: int) -> list[slice]:
        """Tokens that a part of every global batch reads from `buffer`, one slice a block, rows between included."""
        if self.block is None:
            return []
        parts = self.order.reads(buffer, first_window, num_windows)
        first, length = self._placed(np.array([(part[0], part[-1]) for part in parts]))
        return [slice(int(begin), int(stop)) for begin, stop in zip(first[:, 0], (first + length)[:, 1], strict=True)]


def sampler(
    records: RecordTable,
    rows: NDArray[np.int64],
    *,
    width: int,
    batch_size: int,
    seed: int,
    weights: Mapping[str, float] | None = None,
    order: str = "random",
    token_bytes: int = 2,
) -> WindowSampler:
    """Build the sampler over `rows`.

    Args:
        records: all rows of the corpus.
        rows: those to draw from, ascending.
        width: tokens of a window.
        batch_size: windows of the global batch.
        seed: of the order.
        weights: share of each database, by default its tokens; rows by their tokens. For the random order alone.
        order: `random` draws windows at any place, with replacement; `epochs` gives windows side by side, each once in
            every epoch; `blocks` does so too, reading a corpus larger than memory block by block.
        token_bytes: of the codes of one token.

    Raises:
        HeartlmError: there is nothing to draw from, a weight is impossible or names a database that is not there.
    """
    if len(rows) == 0:
        raise HeartlmError("the split to train on holds no tokens: look at the splits in the corpus manifest")
    parts = records.first_token[rows], records.num_tokens[rows], width, batch_size, seed
    if order == "random":
        return RandomSampler(*parts, _probability(records, rows, weights or {}))
    if weights:
        raise HeartlmError(f"weights: {dict(weights)} found, none expected with order {order!r}: use order 'random'")
    return EpochSampler(*parts, max(1, BLOCK_BYTES // (width * token_bytes)) if order == "blocks" else None)


def _probability(records: RecordTable, rows: NDArray[np.int64], weights: Mapping[str, float]) -> NDArray[np.float64]:
    probability = records.num_tokens[rows].astype(np.float64)
    if weights:
        databases = records.database[rows]
        unknown = sorted(set(weights) - set(databases.tolist()))
        if unknown:
            there = ", ".join(np.unique(databases).tolist())
            raise HeartlmError(f"weights: no database {unknown[0]!r} to draw from; there are {there}")
        if min(weights.values()) < 0 or not 0 < sum(weights.values()) < np.inf:
            raise HeartlmError(f"weights: {dict(weights)} found, none below 0 and at least one above expected")
        for name in np.unique(databases):
            inside = databases == name
            probability[inside] *= weights.get(str(name), 0.0) / probability[inside].sum()
    shares: NDArray[np.float64] = probability / probability.sum()
    return shares


def covering_windows(first: int, num_tokens: int, width: int, stride: int) -> Windows:
    """Windows that cover a recording from its first to its last token, `stride` apart, the last one flush."""
    starts: Sequence[int] = range(0, max(num_tokens - width, 0) + stride, stride)
    start = np.unique(np.minimum(np.array(starts, np.int64), max(num_tokens - width, 0)))
    return Windows(first + start, np.full(len(start), min(num_tokens, width), np.int64), width)
