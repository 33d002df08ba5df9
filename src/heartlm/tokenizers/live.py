"""Beat tokens of a live stream: one beat in, its codes out.

The codes are those that the causal `BeatTokenizer` gives for the whole recording; only sums over many beats may differ
in their last bit. What a token looks back at is bounded, so that memory does not grow: `LOOK_BACK` waveforms, `LONG`
intervals, and the last sudden change of the rate, however long ago it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.kernels.running import stretch_medians
from heartlm.kernels.waveform import LEAST_SCALE
from heartlm.tokenizers import comparisons
from heartlm.tokenizers.beat import BeatTokenizer, rr_levels
from heartlm.tokenizers.comparisons import (
    AROUND,
    EVERY,
    IRREGULAR,
    LONG,
    LOOK_BACK,
    NEAR,
    P_S,
    STEADY,
    Parts,
    UsualBeat,
    in_part,
)
from heartlm.tokenizers.rr import LONG_BEATS, rr_codes

Floats = NDArray[np.float32]

_RECENT = 8 * STEADY
"""Intervals among which a sudden change of the rate is looked for."""


class LiveBeats:
    """Tokens of one lead, beat by beat.

    Args:
        tokenizer: fitted and causal.
        rate_hz: samples a second.

    Raises:
        HeartlmError: the tokenizer is not causal.
    """

    def __init__(self, tokenizer: BeatTokenizer, rate_hz: float) -> None:
        if not tokenizer.causal or not tokenizer.compare:
            raise HeartlmError("tokenizer: not causal, so a live stream cannot be tokenised: tokenize with --causal")
        self.tokenizer, self.rate_hz = tokenizer, rate_hz
        num_points = len(tokenizer.window.times_s)
        self.num_beats = 0
        self.sample = np.empty(0, np.int64)
        self.shape = np.empty((0, num_points), np.float32)
        self.ranges = np.empty(0)
        self.dominant = np.zeros(num_points, np.float32)
        self.log_slow = float("nan")
        self.last_change = 0.0
        self.p_waves = np.empty((0, int(in_part(tokenizer.window.times_s, P_S).sum())), np.float32)
        self._usual: UsualBeat | None = None

    def push(self, sample: int, wave_mv: Floats) -> NDArray[np.uint16]:
        """Tokenise the next beat.

        Args:
            sample: its position, after those of the beats before.
            wave_mv: the lead, low-passed, at the times of the tokenizer's window around it, float32 `[num_points]`.

        Returns:
            Its codes, uint16 `[num_facets]`.
        """
        tokenizer = self.tokenizer
        self.sample = np.append(self.sample, sample)[-LONG - 2 :]
        self.ranges = np.append(self.ranges, float(np.ptp(wave_mv)))[-tokenizer.window.scale_beats :]
        scale = max(np.float32(np.median(self.ranges)), np.float32(LEAST_SCALE))
        clip = tokenizer.window.clip
        own = np.clip((wave_mv - np.median(wave_mv)) / scale, -clip, clip)
        self.shape = np.concatenate([self.shape[1 - LOOK_BACK :], own[None]])
        rr_s = np.diff(self.sample, prepend=np.nan) / self.rate_hz
        renew = self.num_beats % EVERY == 0
        if renew:
            whole = np.array([0]), np.array([len(self.shape)])
            self.dominant = stretch_medians(self.shape, *whole)[0]
        values = self._rhythm(rr_s, renew) | self._waveform(own, rr_s[-len(self.shape) :], renew)
        shape, deviation = tokenizer.quantizer, tokenizer.deviation_quantizer
        assert shape is not None and deviation is not None, "a causal tokenizer that was loaded is fitted"
        self.num_beats += 1
        return np.concatenate(
            [
                shape.encode(own[None])[0],
                deviation.encode((own - self.dominant)[None])[0],
                rr_codes(self.sample[-LONG_BEATS - 2 :], self.rate_hz, rr_levels(causal=True))[-1],
                [comparisons.SCALES[name].level(values[name]) for name in tokenizer.comparisons],
            ]
        )

    def state(self) -> dict[str, Any]:
        """What it remembers: numbers, arrays, and a dictionary of them."""
        usual = None if self._usual is None else dict(vars(self._usual))
        return {name: getattr(self, name) for name in _REMEMBERED} | {"usual": usual}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave, for the same tokenizer and rate."""
        for name in _REMEMBERED:
            setattr(self, name, state[name])
        self._usual = None if state["usual"] is None else UsualBeat(**state["usual"])

    def _rhythm(self, rr_s: NDArray[np.float64], renew: bool) -> dict[str, float]:
        """`comparisons.rhythm_values` of the last beat."""
        log_rr = np.log(np.clip(rr_s, comparisons.SHORTEST_S, comparisons.LONGEST_S))
        kept = np.exp(log_rr[-LONG - 1 :])
        change = np.abs(np.diff(log_rr[-LOOK_BACK - 2 :]))[-LOOK_BACK - 1 :]
        if renew:
            self.log_slow = comparisons.long_interval(log_rr[-LONG - 1 :])
        recent = log_rr[-_RECENT:]
        begin, size = comparisons.sudden_changes(recent)
        known = begin == len(recent) - 1 - comparisons.CHANGE_KNOWN_AFTER
        if known.any():
            self.last_change = float(size[known][0])
        near = slice(-2 * AROUND - 1, None)
        irregular = np.where(np.isnan(change), np.nan, change > IRREGULAR)
        last = log_rr[-1]
        return {
            "rr_over_mean": last - np.log(_mean(kept)),
            "rr_over_slow": last - self.log_slow,
            "rr_over_near": last - np.log(_mean(kept[-2 * NEAR - 1 :])),
            "irregularity": _median(change[near]),
            "irregular_share": _mean(irregular[near]),
            "irregular_share_long": _mean(irregular),
            "last_sudden_change": self.last_change,
        }

    def _waveform(self, own: Floats, rr_s: NDArray[np.float64], renew: bool) -> dict[str, np.float32]:
        """`comparisons.morphology_values` of the last beat."""
        times_s = self.tokenizer.window.times_s
        if renew:
            self._usual = Parts.of(self.shape, times_s).usual(slice(0, len(self.shape)), rr_s)
        assert self._usual is not None, "the first beat renews it"
        parts = Parts.of(own[None], times_s)
        compared = parts.compared(self._usual, self.p_waves)
        self.p_waves = np.concatenate([self.p_waves, parts.p])[-2 * NEAR :]
        return {name: value[0] for name, value in compared.items()}


_REMEMBERED = ("num_beats", "sample", "shape", "p_waves", "ranges", "dominant", "log_slow", "last_change")


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _median(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")
