"""Which windows a step sees: a pure function of the seed and the step.

Shapes: B windows in the global batch, T tokens a window, R rows of the corpus, F facets.

A counter-based generator (Philox) is started at (seed, step), so step s needs no memory of the steps before it: a run
resumes anywhere. It is also started anywhere within a step, so a rank draws its own windows of the global batch and no
others. With n ranks and a micro-batches each, the global batch is n × a equal blocks of windows side by side;
micro-batch j of rank r is block r × a + j, so 1 × 4, 2 × 2 and 4 × 1 of them compute on the very same blocks.

No window crosses a recording; one shorter than the window fills its end with padding, marked invalid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.schema import RecordTable
from heartlm.errors import HeartlmError


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
        return Windows(self.first[part], self.length[part], self.width)

    def __len__(self) -> int:
        return len(self.first)


def generator(seed: int, step: int, stream: int = 0) -> np.random.Generator:
    """The random numbers of one step; `stream` keeps different uses of the same step apart."""
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, 0, step]))


def draws(seed: int, step: int, stream: int, first: int, num: int) -> NDArray[np.uint64]:
    """Draws `first` to `first + num` of `generator(seed, step, stream)`, those before it skipped; uint64 `[num]`."""
    blocks, skipped = divmod(first, 4)
    drawn = np.random.Philox(key=[seed, stream], counter=[blocks, 0, 0, step]).random_raw(skipped + num)
    later: NDArray[np.uint64] = drawn[skipped:]
    return later


def uniform(drawn: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Draws as numbers from 0 to below 1, the ones `Generator.random` makes of them."""
    between: NDArray[np.float64] = np.multiply(drawn >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return between


@dataclass(frozen=True)
class WindowSampler:
    """Draws the windows of any step.

    Attributes:
        first: first token of each row drawn from, int64 `[R]`.
        num_tokens: tokens of each, int64 `[R]`, none of them 0.
        probability: of drawing from each, float64 `[R]`, summing to one.
        width: T.
        batch_size: B.
        seed: of the order.
    """

    first: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    probability: NDArray[np.float64]
    width: int
    batch_size: int
    seed: int

    @cached_property
    def _reach(self) -> NDArray[np.float64]:
        return np.cumsum(self.probability)

    def windows(self, step: int, first_window: int = 0, num_windows: int | None = None) -> Windows:
        """The global batch of `step`, or `num_windows` of it: rows by probability, positions uniform within a row."""
        num = self.batch_size - first_window if num_windows is None else num_windows
        chosen, placed = (
            uniform(draws(self.seed, step, 0, begin + first_window, num)) for begin in (0, self.batch_size)
        )
        row = np.minimum(np.searchsorted(self._reach, chosen, side="right"), len(self.first) - 1)
        room = np.maximum(self.num_tokens[row] - self.width, 0)
        start = np.floor(placed * (room + 1)).astype(np.int64)
        return Windows(self.first[row] + start, np.minimum(self.num_tokens[row], self.width), self.width)


def sampler(
    records: RecordTable,
    rows: NDArray[np.int64],
    *,
    width: int,
    batch_size: int,
    seed: int,
    weights: Mapping[str, float] | None = None,
) -> WindowSampler:
    """Build the sampler over `rows`: each database by its weight (default: its tokens), rows by their tokens.

    Raises:
        HeartlmError: there is nothing to draw from, a weight is impossible or names a database that is not there.
    """
    if len(rows) == 0:
        raise HeartlmError("the split to train on holds no tokens: look at the splits in the corpus manifest")
    probability = records.num_tokens[rows].astype(np.float64)
    if weights:
        databases = records.database[rows]
        unknown = sorted(set(weights) - set(databases.tolist()))
        if unknown:
            raise HeartlmError(f"weights: no database {unknown[0]!r} to draw from; there are {_names(databases)}")
        if min(weights.values()) < 0 or not 0 < sum(weights.values()) < np.inf:
            raise HeartlmError(f"weights: {dict(weights)} found, none below 0 and at least one above expected")
        for name in np.unique(databases):
            inside = databases == name
            probability[inside] *= weights.get(str(name), 0.0) / probability[inside].sum()
    return WindowSampler(
        records.first_token[rows], records.num_tokens[rows], probability / probability.sum(), width, batch_size, seed
    )


def covering_windows(first: int, num_tokens: int, width: int, stride: int) -> Windows:
    """Windows that cover a recording from its first to its last token, `stride` apart, the last one flush."""
    starts: Sequence[int] = range(0, max(num_tokens - width, 0) + stride, stride)
    start = np.unique(np.minimum(np.array(starts, np.int64), max(num_tokens - width, 0)))
    return Windows(first + start, np.full(len(start), min(num_tokens, width), np.int64), width)


def _names(values: NDArray[np.str_]) -> str:
    return ", ".join(np.unique(values).tolist())
