"""Beat tokens of live streams: encode the next beat of each of many leads.

The codes equal those of the causal `BeatTokenizer` for the whole recording, except for values at the edge of a level:
sums over many beats may differ in the last bit, and waveforms are stored in 16 bits. The history of a token is limited,
so that memory does not grow: `LOOK_BACK` waveforms, `LONG` intervals, and the last sudden change of the rate at any
time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.kernels.live_tokens import BeatValues, TokensKernel, TokensPlan
from heartlm.kernels.rr import level_of
from heartlm.kernels.waveform import LEAST_SCALE
from heartlm.tokenizers import comparisons as compare
from heartlm.tokenizers.beat import BeatTokenizer, rr_levels

Floats = NDArray[np.float32]

_FEWEST = 12
"""Beats from which on there is a usual range, which three of four exceed, so that a few artefacts do not raise it."""
_FAINT, _ALIKE = 0.3, 0.75
"""A beat is faint below this share of the usual range, if its QRS complex has a lower correlation with the usual:
detectors find such in silence."""


class LiveTokenizer:
    """Tokenise leads beat by beat; the caller holds the state memory of each lead.

    Args:
        tokenizer: a fitted causal tokenizer.

    Attributes:
        num_bytes: size in bytes of the state of a lead, which is zero at the start.

    Raises:
        HeartlmError: the tokenizer is not causal.
    """

    def __init__(self, tokenizer: BeatTokenizer) -> None:
        if not tokenizer.causal or not tokenizer.compare:
            raise HeartlmError("tokenizer: not causal, so a live stream cannot be tokenised: tokenize with --causal")
        self.tokenizer, window, levels = tokenizer, tokenizer.window, rr_levels(causal=True)
        spans = {"qrs": compare.QRS_S, "t": compare.T_S, "p": compare.P_S, "active": compare.ACTIVE_S}
        points = {name: np.flatnonzero(compare.in_part(window.times_s, span)) for name, span in spans.items()}
        plan = TokensPlan(
            num_points=len(window.times_s),
            look_back=compare.LOOK_BACK,
            every=compare.EVERY,
            num_ranges=window.scale_beats,
            long_mean=levels.before + 1,
            longest=compare.LONG,
            recent=levels.recent,
            near=compare.NEAR,
            around=compare.AROUND,
            steady=compare.STEADY,
            fewest_usual=compare.FEWEST,
            fewest_ranges=_FEWEST,
            **{name: (int(own[0]), len(own)) for name, own in points.items()},
            shortest_s=compare.SHORTEST_S,
            longest_s=compare.LONGEST_S,
            irregular=compare.IRREGULAR,
            sudden=compare.SUDDEN,
            usual=compare.USUAL,
            clip=window.clip,
            least_scale=LEAST_SCALE,
            faint=_FAINT,
            alike=_ALIKE,
            step_s=float(window.times_s[1] - window.times_s[0]),
        )
        self._kernel = TokensKernel(plan)
        self.num_bytes = self._kernel.num_bytes

    def push(
        self, leads: NDArray[np.int64], samples: NDArray[np.int64], rates_hz: NDArray[np.float64], waves_mv: Floats
    ) -> tuple[NDArray[np.uint16], BeatValues]:
        """Tokenise the next beat of each lead.

        Args:
            leads: address of the state of each lead, `[num_leads]`.
            samples: sample position of each lead's beat, after its earlier beats.
            rates_hz: sampling rate of each lead in Hz.
            waves_mv: low-passed signal of each lead at the times of the tokenizer's window around the beat, float32
                `[num_leads, num_points]`.

        Returns:
            The codes, uint16 `[num_leads, num_facets]`, and the values that they encode.
        """
        quantizer, deviation = self.tokenizer.quantizer, self.tokenizer.deviation_quantizer
        assert quantizer is not None and deviation is not None, "a causal tokenizer that was loaded is fitted"
        values, levels = self._kernel.push(leads, samples, rates_hz, waves_mv), rr_levels(causal=True)
        rr = np.stack([level_of(own, edges) for own, edges in zip(values.rr.T, levels.edges, strict=True)], axis=1)
        compared = dict(zip(compare.CAUSAL, [*values.rhythm.T, *values.morphology.T], strict=True))
        codes = compare.codes_of(compared, self.tokenizer.comparisons)
        return np.concatenate(
            [quantizer.encode(values.shape), deviation.encode(values.away), rr, codes], axis=1
        ), values
