"""Byte-pair encoding: the two loops over symbols, replacing a pair while learning and the longest match when encoding.

Both are exact in whole numbers, so all variants agree to the last code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel

Symbols = NDArray[np.uint16]

BREAK = 0xFFFF
"""No symbol: what stands before the first and behind the last, and between stretches that must not be joined."""


def merge_pair(symbols: Symbols, left: int, right: int, merged: int) -> tuple[Symbols, Symbols, Symbols]:
    """Replace each `left` followed by `right`, from the first on; of overlapping ones every other.

    Args:
        symbols: `[num_symbols]`, overwritten.
        left: a symbol, not `BREAK`.
        right: the symbol behind it, not `BREAK`.
        merged: what replaces the two.

    Returns:
        The symbols left, which lie where the old ones did, and for each replaced pair what then stands before it and
        what stood behind it before anything further was replaced, `BREAK` at the ends.
    """
    before, after = np.empty((2, len(symbols) // 2), np.uint16)
    found = kernel("bpe_merge_pair")(symbols, len(symbols), left, right, merged, before, after)
    return symbols[: len(symbols) - found], before[:found], after[:found]


@dataclass(frozen=True)
class Trie:
    """All runs of symbols that have a code, as a walk from symbol to symbol.

    A run's node is numbered like its code; nodes of beginnings that have no code of their own come behind them.

    Attributes:
        next: the node behind each node by the symbol that follows, 0 where there is none; int32
            `[num_nodes, num_symbols]`.
        num_codes: how many nodes are codes.
    """

    next: NDArray[np.int32]
    num_codes: int

    @classmethod
    def of(cls, runs: Sequence[bytes], num_symbols: int) -> Trie:
        """The trie of `runs`, all different, the single symbols in their order first."""
        nodes = {run: code for code, run in enumerate(runs)}
        for run in runs:
            for stop in range(2, len(run)):
                nodes.setdefault(run[:stop], len(nodes))
        following = np.zeros((len(nodes), num_symbols), np.int32)
        for run, node in nodes.items():
            if len(run) > 1:
                following[nodes[run[:-1]], run[-1]] = node
        return cls(following, len(runs))


def encode_runs(symbols: Symbols, trie: Trie, every: int) -> Symbols:
    """Cut `symbols` into the longest runs that have a code, from the first on, none across a multiple of `every`.

    Args:
        symbols: `[num_symbols]`, each below the trie's number of symbols.
        trie: of the runs.
        every: a run ends where a multiple of it is reached.

    Returns:
        The codes, `[num_runs]`.
    """
    assert every > 0 and (not len(symbols) or int(symbols.max()) < trie.next.shape[1]), "a symbol without a code"
    codes = np.empty(len(symbols), np.uint16)
    num_runs = kernel("bpe_encode")(symbols, len(symbols), every, trie.next, trie.next.shape[1], trie.num_codes, codes)
    return codes[:num_runs]
