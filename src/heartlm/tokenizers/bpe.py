"""The BPE tokenizer: each frequent run of amplitude levels is one token.

    one lead ─► levels at 100 Hz (the sample tokenizer) ─► cut at every second ─► longest runs with a code ─► tokens

The runs with a code are learnt by byte-pair merges on the training split (`merges`). Encoding does not replay the
merges: at each position it takes the longest run that has a code. Encoding is therefore a single deterministic pass in
linear time. It looks ahead by at most the longest run, 0.32 s, so a stream can be tokenised. Every single level has a
code, so all signals can be encoded.

No run crosses a whole second, where the sample tokenizer's running amplitude changes. Therefore each token has one
scale, and a stream divided at whole seconds gets the same tokens as the whole recording.
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
"""Number of levels between two boundaries that no run crosses."""
LONGEST_RUN = 32
"""Maximum number of levels in a run."""
MOST_CODES = 8192
"""Maximum number of codes. Learning counts every pair of codes, with 4 bytes per pair."""

SHAPE_POINTS = 8

FIT_LEVELS = 4_000_000
"""Approximate number of levels to learn from, in equal parts from all leads."""
FIT_SECONDS_PER_LEAD = 3600
"""Maximum duration in seconds taken from one lead, so that memory does not grow with the length of recordings."""


@dataclass(frozen=True)
class Runs:
    """The run of each code.

    Attributes:
        symbols: symbols of each run, one byte per symbol. All runs differ. The single symbols come first, in order, so
            that every sequence can be encoded.
        num_symbols: size of the alphabet.
    """

    symbols: tuple[bytes, ...]
    num_symbols: int

    @cached_property
    def trie(self) -> Trie:
        """Trie that finds the runs."""
        return Trie.of(self.symbols, self.num_symbols)

    @cached_property
    def length(self) -> NDArray[np.int64]:
        """Number of symbols in each run, int64 `[num_codes]`."""
        return np.fromiter(map(len, self.symbols), np.int64)

    def encode(self, symbols: NDArray[np.uint16], every: int) -> NDArray[np.uint16]:
        """Encode `symbols` `[num_symbols]` as the longest runs that do not cross a multiple of `every`."""
        return encode_runs(symbols, self.trie, every)

    def decode(self, codes: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Return the concatenated symbols of `codes` `[num_tokens]`."""
        text = b"".join([self.symbols[code] for code in codes.tolist()])
        return np.frombuffer(text, np.uint8).astype(np.uint16)


@dataclass
class BPETokenizer(Tokenizer):
    """Byte-pair runs of the sample tokenizer's levels, each at most 0.32 s long.

    Decoding returns exactly the encoded levels. The error is at most half a step of the sample tokenizer, 1.2 % of the
    running peak-to-peak amplitude, except where the signal is clipped to the outermost levels.

    The position of a token is the first sample of its run. The token is final when no longer run is possible, at most
    0.32 s later.

    Attributes:
        num_codes: number of runs with a code, including the 128 single levels. After fitting on little data it may be
            lower than requested, because a run must occur twice.
        runs: run of each code.
    """

    kind: ClassVar[str] = "bpe"
    needs_beats: ClassVar[bool] = False

    num_codes: int = 1024
    runs: Runs | None = None

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            HeartlmError: a size is invalid. The message names the field.
        """
        if not NUM_LEVELS <= self.num_codes <= MOST_CODES:
            raise HeartlmError(f"num_codes: {self.num_codes} found, {NUM_LEVELS} to {MOST_CODES} expected")

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The single facet, with one code per run."""
        return (Facet("bpe", self.num_codes),)

    def fit(self, leads: Iterable[Lead], seed: int = 0) -> None:
        """Learn the runs on about `FIT_LEVELS` levels, with one stretch from a random second of each lead.

        Raises:
            HeartlmError: there is no data to learn from.
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

        A beat's class is assigned to the token whose first sample is nearest to the R peak. If several beats have the
        same nearest token, the first one is used.
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
        """Decode the baseline-free waveform at 100 Hz in millivolts; float32 `[num_levels]`."""
        scale = np.broadcast_to(np.asarray(scale_mv, np.float32), len(codes))
        return dequantize(self.decode_levels(codes)) * np.repeat(scale, self._fitted().length[codes[:, 0]])

    def decode_levels(self, codes: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Return the sample tokenizer's codes for `codes` `[num_tokens, 1]`; uint16 `[num_levels]`."""
        return self._fitted().decode(codes[:, 0])

    def geometry(self) -> list[Floats]:
        """Return shape, mean, slope and length of each run; `[num_codes, 27]`."""
        amplitudes = (dequantize(np.frombuffer(run, np.uint8)) / LIMIT for run in self._fitted().symbols)
        return [np.stack([run_coordinates(run, LONGEST_RUN) for run in amplitudes])]

    def settings(self) -> dict[str, Any]:
        """Return the number of codes."""
        return {"num_codes": self.num_codes}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the concatenated levels of all runs, and the length of each run."""
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
    """Return the levels of a lead, or of a stretch from a random second of a long lead; `[num_levels]`."""
    levels = SampleTokenizer().encode(lead).codes[:, 0]
    begin = int(generator.integers(max(len(levels) // SECOND - FIT_SECONDS_PER_LEAD, 0) + 1)) * SECOND
    return levels[begin : begin + FIT_SECONDS_PER_LEAD * SECOND].copy()


def run_coordinates(run: Floats, longest: int) -> Floats:
    """Return the coordinates of a run: its mean, waves of the mean, shape around the mean, slope and length.

    The waves are sines and cosines, slow to fast. The shape is sampled at 8 points from the first symbol to the last.
    Shape and slope are scaled so that they resolve differences as small as the fastest wave does.

    Args:
        run: amplitudes of the run, from −1 to 1, `[length]`.
        longest: maximum length of a run.

    Returns:
        float32 `[27]`; similar runs have similar coordinates.
    """
    mean, slope = run.mean(), (run[-1] - run[0]) / max(len(run) - 1, 1)
    shape = np.interp(np.linspace(0, len(run) - 1, SHAPE_POINTS), np.arange(len(run)), run) - mean
    length = np.log(len(run)) / np.log(longest)
    parts = waves_of(np.array([mean]))[0], NUM_WAVES * shape, [NUM_WAVES * slope], [length]
    return np.concatenate(parts).astype(np.float32)
