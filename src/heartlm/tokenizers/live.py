"""Beat tokens of live streams: the next beat of each of many leads in, their codes out.

The codes are those that the causal `BeatTokenizer` gives for the whole recording; only sums over many beats may differ
in their last bit. What a token looks back at is bounded, so that memory does not grow: `LOOK_BACK` waveforms, `LONG`
intervals, and the last sudden change of the rate, however long ago it was.

Leads are tokenised together, because a beat alone costs more in calls than in arithmetic. Each row of an array is of
one lead, and what is older than its stream is NaN, so that a lead gets the same codes in any company.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.kernels.rr import level_of
from heartlm.kernels.waveform import LEAST_SCALE
from heartlm.tokenizers.beat import BeatTokenizer, rr_levels
from heartlm.tokenizers.comparisons import (
    AROUND,
    EVERY,
    IRREGULAR,
    LONG,
    LONGEST_S,
    LOOK_BACK,
    NEAR,
    P_S,
    SHORTEST_S,
    STEADY,
    SUDDEN,
    Parts,
    UsualBeat,
    codes_of,
    correlation,
    in_part,
    long_interval,
    row_medians,
)
from heartlm.tokenizers.rr import LONG_BEATS

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_FEWEST = 12
FAINT, ALIKE = 0.3, 0.75
"""A beat is faint below this share of the usual range, if its QRS complex has a lower correlation with the usual."""
_CHANGE_REACH = 3 * STEADY - 1
"""The last intervals, in which a change shows that is known of now: `STEADY` before and after it, and as many again to
see that it is the greatest of its neighbours."""


class LiveBeats:
    """What is remembered of one lead.

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
        self.log_rr = np.empty(0)
        """Logarithm of the interval before each of the last beats, NaN for the first of all."""
        self.sums = np.zeros(4)
        """Of these intervals in seconds, how many are known, how many of the last changes are great, and are known."""
        self.shape = np.empty((0, num_points), np.float32)
        self.log_width = np.empty(0, np.float32)
        """Of each QRS complex in `shape`."""
        self.recent = list[tuple[Floats, np.float32]]()
        """Waveforms, and widths of QRS complexes, since the medians were computed."""
        self.ranges = np.empty(0)
        self.usual_mv = float("nan")
        """Range that three of four beats exceed, so that a few artefacts do not raise it; NaN with less than twelve."""
        self.dominant = np.zeros(num_points, np.float32)
        self.log_slow = float("nan")
        self.last_change = 0.0
        self.p_waves = np.empty((0, int(in_part(tokenizer.window.times_s, P_S).sum())), np.float32)
        self.usual: UsualBeat | None = None
        self.faint = False
        """Whether the last beat is much lower than the others and unlike them: detectors find such in silence."""

    def state(self) -> dict[str, Any]:
        """What it remembers: numbers, arrays, and a dictionary of them."""
        own = {name: getattr(self, name) for name in _REMEMBERED} | {"sums": self.sums.copy()}
        recent = {
            "recent": np.array([shape for shape, _ in self.recent], np.float32).reshape(-1, self.shape.shape[1]),
            "recent_log_width": np.array([log_width for _, log_width in self.recent], np.float32),
        }
        return own | recent | {"usual": None if self.usual is None else dict(vars(self.usual))}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave, for the same tokenizer and rate."""
        for name in _REMEMBERED:
            setattr(self, name, state[name])
        self.sums = self.sums.copy()
        self.recent = list(zip(state["recent"], state["recent_log_width"], strict=True))
        self.usual = None if state["usual"] is None else UsualBeat(**state["usual"])

    def count_interval(self, log_rr: float) -> None:
        """Add the logarithm of the last interval, NaN if unknown, to the sums over many, which lose the oldest."""
        if len(self.log_rr) == LONG + 1:
            self.sums[:2] -= _sum_of(math.exp(self.log_rr[0]))
        self.log_rr = np.append(self.log_rr, log_rr)[-LONG - 1 :]
        self.sums[:2] += _sum_of(math.exp(log_rr))
        if len(self.log_rr) > 1:
            self.sums[2:] += _sum_of(abs(log_rr - self.log_rr[-2]), IRREGULAR)
        if len(self.log_rr) > LOOK_BACK + 2:
            self.sums[2:] -= _sum_of(abs(self.log_rr[-LOOK_BACK - 2] - self.log_rr[-LOOK_BACK - 3]), IRREGULAR)

    def renew(self) -> None:
        """Compute the medians of the last beats again."""
        self.shape = np.concatenate([self.shape, *(own[None] for own, _ in self.recent)])[-LOOK_BACK:]
        self.log_width = np.append(self.log_width, [own for _, own in self.recent])[-LOOK_BACK:]
        self.recent = []
        self.dominant = row_medians(self.shape)
        self.log_slow = long_interval(self.log_rr)
        rr_s = np.diff(self.sample[-len(self.shape) - 1 :], prepend=np.nan)[-len(self.shape) :] / self.rate_hz
        parts = Parts.of(self.shape, self.tokenizer.window.times_s, self.log_width)
        self.usual = parts.usual(slice(0, len(self.shape)), rr_s)


_REMEMBERED = (
    *("num_beats", "sample", "log_rr", "sums", "shape", "log_width", "p_waves"),
    *("ranges", "usual_mv", "dominant", "log_slow", "last_change"),
)


def _sum_of(value: float, limit: float | None = None) -> tuple[float, int]:
    """What a value adds to a sum, or with a limit to a number of greater ones; and to the number of known values."""
    known = not math.isnan(value)
    return (value if limit is None else float(value > limit)) if known else 0.0, known


def push_beats(leads: Sequence[LiveBeats], samples: Sequence[int], waves_mv: Floats) -> NDArray[np.uint16]:
    """Tokenise the next beat of each lead.

    Args:
        leads: with one tokenizer.
        samples: where the beat of each lies, after the beats before.
        waves_mv: each lead, low-passed, at the times of the tokenizer's window around the beat, float32
            `[num_leads, num_points]`.

    Returns:
        Its codes, uint16 `[num_leads, num_facets]`.
    """
    tokenizer = leads[0].tokenizer
    quantizer, deviation, clip = tokenizer.quantizer, tokenizer.deviation_quantizer, tokenizer.window.clip
    assert quantizer is not None and deviation is not None, "a causal tokenizer that was loaded is fitted"
    num_ranges = tokenizer.window.scale_beats
    for lead, sample, size in zip(leads, samples, np.ptp(waves_mv, axis=1).tolist(), strict=True):
        rr_s = (sample - lead.sample[-1]) / lead.rate_hz if len(lead.sample) else np.nan
        lead.sample = np.append(lead.sample, sample)[-LOOK_BACK - 1 :]
        lead.count_interval(math.log(min(max(rr_s, SHORTEST_S), LONGEST_S)))
        lead.ranges = np.append(lead.ranges, size)[-num_ranges:]
    ranges = np.sort(_padded([lead.ranges for lead in leads], num_ranges), axis=1)
    scale = _medians(ranges).astype(np.float32)
    for lead, own in zip(leads, ranges, strict=True):
        if (num := len(lead.ranges)) >= _FEWEST:
            low, part = divmod(num - 1, 4)
            lead.usual_mv = float(own[low] + part / 4 * (own[low + 1] - own[low]))
    middle = np.median(waves_mv, axis=1, keepdims=True)
    shape: Floats = np.clip((waves_mv - middle) / np.maximum(scale, np.float32(LEAST_SCALE))[:, None], -clip, clip)
    parts = Parts.of(shape, tokenizer.window.times_s)
    for lead, own, log_width in zip(leads, shape, parts.log_width, strict=True):
        lead.recent.append((own, log_width))
        if lead.num_beats % EVERY == 0:
            lead.renew()
        lead.num_beats += 1
    values = _rhythm(leads) | _morphology(leads, parts)
    for lead, alike in zip(leads, values["qrs_correlation"].tolist(), strict=True):
        lead.faint = alike < ALIKE and bool(lead.ranges[-1] < FAINT * lead.usual_mv)
    rr = _rr_codes(leads)
    away = deviation.encode(shape - np.stack([lead.dominant for lead in leads]))
    return np.concatenate([quantizer.encode(shape), away, rr, codes_of(values, tokenizer.comparisons)], axis=1)


def _rr_codes(leads: Sequence[LiveBeats]) -> NDArray[np.uint16]:
    """`rr_codes` of the last beat of each lead."""
    levels, rate_hz = rr_levels(causal=True), np.array([lead.rate_hz for lead in leads])
    samples = [lead.sample[-LONG_BEATS - 2 :].astype(np.float64) for lead in leads]
    rr_s = np.diff(_padded(samples, LONG_BEATS + 2)) / rate_hz[:, None]
    last = rr_s[:, -1]
    values = {
        "rr": last,
        "rr_over_recent": last / _medians(rr_s[:, -levels.recent :]),
        "rr_over_long": last / _means(rr_s),
    }
    codes = (level_of(values[name], edges) for name, edges in zip(levels.names, levels.edges, strict=True))
    return np.stack(list(codes), axis=1)


def _rhythm(leads: Sequence[LiveBeats]) -> dict[str, Doubles]:
    """`comparisons.rhythm_values` of the last beat of each lead."""
    width = max(2 * AROUND + 2, _CHANGE_REACH, 2 * NEAR + 1)
    log_rr = _padded([lead.log_rr[-width:] for lead in leads], width)
    change, last = np.abs(np.diff(log_rr[:, -2 * AROUND - 2 :])), log_rr[:, -1]
    sums = np.stack([lead.sums for lead in leads])
    with np.errstate(invalid="ignore"):
        mean_s, irregular = sums[:, 0] / sums[:, 1], sums[:, 2] / sums[:, 3]
    recent = np.lib.stride_tricks.sliding_window_view(log_rr[:, -_CHANGE_REACH:], STEADY, axis=1)
    median = _medians(recent)
    size = np.nan_to_num(median[:, STEADY:] - median[:, :-STEADY])
    greatest = np.abs(size).argmax(axis=1) == STEADY // 2
    for lead, own, is_known in zip(leads, size[:, STEADY // 2].tolist(), greatest, strict=True):
        if is_known and abs(own) > SUDDEN:
            lead.last_change = own
    return {
        "rr_over_mean": last - np.log(mean_s),
        "rr_over_slow": last - np.array([lead.log_slow for lead in leads]),
        "rr_over_near": last - np.log(_means(np.exp(log_rr[:, -2 * NEAR - 1 :]))),
        "irregularity": _medians(change),
        "irregular_share": _means(np.where(np.isnan(change), np.nan, change > IRREGULAR)),
        "irregular_share_long": irregular,
        "last_sudden_change": np.array([lead.last_change for lead in leads]),
    }


def _morphology(leads: Sequence[LiveBeats], parts: Parts) -> dict[str, Floats]:
    """`comparisons.morphology_values` of the last beat of each lead."""
    usual = UsualBeat.stack([lead.usual for lead in leads if lead.usual is not None])  # the first beat renews it
    values = parts.compared(usual)
    alike = np.full((len(leads), 2 * NEAR + 1), np.nan)
    alike[:, -1] = values["p_correlation"]
    earlier = np.zeros((len(leads), 2 * NEAR, parts.p.shape[1]), np.float32)
    for row, lead in enumerate(leads):
        earlier[row, 2 * NEAR - len(lead.p_waves) :] = lead.p_waves
    slow = np.repeat(usual.slow_p, 2 * NEAR, axis=0)
    found = correlation(earlier.reshape(len(slow), -1), slow).reshape(len(leads), -1)
    for row, (lead, own) in enumerate(zip(leads, parts.p, strict=True)):
        num = len(lead.p_waves)
        alike[row, -1 - num : -1] = found[row, 2 * NEAR - num :]
        lead.p_waves = np.concatenate([lead.p_waves, own[None]])[-2 * NEAR :]
    return values | {"p_correlation_near": _means(alike).astype(np.float32)}


def _padded(rows: Sequence[Doubles], width: int) -> Doubles:
    """Rows of at most `width` values as one array, NaN before them."""
    out = np.full((len(rows), width), np.nan)
    for own, row in zip(out, rows, strict=True):
        own[width - len(row) :] = row
    return out


def _means(rows: Doubles) -> Doubles:
    """Mean of the known values of each row, NaN without any."""
    known = ~np.isnan(rows)
    with np.errstate(invalid="ignore"):
        mean: Doubles = np.where(known, rows, 0.0).sum(axis=-1) / known.sum(axis=-1)
    return mean


def _medians(rows: Doubles) -> Doubles:
    """Median of the known values along the last axis, NaN without any."""
    ordered, num = np.sort(rows, axis=-1), (~np.isnan(rows)).sum(axis=-1, keepdims=True)
    low, high = (np.take_along_axis(ordered, place, -1) for place in (np.maximum(num - 1, 0) // 2, num // 2))
    median: Doubles = ((low + high) / 2)[..., 0]
    return median
