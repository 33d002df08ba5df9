"""Random numbers by their place in a stream, and what is chosen by them, without drawing what comes before.

A stream is a Philox generator started at (seed, step), one for each use of the same step; its draws are numbered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel


@dataclass(frozen=True)
class Stream:
    """Where draws are taken from.

    Attributes:
        seed: of the run, 0 to 2**63 - 1.
        step: of the run.
        use: keeps different uses of the same step apart.
    """

    seed: int
    step: int
    use: int = 0


def draws(stream: Stream, first: int, num: int) -> NDArray[np.uint64]:
    """Draws `first` to `first + num`; uint64 `[num]`."""
    out = np.empty(num, np.uint64)
    kernel("draws")(stream.seed, stream.use, stream.step, first, num, out)
    return out


def uniform(drawn: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Draws as numbers from 0 to below 1, those that `Generator.random` makes of them."""
    between: NDArray[np.float64] = np.multiply(drawn >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return between


def draws_below(share: float, stream: Stream, first: int, num: int) -> NDArray[np.bool_]:
    """Which of draws `first` to `first + num`, as numbers from 0 to 1, are below `share`; bool `[num]`."""
    out = np.empty(num, np.bool_)
    kernel("draws_below")(stream.seed, stream.use, stream.step, first, num, share, out)
    return out


@dataclass(frozen=True)
class HiddenSpans:
    """Runs of tokens to hide.

    Attributes:
        share: of the tokens to hide, about.
        longest: tokens of the longest run, at least 1; all lengths from 1 on are as likely.
    """

    share: float
    longest: int

    @property
    def begin(self) -> float:
        """Probability that a run begins at a token."""
        return self.share / ((self.longest + 1) / 2)


def hide_spans(
    spans: HiddenSpans,
    stream: Stream,
    length: NDArray[np.int64],
    width: int,
    first_window: int = 0,
    batch_size: int | None = None,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Choose tokens to hide in windows of a batch: at least one in each, none of the padding.

    Args:
        spans: how much, in which runs.
        stream: to draw from; it holds the whole batch: a draw a token (where runs begin), a draw a window (the token
            that is hidden for sure), half a draw a token (lengths).
        length: valid tokens of each window at hand, 1 to `width`, int64 `[B]`.
        width: tokens of a window.
        first_window: place of the first window at hand in the batch.
        batch_size: windows in the batch; by default it ends with those at hand.

    Returns:
        Which are hidden, bool `[B, width]`; how many in each window, int64 `[B]`.
    """
    of = first_window + len(length) if batch_size is None else batch_size
    hidden, num_hidden = np.empty((len(length), width), np.bool_), np.empty(len(length), np.int64)
    place = stream.seed, stream.use, stream.step, first_window, of
    kernel("hide_spans")(*place, length, len(length), width, spans.begin, spans.longest, hidden, num_hidden)
    return hidden, num_hidden


@dataclass(frozen=True)
class Rows:
    """Rows of tokens to draw windows from.

    Attributes:
        first: first token of each, int64 `[R]`.
        num_tokens: tokens of each, int64 `[R]`, none of them 0.
        reach: sum of the probabilities up to and with each, float64 `[R]`.
    """

    first: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    reach: NDArray[np.float64]


def draw_windows(
    rows: Rows, width: int, stream: Stream, first_window: int, num_windows: int, batch_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw windows of a batch: rows by their probability, positions uniform within a row.

    Args:
        rows: to draw from.
        width: tokens of a window.
        stream: to draw from; it holds a draw a window for the row, then one for the position.
        first_window: place of the first window at hand in the batch.
        num_windows: at hand.
        batch_size: windows in the batch.

    Returns:
        First token and valid tokens of each window, int64 `[num_windows]`.
    """
    first, length = np.empty(num_windows, np.int64), np.empty(num_windows, np.int64)
    place = stream.seed, stream.use, stream.step, first_window, batch_size, num_windows
    kernel("draw_windows")(*place, rows.reach, rows.first, rows.num_tokens, len(rows.first), width, first, length)
    return first, length
