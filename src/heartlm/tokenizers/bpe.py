"""The BPE tokenizer: runs of amplitude levels that come again and again, one token each.

    one lead ─► levels at 100 Hz (the sample tokenizer) ─► cut at every second ─► longest runs with a code ─► tokens

Which runs have a code is learnt by byte-pair merges on the training split (`merges`). Encoding does not replay the
merges: from each place it takes the longest run that has a code. That is one pass without choices, linear and the same
everywhere; it looks ahead by no more than the longest run, 0.32 s, so a stream can be tokenised; and what no longer run
says is said by single levels, which all have a code.

No run crosses a whole second, where the sample tokenizer's running amplitude changes. So each token has one scale, and
a stream cut at whole seconds gives the tokens of the whole recording.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.beats import UNLABELLED
from heartlm.errors import HeartlmError
from heartlm.kernels.amplitude import GRID_HZ, LIMIT, NUM_LEVELS
from heartlm.kernels.bpe import Trie, encode_runs
from heartlm.tokenizers.base import Facet, Lead, Tokenizer, Tokens
from heartlm.tokenizers.merges import learn_runs, with_breaks
from heartlm.tokenizers.rr import NUM_WAVES, waves_of
from heartlm.tokenizers.sample import SampleTokenizer, dequantize

Floats = NDArray[np.float32]

SECOND = int(GRID_HZ)
"""Levels between two places that no run crosses."""
LONGEST_RUN = 32
"""Levels of the longest run that can be learnt."""
MOST_CODES = 8192
"""Learning counts every pair of codes, which takes 4 bytes each."""

SHAPE_POINTS = 8

FIT_LEVELS = 4_000_000
"""About this number of levels, an equal share from every lead that has them, is learnt from."""
FIT_SECONDS_PER_LEAD = 3600
"""At most so long a stretch of one lead, so that memory does not grow with the length of recordings."""


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


@dataclass
class BPETokenizer(Tokenizer):
    """Byte-pair runs of the sample tokenizer's levels, none longer than 0.32 s.

    Decoding gives exactly the levels that were encoded: off by at most half a step of the sample tokenizer, 1.2 % of
    the running peak-to-peak amplitude, except where the signal lies beyond its outermost levels and is clipped to them.

    A token stands at the first sample of its run. It is known when the run and all that could have made it longer is
    over: at most 0.32 s later.

    Attributes:
        num_codes: how many runs have a code, the 128 single levels included; after fitting on little data fewer than
            asked for, since a run has to occur twice.
        runs: the run of each code.
    """

    kind: ClassVar[str] = "bpe"
    needs_beats: ClassVar[bool] = False

    num_codes: int = 1024
    runs: Runs | None = None

    def __post_init__(self) -> None:
        """Refuse impossible sizes.

        Raises:
            HeartlmError: the text names the field.
        """
        if not NUM_LEVELS <= self.num_codes <= MOST_CODES:
            raise HeartlmError(f"num_codes: {self.num_codes} found, {NUM_LEVELS} to {MOST_CODES} expected")

    @property
    def facets(self) -> tuple[Facet, ...]:
        """One facet of all runs."""
        return (Facet("bpe", self.num_codes),)

    def fit(self, leads: Iterable[Lead], seed: int = 0) -> None:
        """Learn the runs, each lead giving at most its equal share of `FIT_LEVELS`, one stretch from a random second.

        Raises:
            HeartlmError: there is nothing to learn from.
        """
        generator = np.random.Generator(np.random.Philox(seed))
        stretches = [_stretch(lead, generator) for lead in leads]
        if not sum(map(len, stretches)):
            raise HeartlmError("the training split has no samples to fit the bpe tokenizer on")
        share = -(-FIT_LEVELS // (len(stretches) * SECOND)) * SECOND
        levels = with_breaks([stretch[:share] for stretch in stretches], SECOND)
        runs = learn_runs(levels, num_symbols=NUM_LEVELS, num_codes=self.num_codes, longest=LONGEST_RUN)
        self.runs, self.num_codes = Runs(tuple(runs), NUM_LEVELS), len(runs)

    def encode(self, lead: Lead) -> Tokens:
        """Encode all samples of one lead.

        A token carries the class of the beat whose R peak is nearer to its first sample than to any other token's; of
        several such beats, the first one's.
        """
        runs, beats = self._fitted(), lead.annotations
        levels = SampleTokenizer().encode(lead)
        codes = runs.encode(levels.codes[:, 0], SECOND)
        length = runs.length[codes]
        first = np.cumsum(length) - length
        sample = levels.sample[first]
        inside = beats.sample < len(lead.signal_mv)
        nearest = np.searchsorted((sample[1:] + sample[:-1]) / 2, beats.sample[inside])
        beat_class = np.full(len(codes), UNLABELLED, np.int8)
        beat_class[nearest[::-1]] = beats.beat_classes()[inside][::-1]
        return Tokens(codes[:, None], sample, beat_class, beats.rhythm_at(sample), levels.scale_mv[first])

    def decode(self, codes: NDArray[np.uint16], scale_mv: float | Floats = 1.0) -> Floats:
        """Baseline-free waveform at 100 Hz in millivolts, one run behind the other; float32 `[num_levels]`."""
        scale = np.broadcast_to(np.asarray(scale_mv, np.float32), len(codes))
        return dequantize(self.decode_levels(codes)) * np.repeat(scale, self._fitted().length[codes[:, 0]])

    def decode_levels(self, codes: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """The sample tokenizer's codes for `codes` `[num_tokens, 1]`; uint16 `[num_levels]`."""
        return self._fitted().decode(codes[:, 0])

    def single_levels(self, tokens: Tokens, rate_hz: float, num_samples: int) -> Tokens:
        """Take runs of a recording apart into tokens of the sample tokenizer, each at its own sample."""
        length = self._fitted().length[tokens.codes[:, 0]]
        since = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        sample = np.repeat(tokens.sample, length) + np.round(since * rate_hz / GRID_HZ).astype(np.int64)
        return Tokens(
            codes=self.decode_levels(tokens.codes)[:, None],
            sample=np.minimum(sample, num_samples - 1),
            beat_class=np.repeat(tokens.beat_class, length),
            rhythm=np.repeat(tokens.rhythm, length),
            scale_mv=np.repeat(tokens.scale_mv, length),
        )

    def geometry(self) -> list[Floats]:
        """Shape, mean, slope and length of each run; `[num_codes, 27]`."""
        amplitudes = (dequantize(np.frombuffer(run, np.uint8)) / LIMIT for run in self._fitted().symbols)
        return [np.stack([run_coordinates(run, LONGEST_RUN) for run in amplitudes])]

    def settings(self) -> dict[str, Any]:
        """How many runs have a code."""
        return {"num_codes": self.num_codes}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The levels of all runs, one behind the other, and how long each is."""
        runs = self._fitted()
        return {
            "runs.level": np.frombuffer(b"".join(runs.symbols), np.uint8),
            "runs.length": runs.length.astype(np.uint8),
        }

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> BPETokenizer:
        """Rebuild the tokenizer."""
        stops = np.cumsum(arrays["runs.length"], dtype=np.int64)
        runs = tuple(level.tobytes() for level in np.split(arrays["runs.level"], stops[:-1]))
        return cls(**settings, runs=Runs(runs, NUM_LEVELS))

    def _fitted(self) -> Runs:
        if self.runs is None:
            raise HeartlmError("the bpe tokenizer has no runs yet: fit it first")
        return self.runs


def _stretch(lead: Lead, generator: np.random.Generator) -> NDArray[np.uint16]:
    """Levels of a lead, of a long one a stretch that begins at a random second; `[num_levels]`."""
    levels = SampleTokenizer().encode(lead).codes[:, 0]
    begin = int(generator.integers(max(len(levels) // SECOND - FIT_SECONDS_PER_LEAD, 0) + 1)) * SECOND
    return levels[begin : begin + FIT_SECONDS_PER_LEAD * SECOND].copy()


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
    shape = np.interp(np.linspace(0, len(run) - 1, SHAPE_POINTS), np.arange(len(run)), run) - mean
    length = np.log(len(run)) / np.log(longest)
    parts = waves_of(np.array([mean]))[0], NUM_WAVES * shape, [NUM_WAVES * slope], [length]
    return np.concatenate(parts).astype(np.float32)
