"""The rhythm tokenizer: encodes RR intervals, so that annotation files without a signal are sufficient.

An early beat and the pause after it make a regular rhythm look irregular. Therefore intervals are encoded twice:
unfiltered, and after a filter that removes such pairs but not the irregularity of atrial fibrillation.

Intervals of noise are also irregular, and fibrillation has no P waves. Optional facets therefore compare QRS complex, T
wave and P wave with the rest of the recording; they are "unknown" without a signal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.tokenizers import comparisons
from heartlm.tokenizers.base import Facet, Lead, Tokenizer, TokenizerSettings, Tokens
from heartlm.tokenizers.rr import LogScale, ordinal_coordinates, rr_codes, rr_intervals_s, trailing_median
from heartlm.tokenizers.waveform import BeatWindow, beat_blocks

RHYTHM_SCALES = {
    "rr": LogScale(0.2, 2.5, 127),
    "rr_over_recent": LogScale(0.35, 2.8, 127),
    "rr_over_previous": LogScale(0.35, 2.8, 127),
}
FILTERED_SCALES = {
    "filtered_over_previous": LogScale(0.35, 2.8, 63),
    "filtered_irregularity": LogScale(0.004, 0.5, 31),
}
"""Intervals after the ectopic filter: over the one before, and the median change of the logarithm over `CHANGES`."""

WAVEFORM_FACETS = (
    "qrs_correlation",
    "qrs_difference",
    "qrs_size_over_usual",
    "t_correlation",
    "p_correlation",
    "p_difference",
    "p_correlation_near",
    "p_consistency",
)
"""Those of `heartlm.tokenizers.comparisons` that tokens have on demand."""

EARLY, AROUND, CHANGES = 0.87, 7, 8
"""An interval is early if it is below this fraction of the median of the last `AROUND`."""


def filtered_intervals(rr_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intervals with early ones, and longer ones after early ones, replaced by the median of the last `AROUND`.

    Args:
        rr_s: interval before each beat, NaN where unknown, `[num_beats]`.
    """
    median = trailing_median(rr_s, AROUND)
    early = rr_s < EARLY * median
    late = np.append(False, early[:-1]) & (rr_s > median) if len(rr_s) else early
    filtered: NDArray[np.float64] = np.where(early | late, median, rr_s)
    return filtered


def filtered_values(rr_s: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """The value of each of `FILTERED_SCALES` at every beat, NaN where unknown."""
    filtered = np.maximum(filtered_intervals(rr_s), 1e-3)
    ratio = filtered / np.append(np.nan, filtered[:-1]) if len(filtered) else filtered
    return {
        "filtered_over_previous": ratio,
        "filtered_irregularity": trailing_median(np.abs(np.log(ratio)), CHANGES),
    }


@dataclass(frozen=True)
class RhythmSettings(TokenizerSettings):
    """Settings of a rhythm tokenizer.

    Attributes:
        waveforms: also encode comparisons of the beats' waveforms if a recording has a signal.
        causal: compare waveforms only with earlier ones.
    """

    waveforms: bool = False
    causal: bool = False

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        if self.causal and not self.waveforms:
            raise HeartlmError("causal: the rhythm tokenizer is always causal without waveforms: leave --causal out")


@dataclass
class RhythmTokenizer(Tokenizer):
    """One token a heartbeat from the intervals before it: absolute, over the recent median, over the one before; and
    after the ectopic filter over the one before, with how irregular the last ones are.

    Attributes:
        waveforms: whether to add facets that compare waveforms, for recordings with a signal.
        causal_only: whether to compare waveforms only with earlier ones; all other facets are always causal.

    The levels are fixed, so there is nothing to fit. The centre of a level of `rr` is within 1.0 % of the interval.
    """

    kind = "rhythm"
    takes = RhythmSettings
    needs_signal: ClassVar[bool] = False
    needs_fitting: ClassVar[bool] = False

    waveforms: bool = False
    causal_only: bool = False

    @classmethod
    def of(cls, settings: TokenizerSettings) -> RhythmTokenizer:
        """Return a new tokenizer with `settings`, a `RhythmSettings`."""
        given = dict(vars(settings))
        return cls(causal_only=given.pop("causal"), **given)

    @property
    def reads_signal(self) -> bool:
        """Whether the tokenizer uses the signal if there is one."""
        return self.waveforms

    @property
    def facets(self) -> tuple[Facet, ...]:
        """Three facets of 128 codes, those of the filtered intervals, and those of waveforms on demand."""
        intervals = [Facet(name, scale.size) for name, scale in (RHYTHM_SCALES | FILTERED_SCALES).items()]
        waveforms = (Facet(name, comparisons.SCALES[name].size, self.causal_only) for name in WAVEFORM_FACETS)
        return (*intervals, *(waveforms if self.waveforms else ()))

    def encode(self, lead: Lead) -> Tokens:
        """Encode the RR intervals of one recording and, with `waveforms`, its waveforms."""
        beats = lead.annotations
        rr_s = rr_intervals_s(beats.sample, beats.rate_hz)
        values = filtered_values(rr_s)
        more = [scale.encode(values[name]) for name, scale in FILTERED_SCALES.items()]
        if self.waveforms:
            more.append(self._waveform_codes(lead, rr_s))
        return Tokens(
            codes=np.column_stack([rr_codes(beats.sample, beats.rate_hz, RHYTHM_SCALES, causal=True), *more]),
            sample=beats.sample,
            beat_class=beats.beat_classes(),
            rhythm=beats.rhythm_at(beats.sample),
            scale_mv=np.full(beats.num_beats, np.nan, np.float32),
        )

    def _waveform_codes(self, lead: Lead, rr_s: NDArray[np.float64]) -> NDArray[np.uint16]:
        codes = np.zeros((len(rr_s), len(WAVEFORM_FACETS)), np.uint16)
        if not lead.signal_mv.size:
            return codes
        window, sample = BeatWindow(), lead.annotations.sample
        for block in beat_blocks(lead.signal_mv, sample, lead.rate_hz, window, self.causal_only):
            values = comparisons.block_values(block, rr_s, window.times_s, self.causal_only)
            codes[block.beats] = comparisons.codes_of(values, WAVEFORM_FACETS)
        return codes

    def geometry(self) -> list[NDArray[np.float32]]:
        """Return coordinates that vary smoothly along the levels of each facet."""
        return [ordinal_coordinates(facet.size) for facet in self.facets]

    def settings(self) -> dict[str, Any]:
        """Which facets there are; the levels are part of the schema version."""
        return {"waveforms": self.waveforms, "causal_only": self.causal_only}


TOKENIZER = RhythmTokenizer
