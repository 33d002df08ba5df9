"""Beat tokens of live streams: encode the next beat of each of many leads in one call of C.

The codes equal those of the causal `BeatTokenizer` for the whole recording, except for values at the edge of a level:
sums over many beats may differ in the last bit, and waveforms are stored in 16 bits. The history of a token is limited,
so that memory does not grow: `LOOK_BACK` waveforms, `LONG` intervals, and the last sudden change of the rate at any
time. The memory of a lead is one block, which a snapshot holds as it is.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.kernels.library import kernel, struct_fields
from heartlm.tokenizers import comparisons as compare
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.rr import CAUSAL_SCALES, LONG_BEATS, RECENT_BEATS
from heartlm.tokenizers.waveform import LEAST_SCALE_MV

Floats = NDArray[np.float32]

# Beats from which on there is a usual range, which three of four exceed, so that a few artefacts do not raise it.
_FEWEST = 12
# A beat is faint below this share of the usual range, if its QRS complex has a lower correlation with the usual:
# detectors find such in silence.
_FAINT, _ALIKE = 0.3, 0.75
# What c/live_tokens.c has room for, and the points that it reads at once.
_MOST_STEADY, _MOST_AROUND, _MOST_P, _FEWEST_POINTS = 64, 31, 256, 32


class _Plan(ctypes.Structure):
    """`struct tokens` of c/live_tokens.c; parts of a beat are first point and number of points."""

    _fields_ = struct_fields("tokens")


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
        self.tokenizer, window = tokenizer, tokenizer.window
        spans = {"qrs": compare.QRS_S, "t": compare.T_S, "p": compare.P_S, "active": compare.ACTIVE_S}
        points = {name: np.flatnonzero(compare.in_part(window.times_s, span)) for name, span in spans.items()}
        assert compare.STEADY <= _MOST_STEADY and compare.AROUND <= _MOST_AROUND and len(points["p"]) <= _MOST_P
        assert len(window.times_s) >= _FEWEST_POINTS
        self._plan = _Plan(
            num_points=len(window.times_s),
            look_back=compare.LOOK_BACK,
            every=compare.EVERY,
            num_ranges=window.scale_beats,
            long_mean=LONG_BEATS + 1,
            longest=compare.LONG,
            recent=RECENT_BEATS + 1,
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
            least_scale=LEAST_SCALE_MV,
            faint=_FAINT,
            alike=_ALIKE,
            step_s=float(window.times_s[1] - window.times_s[0]),
        )
        plan = ctypes.addressof(self._plan)
        self.num_bytes: int = kernel("live_tokens_bytes")(plan)
        self._run = kernel("live_tokens")
        self._scratch = np.empty(kernel("live_tokens_scratch")(plan), np.uint8)

    def push(
        self, leads: NDArray[np.int64], samples: NDArray[np.int64], rates_hz: NDArray[np.float64], waves_mv: Floats
    ) -> tuple[NDArray[np.uint16], NDArray[np.float64], NDArray[np.bool_]]:
        """Tokenise the next beat of each lead.

        Args:
            leads: address of the state of each lead, `[num_leads]`.
            samples: sample position of each lead's beat, after its earlier beats.
            rates_hz: sampling rate of each lead in Hz.
            waves_mv: low-passed signal of each lead at the times of the tokenizer's window around the beat, float32
                `[num_leads, num_points]`.

        Returns:
            The codes, uint16 `[num_leads, num_facets]`; the range in mV that three of four of the last beats exceed,
            NaN where unknown; and whether the beat is much lower than the others and unlike them.
        """
        num, quantizer, deviation = len(leads), self.tokenizer.quantizer, self.tokenizer.deviation_quantizer
        assert quantizer is not None and deviation is not None, "a causal tokenizer that was loaded is fitted"
        shape, away = np.empty((2, num, self._plan.num_points), np.float32)
        # what c/live_tokens.c writes for a beat: intervals of `CAUSAL_SCALES`, then the values of `compare.CAUSAL`
        rr, rhythm, morphology = np.empty((num, 3)), np.empty((num, 7)), np.empty((num, 12), np.float32)
        usual_mv, faint = np.empty(num), np.empty(num, np.bool_)
        waves_mv = np.ascontiguousarray(waves_mv)
        assert len(samples) == len(rates_hz) == num and waves_mv.shape == shape.shape
        self._run(
            *(ctypes.addressof(self._plan), leads, samples, rates_hz, waves_mv, num, self._scratch.ctypes.data),
            *(shape, away, rr, rhythm, morphology, usual_mv, faint),
        )
        intervals = [scale.encode(own) for scale, own in zip(CAUSAL_SCALES.values(), rr.T, strict=True)]
        compared = compare.codes_of(
            dict(zip(compare.CAUSAL, [*rhythm.T, *morphology.T], strict=True)), self.tokenizer.comparisons
        )
        codes = quantizer.encode(shape), deviation.encode(away), np.stack(intervals, axis=1), compared
        return np.concatenate(codes, axis=1), usual_mv, faint
