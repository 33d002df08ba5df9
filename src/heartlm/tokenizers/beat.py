"""The beat tokenizer: each heartbeat is one token with several facets.

The waveform around the R peak is encoded as residual vector-quantisation codes, coarse to fine. Its deviation from the
surrounding beats is encoded in the same way, because a beat is ectopic relative to the patient's usual beats. The RR
intervals are quantised to levels, as are comparisons of rhythm, QRS complex, T wave and P wave with the rest of the
recording. Decoding sums the centroids of the waveform and places it by the RR interval.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.tokenizers import comparisons
from heartlm.tokenizers.base import Facet, Lead, Tokenizer, TokenizerSettings, Tokens
from heartlm.tokenizers.quantize import MOST_CODES, ResidualQuantizer, fit_quantizer
from heartlm.tokenizers.rr import (
    ALWAYS_CAUSAL,
    CAUSAL_SCALES,
    OFFLINE_SCALES,
    LogScale,
    ordinal_coordinates,
    rr_codes,
    rr_intervals_s,
)
from heartlm.tokenizers.waveform import BeatWaveforms, BeatWindow, beat_blocks, beat_waveforms, deviations

Floats = NDArray[np.float32]

FIT_BEATS = 60_000
"""Approximate number of beats that the codebooks are fitted on, in equal parts from all leads."""
FIT_BEATS_PER_LEAD = 4_000
"""Maximum number of beats from one lead, so that memory does not grow with the length of recordings."""

MOST_LEVELS = 64
"""Maximum number of levels of residual codes; each level is a facet that the model predicts."""


@dataclass(frozen=True)
class BeatSettings(TokenizerSettings):
    """Settings of a beat tokenizer.

    Attributes:
        causal: omit the next RR interval and compute all means and medians from the past only, so that a live stream
            gets the same tokens.
        num_levels: number of residual codes of the waveform.
        num_deviation_levels: number of residual codes of the deviation.
        num_codes: size of the codebook of each level.
    """

    causal: bool = False
    num_levels: int = 4
    num_deviation_levels: int = 2
    num_codes: int = 256

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        BeatTokenizer.of(self)


@dataclass
class BeatTokenizer(Tokenizer):
    """Residual codes of the waveform and of its deviation from the dominant beat, RR levels and comparisons.

    Attributes:
        num_levels: number of residual codes of the waveform.
        num_deviation_levels: number of residual codes of the deviation.
        num_codes: size of the codebook of each level.
        causal_only: whether to omit the next RR interval and compute all means and medians from the past only.
        compare: whether to add the facets of `heartlm.tokenizers.comparisons`.
        window: grid of times around the R peak.
    """

    kind = "beat"
    takes = BeatSettings

    num_levels: int = 4
    num_deviation_levels: int = 2
    num_codes: int = 256
    causal_only: bool = False
    compare: bool = True
    window: BeatWindow = field(default_factory=BeatWindow)
    quantizer: ResidualQuantizer | None = None
    deviation_quantizer: ResidualQuantizer | None = None
    decode_error: float | None = None

    def __post_init__(self) -> None:
        """Check the sizes, which may come from a file; every level is a facet with a name and an embedding.

        Raises:
            HeartlmError: the number of levels or codes is invalid.
        """
        limits = {
            "num_levels": (1, MOST_LEVELS),
            "num_deviation_levels": (0, MOST_LEVELS),
            "num_codes": (1, MOST_CODES),
        }
        for name, (low, high) in limits.items():
            if not low <= (value := getattr(self, name)) <= high:
                raise HeartlmError(f"{name}: {value} found, {low} to {high} expected")

    @classmethod
    def of(cls, settings: TokenizerSettings) -> BeatTokenizer:
        """Return a new tokenizer with `settings`, a `BeatSettings`."""
        given = dict(vars(settings))
        return cls(causal_only=given.pop("causal"), **given)

    @property
    def rr_scales(self) -> dict[str, LogScale]:
        """Levels of the RR facets in use, by name."""
        return CAUSAL_SCALES if self.causal_only else OFFLINE_SCALES

    @property
    def facets(self) -> tuple[Facet, ...]:
        """Facets `shape_0`, …, `deviation_0`, …, the RR facets and the comparisons."""
        shape = (Facet(f"shape_{level}", self.num_codes) for level in range(self.num_levels))
        deviation = (
            Facet(f"deviation_{level}", self.num_codes, self.causal_only) for level in range(self.num_deviation_levels)
        )
        intervals = (
            Facet(name, scale.size, self.causal_only or name in ALWAYS_CAUSAL) for name, scale in self.rr_scales.items()
        )
        compared = (
            Facet(name, comparisons.SCALES[name].size, self.causal_only or name in comparisons.ALONE)
            for name in self.comparisons
        )
        return (*shape, *deviation, *intervals, *compared)

    @property
    def comparisons(self) -> tuple[str, ...]:
        """Names of the comparisons in use."""
        if not self.compare:
            return ()
        return comparisons.CAUSAL if self.causal_only else comparisons.OFFLINE

    def waveforms(self, lead: Lead) -> BeatWaveforms:
        """Return the normalised waveform of every beat of `lead`."""
        return beat_waveforms(lead.signal_mv, lead.annotations.sample, lead.rate_hz, self.window)

    def fit(self, leads: Iterable[Lead], seed: int = 0) -> None:
        """Fit the codebooks by k-means on at most `FIT_BEATS` beats, in equal parts from all leads.

        Raises:
            HeartlmError: there are no beats to fit on.
        """
        generator = np.random.Generator(np.random.Philox(seed))
        parts = list[Floats]()
        for lead in leads:
            waves = self.waveforms(lead).shape
            both = np.stack([waves, deviations(waves, self.causal_only)], axis=1)
            parts.append(both[generator.permutation(len(both))[:FIT_BEATS_PER_LEAD]])
            # All leads keep equally many beats, fewer the more leads come; cut at twice too many, as it copies.
            share = -(-FIT_BEATS // len(parts))
            if sum(map(len, parts)) > 2 * FIT_BEATS:
                parts = [part[:share].copy() for part in parts]
        if not sum(map(len, parts)):
            raise HeartlmError("the training split has no beats to fit the beat tokenizer on")
        shape, deviation = np.concatenate([part[:share] for part in parts]).swapaxes(0, 1)
        self.quantizer = fit_quantizer(shape, self.num_levels, self.num_codes, seed)
        self.deviation_quantizer = fit_quantizer(deviation, self.num_deviation_levels, self.num_codes, seed + 1)
        self.decode_error = round(self.quantizer.relative_error(shape), 6)

    def encode(self, lead: Lead) -> Tokens:
        """Encode every beat of one lead."""
        beats, rate_hz = lead.annotations, lead.annotations.rate_hz
        shape, deviation = self._fitted()
        intervals = rr_codes(beats.sample, rate_hz, self.rr_scales, self.causal_only)
        codes = np.empty((beats.num_beats, len(self.facets)), np.uint16)
        scale_mv = np.empty(beats.num_beats, np.float32)
        rr_s = rr_intervals_s(beats.sample, rate_hz)
        rhythm = comparisons.rhythm_values(rr_s, self.causal_only) if self.compare else {}
        for block in beat_blocks(lead.signal_mv, beats.sample, rate_hz, self.window, self.causal_only):
            scale_mv[block.beats] = block.scale_mv
            parts = [shape.encode(block.shape), deviation.encode(block.deviation), intervals[block.beats]]
            if self.compare:
                values = {name: value[block.beats] for name, value in rhythm.items()}
                compared = comparisons.block_values(block, rr_s, self.window.times_s, self.causal_only)
                parts.append(comparisons.codes_of(values | compared, self.comparisons))
            codes[block.beats] = np.concatenate(parts, axis=1)
        return Tokens(codes, beats.sample, beats.beat_classes(), beats.rhythm_at(beats.sample), scale_mv)

    def decode(self, codes: NDArray[np.uint16], scale_mv: float | Floats = 1.0) -> Floats:
        """Decode the baseline-free waveform of each beat on the window's grid, in mV; `[num_tokens, num_points]`."""
        scale = np.broadcast_to(np.asarray(scale_mv, np.float32), len(codes))
        waveform: Floats = self._fitted()[0].decode(codes[:, : self.num_levels]) * scale[:, None]
        return waveform

    def decode_comparisons(self, codes: NDArray[np.uint16]) -> Floats:
        """Decode the comparisons, float32 `[num_tokens, len(comparisons)]`, NaN where unknown."""
        begin = len(self.facets) - len(self.comparisons)
        values = [
            comparisons.SCALES[name].decode(codes[:, begin + facet]) for facet, name in enumerate(self.comparisons)
        ]
        return np.stack(values, axis=1) if values else np.empty((len(codes), 0), np.float32)

    def geometry(self) -> list[Floats]:
        """Return the centroids of each codebook in units of its first level's spread, then the other facets' levels."""
        coordinates: list[Floats] = []
        for quantizer in self._fitted():
            weighted = quantizer.codebooks * quantizer.weight
            if len(weighted):
                coordinates += list(weighted / max(float(weighted[0].std()), 1e-6))
        return coordinates + [ordinal_coordinates(facet.size) for facet in self.facets[len(coordinates) :]]

    def settings(self) -> dict[str, Any]:
        """Return the sizes, the window and the decoding error."""
        names = "num_levels", "num_deviation_levels", "num_codes", "causal_only", "compare"
        own = {name: getattr(self, name) for name in names}
        # "emphasis" once weighted the points of a waveform; it stays, so that hashes stay
        return own | {"emphasis": 0.0, "window": asdict(self.window), "decode_error": self.decode_error}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the codebooks and grid-point weights of the waveform and of its deviation."""
        return {
            f"{name}.{part}": array
            for name, quantizer in zip(("shape", "deviation"), self._fitted(), strict=True)
            for part, array in (("codebooks", quantizer.codebooks), ("weight", quantizer.weight))
        }

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> BeatTokenizer:
        """Rebuild the tokenizer."""
        shape, deviation = (
            ResidualQuantizer(arrays[f"{name}.codebooks"], arrays[f"{name}.weight"]) for name in ("shape", "deviation")
        )
        own = {name: value for name, value in settings.items() if name != "emphasis"}
        own["window"] = BeatWindow(**settings["window"])
        return cls(**own, quantizer=shape, deviation_quantizer=deviation)

    def _fitted(self) -> tuple[ResidualQuantizer, ResidualQuantizer]:
        if self.quantizer is None or self.deviation_quantizer is None:
            raise HeartlmError("the beat tokenizer has no codebooks yet: fit it first")
        return self.quantizer, self.deviation_quantizer


TOKENIZER = BeatTokenizer
