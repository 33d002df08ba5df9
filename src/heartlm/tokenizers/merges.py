"""Learn byte-pair runs: repeatedly replace the most frequent pair of neighbours by a new symbol.

    symbols, a break between stretches ─► counts of every pair ─► merge the most frequent ─► counts that changed ─► …

Pairs are counted once. Each merge then updates the counts around the replaced positions. Ties are resolved by the
smallest left symbol, then by the smallest right symbol, so the result is deterministic. Overlapping pairs all count:
x x x contains two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.bpe import BREAK, merge_pair

Symbols = NDArray[np.uint16]

FORBIDDEN = -(1 << 30)
"""Where the count of a pair that would become too long starts: too low ever to be taken."""


def with_breaks(stretches: Sequence[Symbols], every: int) -> Symbols:
    """Lay `stretches` one behind the other, a break after every `every` symbols of each and between them."""
    parts = []
    for stretch in stretches:
        padded = np.full((-(-len(stretch) // every), every), BREAK, np.uint16)
        padded.ravel()[: len(stretch)] = stretch
        parts.append(np.pad(padded, ((0, 0), (0, 1)), constant_values=BREAK).ravel())
    return np.concatenate([*parts, np.empty(0, np.uint16)])


def learn_runs(symbols: Symbols, *, num_symbols: int, num_codes: int, longest: int) -> list[bytes]:
    """Learn which runs get a code of their own.

    All are different: while no merge crosses the ends of a run, what stands between them is merged in one order alone.
    Memory: 4 bytes for each pair of codes.

    Args:
        symbols: symbols below `num_symbols`, or `BREAK`; overwritten.
        num_symbols: size of the alphabet, at most 256.
        num_codes: requested number of runs, including the single symbols.
        longest: maximum number of symbols in a run, at least 2.

    Returns:
        The run of each code, the single symbols first; fewer than `num_codes` where no pair is left that occurs twice.
    """
    runs = [bytes([symbol]) for symbol in range(num_symbols)]
    pairs = _PairCounts.of(symbols, num_symbols, num_codes)
    while len(runs) < num_codes and (pair := pairs.most_frequent()) is not None:
        merged = len(runs)
        runs.append(runs[pair[0]] + runs[pair[1]])
        pairs.allow(merged, len(runs[merged]), longest)
        symbols, before, after = merge_pair(symbols, *pair, merged)
        pairs.replaced(*pair, merged, before, after)
    return runs


@dataclass
class _PairCounts:
    """How often each pair of neighbours occurs now.

    Attributes:
        count: int32 `[num_codes, num_codes]`, left by right.
        highest: largest of each row, int32 `[num_codes]`.
        length: symbols of each code's run, 0 for a code that is not in use yet; int64 `[num_codes]`.
    """

    count: NDArray[np.int32]
    highest: NDArray[np.int32]
    length: NDArray[np.int64]

    @classmethod
    def of(cls, symbols: Symbols, num_symbols: int, num_codes: int) -> _PairCounts:
        """Count the pairs of `symbols`."""
        left, right = symbols[:-1], symbols[1:]
        inside = (left != BREAK) & (right != BREAK)
        pair = left[inside].astype(np.int64) * num_symbols + right[inside]
        count = np.zeros((num_codes, num_codes), np.int32)
        counted = np.bincount(pair, minlength=num_symbols**2).reshape(num_symbols, num_symbols)
        count[:num_symbols, :num_symbols] = counted
        return cls(count, count.max(axis=1), (np.arange(num_codes) < num_symbols).astype(np.int64))

    def allow(self, code: int, length: int, longest: int) -> None:
        """Take a new code into use, and forbid its pairs with those that would make too long a run with it."""
        self.length[code] = length
        too_long = np.flatnonzero(self.length * (self.length + length > longest))
        self.count[code, too_long] = FORBIDDEN
        self.count[too_long, code] = FORBIDDEN

    def most_frequent(self) -> tuple[int, int] | None:
        """The most frequent pair, of equals that with the smallest left, then right; None where none occurs twice."""
        left = int(self.highest.argmax())
        return (left, int(self.count[left].argmax())) if self.highest[left] >= 2 else None

    def replaced(self, left: int, right: int, merged: int, before: Symbols, after: Symbols) -> None:
        """Correct the counts after `merge_pair` replaced `left` and `right` between `before` and `after`."""
        before_count, after_count = (
            np.bincount(around[around != BREAK], minlength=len(self.count)).astype(np.int32)
            for around in (before, after)
        )
        self.count[:, left] -= before_count
        self.count[:, merged] += before_count
        self.count[right] -= after_count
        self.count[merged] += after_count
        self.count[left, right] -= len(before)
        changed = np.union1d(np.flatnonzero(before_count), [left, right, merged])
        self.highest[changed] = self.count[changed].max(axis=1)
