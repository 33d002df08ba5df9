"""Runs of symbols that have a code: from symbols to codes and back, and where a run lies among the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.bpe import Trie, encode_runs

Floats = NDArray[np.float32]

SHAPE_POINTS = 8
NUM_WAVES = 8


@dataclass(frozen=True)
class Runs:
    """The run of each code.

    Attributes:
        symbols: the symbols of each, a byte a symbol; all different, the single symbols in their order first, so that
            everything can be said.
        num_symbols: of the alphabet.
    """

    symbols: tuple[bytes, ...]
    num_symbols: int

    @cached_property
    def trie(self) -> Trie:
        """The walk that finds them."""
        return Trie.of(self.symbols, self.num_symbols)

    @cached_property
    def length(self) -> NDArray[np.int64]:
        """How many symbols each has, int64 `[num_codes]`."""
        return np.fromiter(map(len, self.symbols), np.int64)

    def encode(self, symbols: NDArray[np.uint16], every: int) -> NDArray[np.uint16]:
        """Codes of `symbols` `[num_symbols]`, each the longest that fits, none across a multiple of `every`."""
        return encode_runs(symbols, self.trie, every)

    def decode(self, codes: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """The symbols of `codes` `[num_tokens]`, one run behind the other."""
        text = b"".join([self.symbols[code] for code in codes.tolist()])
        return np.frombuffer(text, np.uint8).astype(np.uint16)


def run_coordinates(run: Floats, longest: int) -> Floats:
    """Where a run lies: its mean and waves of that, its shape around the mean, its slope and its length.

    The waves are sines and cosines, slow to fast. The shape is taken at 8 places from the first symbol to the last;
    shape and slope are enlarged until they tell as small differences apart as the fastest wave.

    Args:
        run: its amplitudes, from −1 to 1, `[length]`.
        longest: length of the longest run there can be.

    Returns:
        float32 `[27]`; runs that look alike lie near each other.
    """
    mean, slope = run.mean(), (run[-1] - run[0]) / max(len(run) - 1, 1)
    angle = mean * np.arange(1, NUM_WAVES + 1) * np.pi / 2
    shape = np.interp(np.linspace(0, len(run) - 1, SHAPE_POINTS), np.arange(len(run)), run) - mean
    length = np.log(len(run)) / np.log(longest)
    parts = [mean], np.sin(angle), np.cos(angle), NUM_WAVES * shape, [NUM_WAVES * slope], [length]
    return np.concatenate(parts).astype(np.float32)
