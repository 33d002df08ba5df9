"""Random numbers by their place in a stream, and what is chosen by them, without drawing what comes before.

A stream is a Philox generator started at (seed, step), one for each use of the same step; its draws are numbered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel


@unique
class Use(IntEnum):
    """All uses of random numbers, so that no two of one run and step draw the same; the numbers are part of results."""

    WINDOWS = 0
    MASK = 1
    HIDDEN_FACETS = 2
    DROPOUT = 3
    EPOCH_ORDER = 4
    HIDDEN_WAVEFORMS = 5
    WAVEFORM_WINDOWS = 6
    WINDOW_WIDTH = 7
    STATEMENT_WINDOWS = 8
    PARTITION = 11
    ASKED = 12
    SLOW = 13
    LOST = 14
    CLIENT_BATCH = 15
    CLIENT_SEED = 16


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
    use: Use = Use.WINDOWS


def draws(stream: Stream, first: int, num: int) -> NDArray[np.uint64]:
    """Draws `first` to `first + num`; uint64 `[num]`."""
    out = np.empty(num, np.uint64)
    kernel("draws")(stream.seed, stream.use, stream.step, first, num, out)
    return out


def uniform(drawn: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Draws as numbers from 0 to below 1, those that `Generator.random` makes of them."""
    return np.asarray(np.multiply(drawn >> np.uint64(11), 2.0**-53, dtype=np.float64))


def draws_below(share: float, stream: Stream, first: int, num: int) -> NDArray[np.bool_]:
    """Which of draws `first` to `first + num`, as numbers from 0 to 1, are below `share`; bool `[num]`."""
    out = np.empty(num, np.bool_)
    kernel("draws_below")(stream.seed, stream.use, stream.step, first, num, share, out)
    return out


def hide_spans(
    share: float,
    longest: int,
    stream: Stream,
    length: NDArray[np.int64],
    width: int,
    first_window: int = 0,
    batch_size: int | None = None,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Choose tokens to hide in windows of a batch: at least one in each, none of the padding.

    Args:
        share: of the tokens to hide, about.
        longest: tokens of the longest run, at least 1; all lengths from 1 on are as likely.
        stream: to draw from; it holds the whole batch: a draw a token (where runs begin), a draw a window (the token
            that is hidden for sure), half a draw a token (lengths).
        length: valid tokens of each window at hand, 1 to `width`, int64 `[B]`.
        width: tokens of a window.
        first_window: place of the first window at hand in the batch.
        batch_size: windows in the batch; by default it ends with those at hand.

    Returns:
        Which are hidden, bool `[B, width]`; how many in each window, int64 `[B]`.
    """
    global_batch = first_window + len(length) if batch_size is None else batch_size
    hidden, num_hidden = np.empty((len(length), width), np.bool_), np.empty(len(length), np.int64)
    stream_position = stream.seed, stream.use, stream.step, first_window, global_batch
    begin = share / ((longest + 1) / 2)  # the probability that a run begins at a token
    kernel("hide_spans")(*stream_position, length, len(length), width, begin, longest, hidden, num_hidden)
    return hidden, num_hidden


def permute(place: NDArray[np.int64], size: int, key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where each place goes in the permutation of 0 … size − 1 that its key names; int64 `[N]`.

    Nothing is kept of the size of the permutation, so it may be of billions.

    Args:
        place: int64 `[N]`, 0 to below `size`.
        size: of the permutation.
        key: uint64 `[N]`, or `[1]` for all.
    """
    assert len(key) in (1, len(place))
    assert not len(place) or (place.min() >= 0 and place.max() < size), "walks from outside never end"
    out = np.empty(len(place), np.int64)
    kernel("permute")(place, len(place), size, key, int(len(key) > 1), out)
    return out


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter bits: the finaliser of SplitMix64 (Steele 2014), a bijection of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
