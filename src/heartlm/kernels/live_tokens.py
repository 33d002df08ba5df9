"""The next beat of each of many leads in one call of C, with what its token is read from.

The reference is the causal `heartlm.tokenizers.beat.BeatTokenizer` of the whole lead. What a lead remembers is one
block of memory, which a snapshot holds as it is.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_MOST = {"steady": 64, "around": 31, "p": 256}
"""What the kernel has room for."""


class TokensPlan(ctypes.Structure):
    """`struct tokens` of c/live_tokens.c, which says what each is; parts are first point and number of points."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("num_points", "look_back", "every", "num_ranges", "long_mean", "longest")
        ),
        *((name, ctypes.c_int64) for name in ("recent", "near", "around", "steady", "fewest_usual", "fewest_ranges")),
        *((name, ctypes.c_int64 * 2) for name in ("qrs", "t", "p", "active")),
        *((name, ctypes.c_double) for name in ("shortest_s", "longest_s", "irregular", "sudden", "usual")),
        *((name, ctypes.c_double) for name in ("clip", "least_scale", "faint", "alike", "step_s")),
    ]


@dataclass(frozen=True)
class BeatValues:
    """What the tokens of one beat of each of some leads are read from.

    Attributes:
        shape: normalised waveforms, float32 `[num_beats, num_points]`.
        away: their deviations from the dominant beats, the same.
        rr: the interval in s, over the recent ones and over a long mean, `[num_beats, 3]`, NaN where unknown.
        rhythm: the comparisons of intervals, in their order in `comparisons.CAUSAL`, `[num_beats, 7]`.
        morphology: those of waveforms, float32 `[num_beats, 12]`.
        usual_mv: range of a beat that three of four exceed, NaN where unknown, `[num_beats]`.
        faint: whether the beat is much lower than the others and unlike them, `[num_beats]`.
    """

    shape: Floats
    away: Floats
    rr: Doubles
    rhythm: Doubles
    morphology: Floats
    usual_mv: Doubles
    faint: NDArray[np.bool_]


class TokensKernel:
    """Takes in beats of leads."""

    def __init__(self, plan: TokensPlan) -> None:
        sizes = {"steady": plan.steady, "around": plan.around, "p": plan.p[1]}
        assert all(sizes[name] <= most for name, most in _MOST.items()), "the kernel has no room for these"
        num_bytes, scratch = (kernel(f"live_tokens_{what}") for what in ("bytes", "scratch"))
        self._run = kernel("live_tokens")
        self._plan = plan
        self.num_bytes: int = num_bytes(ctypes.addressof(plan))
        self._scratch = np.empty(scratch(ctypes.addressof(plan)), np.uint8)

    def push(
        self, leads: NDArray[np.int64], samples: NDArray[np.int64], rates_hz: Doubles, waves: Floats
    ) -> BeatValues:
        """Take in the next beat of each lead.

        Args:
            leads: address of the memory of each, `num_bytes` that began as zeros, `[num_leads]`.
            samples: where the beat of each lies, after the beats before.
            rates_hz: of the samples of each.
            waves: each lead in mV, low-passed, at the points around the beat, float32 `[num_leads, num_points]`.
        """
        num = len(leads)
        shape, away = np.empty((2, num, self._plan.num_points), np.float32)
        rr, rhythm, morphology = np.empty((num, 3)), np.empty((num, 7)), np.empty((num, 12), np.float32)
        usual_mv, faint = np.empty(num), np.empty(num, np.uint8)
        waves = np.ascontiguousarray(waves)
        assert len(samples) == len(rates_hz) == num and waves.shape == shape.shape
        self._run(
            *(ctypes.addressof(self._plan), leads, samples, rates_hz, waves, num, self._scratch.ctypes.data),
            *(shape, away, rr, rhythm, morphology, usual_mv, faint),
        )
        return BeatValues(shape, away, rr, rhythm, morphology, usual_mv, faint.view(np.bool_))
