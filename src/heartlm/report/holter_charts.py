"""Charts of a Holter page: heart rate and events over time, and the Poincaré plot of RR intervals.

Every chart is binned, so that its size does not depend on the number of beats.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import RATE_INTERVALS, Findings
from heartlm.ecg.definitions import KINDS
from heartlm.ecg.recording import Recording
from heartlm.ecg.spans import runs
from heartlm.report.charts import Scale, draw
from heartlm.report.render import Markup, path_of

WIDE, NARROW, HEIGHT = 760, 400, 250
LEFT, RIGHT, TOP, BOTTOM = 92, 18, 22, 36
NUM_BINS = 600
"""Number of bins of a chart over time."""

ROW = 17
RR_BIN_S, RR_RANGE_S = 0.025, (0.2, 2.0)
_RR_TICKS_S = (0.4, 0.8, 1.2, 1.6, 2.0)
_STEPS_S = [1, 2, 5, 10, 15, 30, *(60 * m for m in (1, 2, 5, 10, 15, 30)), *(3600 * h for h in (1, 2, 3, 4, 6, 12, 24))]


def trend(findings: Findings) -> Markup | None:
    """Draw the heart rate over time, mean and range per bin, and below it the times of each kind of event.

    Returns:
        The drawing, or None if there are too few beats for one rate.
    """
    recording, rate = findings.recording, 60 / np.maximum(findings.mean_rr_s(), 1e-3)
    known = np.isfinite(rate)
    if not known.any() or recording.num_samples == 0:
        return None
    middle_s = (findings.sample[:-RATE_INTERVALS] + findings.sample[RATE_INTERVALS:])[known] / (2 * recording.rate_hz)
    rate = np.minimum(rate[known], 350.0)
    x = Scale(0, recording.duration_s, LEFT, WIDE - RIGHT)
    low, high = 20 * np.floor(min(rate.min(), 60) / 20), 20 * np.ceil(max(rate.max(), 100) / 20)
    y = Scale(float(low), float(high), HEIGHT - BOTTOM, TOP)
    bin_index = np.minimum((middle_s / recording.duration_s * NUM_BINS).astype(int), NUM_BINS - 1)
    lows, highs = np.full(NUM_BINS, np.inf), np.full(NUM_BINS, -np.inf)
    np.minimum.at(lows, bin_index, rate)
    np.maximum.at(highs, bin_index, rate)
    num = np.bincount(bin_index, minlength=NUM_BINS)
    means, used = np.bincount(bin_index, rate, NUM_BINS) / np.maximum(num, 1), np.flatnonzero(num)
    centre = x((np.arange(NUM_BINS) + 0.5) / NUM_BINS * recording.duration_s)
    paths = [("range", "".join(f"M{centre[i]:.1f} {y(lows[i]):.1f}V{y(highs[i]) - 0.5:.1f}" for i in used))]
    # a short gap between bins is one slow beat; a longer gap is time without a rate
    gap = max(1, round(15 * NUM_BINS / recording.duration_s))
    for run in np.split(used, np.flatnonzero(np.diff(used) > gap) + 1):
        paths.append(("curve stroke-accent", path_of(centre[run], y(means[run]))))
    kinds, labels = [kind for kind in KINDS if findings.of_kind(kind)], []
    for row, kind in enumerate(kinds):
        top, covered = HEIGHT - BOTTOM + 8 + ROW * row, np.zeros(NUM_BINS, bool)
        for event in findings.of_kind(kind):
            first, last = np.array([event.start, event.stop]) / recording.num_samples * NUM_BINS
            covered[min(int(first), NUM_BINS - 1) : int(np.ceil(last)) + 1] = True
        spans = [(x(first), x(last)) for first, last in runs(covered) * (recording.duration_s / NUM_BINS)]
        bars = "".join(f"M{first:.1f} {top + 2}H{last:.1f}v{ROW - 6}H{first:.1f}z" for first, last in spans)
        paths += [("grid", f"M{x.first} {top + ROW - 1}H{x.last}"), (f"fill-{KINDS[kind].colour}", bars)]
        labels.append((4, top + 11, "tick", kind))
    end = HEIGHT - BOTTOM + 8 + ROW * len(kinds)
    ticks, x_title = time_ticks(recording)
    hours = f"heart rate over {recording.duration_s / 3600:.1f} hours"
    return draw(
        f"{hours}, with the times of {', '.join(kinds) or 'no events'}",
        WIDE,
        end,
        x,
        ticks,
        x_title,
        y=y,
        y_title="heart rate, beats a minute",
        height=end + BOTTOM,
        paths=paths,
        labels=labels,
        class_="chart wide",
    )


def seconds_since_midnight(recording: Recording) -> float | None:
    """Return the recorder's clock at the start in seconds since midnight; None if it is unknown."""
    first = recording.start
    return None if first is None else 3600 * first.hour + 60 * first.minute + first.second + 1e-6 * first.microsecond


def time_ticks(recording: Recording) -> tuple[list[tuple[float, str]], str]:
    """Return round times of a recording with labels, and the title of the axis: its clock, or time since the start."""
    duration_s, ahead_s = recording.duration_s, seconds_since_midnight(recording)
    step = next((step for step in _STEPS_S if duration_s / step <= 9), 24 * 3600)
    if ahead_s is None:
        unit = 3600 if duration_s >= 3600 and step >= 60 else 60
        times = range(0, int(duration_s + 1e-6) + 1, step)
        ticks = [(float(second), f"{second // unit}:{second % unit * 60 // unit:02d}") for second in times]
        return ticks, f"time since the start, {'h:min' if unit == 3600 else 'min:s'}"
    ticks = []
    for number in range(math.ceil(ahead_s / step), math.floor((ahead_s + duration_s) / step) + 1):
        second = number * step - ahead_s
        day, _, clock = (recording.clock_time(second) or "").rpartition(" ")
        words = clock[:5] if step >= 60 else clock
        ticks.append((second, day if day and clock == "00:00:00" else words))
    return ticks, f"recorder's clock, {'h:min' if step >= 60 else 'h:min:s'}"


def poincare(first_s: NDArray[np.float64], second_s: NDArray[np.float64], normal: NDArray[np.bool_]) -> Markup | None:
    """Draw each interval against the previous one, as squares that are darker for more pairs.

    Args:
        first_s: intervals in seconds, `[num_pairs]`.
        second_s: following intervals in seconds, `[num_pairs]`.
        normal: whether all three beats are N, `[num_pairs]`.
    """
    low, high = RR_RANGE_S
    if not len(first_s):
        return None
    edges = np.arange(low, high + RR_BIN_S / 2, RR_BIN_S)
    x, y = Scale(low, high, 48, NARROW - RIGHT), Scale(low, high, NARROW - RIGHT - 48 + TOP, TOP)
    size, most, paths = x(low + RR_BIN_S) - x(low), 0.0, [("grid", f"M{x.first} {y.first}L{x.last} {y.last}")]
    for chosen, colour in ((normal, "accent"), (~normal, "class-V")):
        across, up = (np.clip(each[chosen], low, high - 1e-6) for each in (first_s, second_s))
        counts = np.histogram2d(across, up, bins=[edges, edges])[0]
        most = max(most, float(counts.max()))
        level = np.ceil(4 * np.log1p(counts) / np.log1p(most)) if most else counts
        for shade in range(1, 5):
            cells = np.argwhere(level == shade)
            d = "".join(f"M{x(edges[a]):.1f} {y(edges[b]):.1f}h{size:.1f}v-{size:.1f}h-{size:.1f}z" for a, b in cells)
            paths.append((f"fill-{colour} shade-{shade}", d))
    label = f"Poincaré plot of {len(first_s)} pairs of successive RR intervals"
    ticks = [(tick, f"{tick:.1f}") for tick in _RR_TICKS_S]
    axes = {"y": y, "y_title": "next RR interval, s", "height": y.first + 38}
    return draw(label, NARROW, y.first, x, ticks, "RR interval, s", paths=paths, **axes)
