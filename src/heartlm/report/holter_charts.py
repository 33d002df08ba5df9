"""Charts of a Holter page: rates, events and signal quality over time, histogram and Poincaré plot of RR intervals.

Every chart is binned, so that its size does not depend on the number of beats.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import KINDS, QUALITY_S, RATE_INTERVALS, Findings
from heartlm.ecg.spans import runs
from heartlm.report.numbers import count
from heartlm.report.svg import (
    Markup,
    Scale,
    drawing,
    group,
    line,
    path_of,
    rectangle,
    tag,
    text,
    x_axis,
    y_axis,
)

WIDE, NARROW, HEIGHT = 760, 400, 250
LEFT, RIGHT, TOP, BOTTOM = 92, 18, 22, 36
NUM_BINS = 600
"""Number of bins of a chart over time."""

ROW = 17
RR_BIN_S, POINCARE_BIN_S, RR_RANGE_S = 0.02, 0.025, (0.2, 2.0)

_STEPS_S = [1, 2, 5, 10, 15, 30, *(60 * m for m in (1, 2, 5, 10, 15, 30)), *(3600 * h for h in (1, 2, 3, 4, 6, 12, 24))]

DANGEROUS = ("VF", "asystole", "VT")
_COLOUR = {"IVR": "class-V", "bigeminy": "class-V", "trigeminy": "class-V", "couplet": "class-V"}
_COLOUR |= {"SVT": "class-S", "flutter": "accent", "AF": "accent", "unreadable": "grey-2"}
_COLOUR |= dict.fromkeys(DANGEROUS, "class-V")


def trend(findings: Findings) -> Markup | None:
    """Draw the heart rate over time, mean and range per bin, and below it the times of each kind of event.

    Returns:
        The drawing, or None if there are too few beats for one rate.
    """
    recording = findings.recording
    rate = 60 / np.maximum(findings.mean_rr_s(), 1e-3)
    if not np.isfinite(rate).any() or recording.num_samples == 0:
        return None
    middle_s = (findings.sample[:-RATE_INTERVALS] + findings.sample[RATE_INTERVALS:]) / (2 * recording.rate_hz)
    middle_s, rate = middle_s[np.isfinite(rate)], rate[np.isfinite(rate)]
    kinds = [kind for kind in KINDS if findings.of_kind(kind)]
    bottom = HEIGHT - BOTTOM
    x = Scale(0, recording.duration_s, LEFT, WIDE - RIGHT)
    highest = min(float(rate.max()), 350.0)
    low, high = 20 * np.floor(min(rate.min(), 60) / 20), 20 * np.ceil(max(highest, 100) / 20)
    y = Scale(float(low), float(high), bottom, TOP)
    place = np.minimum((middle_s / recording.duration_s * NUM_BINS).astype(int), NUM_BINS - 1)
    lows, highs = np.full(NUM_BINS, np.inf), np.full(NUM_BINS, -np.inf)
    np.minimum.at(lows, place, rate)
    np.maximum.at(highs, place, rate)
    num = np.bincount(place, minlength=NUM_BINS)
    means = np.bincount(place, rate, NUM_BINS) / np.maximum(num, 1)
    used = np.flatnonzero(num)
    centre = [x((index + 0.5) / NUM_BINS * recording.duration_s) for index in range(NUM_BINS)]
    bars = "".join(f"M{centre[i]:.1f} {y(min(lows[i], high)):.1f}V{y(min(highs[i], high)) - 0.5:.1f}" for i in used)
    parts = [y_axis(x, y, "heart rate, beats a minute"), tag("path", d=bars, class_="range")]
    # a short gap between bins is one slow beat; a longer gap is time without a rate
    gap = max(1, round(15 * NUM_BINS / recording.duration_s))
    for run in np.split(used, np.flatnonzero(np.diff(used) > gap) + 1):
        drawn = path_of([centre[i] for i in run], [y(min(means[i], high)) for i in run])
        parts.append(tag("path", d=drawn, class_="curve stroke-accent"))
    for row, kind in enumerate(kinds):
        top, taken = bottom + 8 + ROW * row, np.zeros(NUM_BINS, bool)
        for event in findings.of_kind(kind):
            edges = np.array([event.start, event.stop]) / recording.num_samples * NUM_BINS
            taken[min(int(edges[0]), NUM_BINS - 1) : int(np.ceil(edges[1])) + 1] = True
        parts.append(
            group(
                tag("title", f"{KINDS[kind]}: {count(len(findings.of_kind(kind)))}"),
                text(LEFT - 8, top + 11, kind, class_="tick", text_anchor="end"),
                line(x.first, top + ROW - 1, x.last, top + ROW - 1, class_="grid"),
                *_spans(taken, x, top + 2, ROW - 6, f"fill-{_COLOUR.get(kind, 'grey-1')}"),
            )
        )
    end = bottom + 8 + ROW * len(kinds)
    parts.append(time_axis(x, end))
    label = (
        f"heart rate over {recording.duration_s / 3600:.1f} hours, with the times of {', '.join(kinds) or 'no events'}"
    )
    return drawing(WIDE, end + BOTTOM, label, *parts, class_="chart wide")


def _spans(taken: NDArray[np.bool_], x: Scale, top: float, height: float, class_: str) -> list[Markup]:
    """Draw each run of set bins as one bar."""
    width = (x.last - x.first) / len(taken)
    return [
        rectangle(x.first + float(start) * width, top, float(stop - start) * width, height, class_=class_)
        for start, stop in runs(taken)
    ]


def time_axis(x: Scale, top: float) -> Markup:
    """Draw an axis of the time since the start, with ticks at round hours, minutes or seconds."""
    step = next((step for step in _STEPS_S if (x.stop - x.start) / step <= 9), 24 * 3600)
    by_hour = x.stop >= 3600
    ticks = []
    for second in np.arange(0, x.stop + 1e-6, step).astype(int).tolist():
        whole, rest = divmod(second, 3600 if by_hour and step >= 60 else 60)
        ticks.append((float(second), f"{whole}:{rest // 60 if by_hour and step >= 60 else rest:02d}"))
    return x_axis(x, top, ticks, f"time from the start, {'h:min' if by_hour else 'min:s'}")


def histogram(rr_s: NDArray[np.float64], normal: NDArray[np.bool_]) -> Markup | None:
    """Draw the histogram of RR intervals: intervals between two N beats, with the others stacked on top.

    Args:
        rr_s: intervals in seconds, `[num_intervals]`; values outside of `RR_RANGE_S` count in the end bins.
        normal: whether both beats are N, `[num_intervals]`.
    """
    if not len(rr_s):
        return None
    low, high = RR_RANGE_S
    edges = np.arange(low, high + RR_BIN_S / 2, RR_BIN_S)
    shown = np.clip(rr_s, low, high - 1e-6)
    of_normal, of_all = np.histogram(shown[normal], edges)[0], np.histogram(shown, edges)[0]
    x = Scale(low, high, 48, NARROW - RIGHT)
    y = Scale(0, float(of_all.max()) * 1.05, HEIGHT - BOTTOM, TOP)
    width = x(low + RR_BIN_S) - x(low)
    parts = [y_axis(x, y, "intervals")]
    for lower, upper, class_ in ((0 * of_all, of_normal, "fill-accent"), (of_normal, of_all, "fill-class-V")):
        parts += [
            rectangle(x(edge), y(float(to)), width - 0.4, y(float(since)) - y(float(to)), class_=class_)
            for edge, since, to in zip(edges[:-1].tolist(), lower, upper, strict=True)
            if to > since
        ]
    parts.append(_seconds_axis(x, HEIGHT - BOTTOM))
    return drawing(NARROW, HEIGHT, f"histogram of {len(rr_s)} RR intervals", *parts)


def _seconds_axis(x: Scale, top: float) -> Markup:
    return x_axis(x, top, [(tick, f"{tick:.1f}") for tick in (0.4, 0.8, 1.2, 1.6, 2.0)], "RR interval, s")


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
    edges = np.arange(low, high + POINCARE_BIN_S / 2, POINCARE_BIN_S)
    x, y = Scale(low, high, 48, NARROW - RIGHT), Scale(low, high, NARROW - RIGHT - 48 + TOP, TOP)
    size = x(low + POINCARE_BIN_S) - x(low)
    parts = [
        y_axis(x, y, "next RR interval, s"),
        line(x.first, y.first, x.last, y.last, class_="grid"),
        _seconds_axis(x, y.first),
    ]
    most = 0.0
    for of_kind, colour in ((normal, "accent"), (~normal, "class-V")):
        across, up = (np.clip(each[of_kind], low, high - 1e-6) for each in (first_s, second_s))
        held = np.histogram2d(across, up, bins=[edges, edges])[0]
        most = max(most, float(held.max()))
        level = np.ceil(4 * np.log1p(held) / np.log1p(most)) if most else held
        for shade in range(1, 5):
            cells = np.argwhere(level == shade)
            d = "".join(f"M{x(edges[a]):.1f} {y(edges[b]):.1f}h{size:.1f}v-{size:.1f}h-{size:.1f}z" for a, b in cells)
            if d:
                parts.append(tag("path", d=d, class_=f"fill-{colour}", opacity=0.25 * shade))
    label = f"Poincaré plot of {len(first_s)} pairs of successive RR intervals"
    return drawing(NARROW, y.first + 38, label, *parts)


def quality(findings: Findings) -> Markup | None:
    """Draw the readability of each analysed lead over time: good, partial or none; return None without any result."""
    shares = np.nan_to_num(findings.quality)
    if not shares.size:
        return None
    num = min(shares.shape[1], NUM_BINS)
    starts = np.linspace(0, shares.shape[1], num, endpoint=False).astype(int)
    means = np.add.reduceat(shares, starts, axis=1) / np.diff([*starts, shares.shape[1]])
    x = Scale(0, max(shares.shape[1] * QUALITY_S, findings.recording.duration_s), LEFT, WIDE - RIGHT)
    judged = Scale(0, shares.shape[1] * QUALITY_S, LEFT, x(shares.shape[1] * QUALITY_S))
    parts = []
    for row, (lead, share) in enumerate(zip(findings.leads, means, strict=False)):
        name, top = findings.recording.lead_names[lead], 6 + ROW * row
        parts.append(text(LEFT - 8, top + 11, name[:12], class_="tick", text_anchor="end"))
        for class_, taken in (("good", share >= 0.9), ("part", (share >= 0.5) & (share < 0.9)), ("bad", share < 0.5)):
            parts += _spans(taken, judged, top + 2, ROW - 5, f"quality-{class_}")
    end = 8 + ROW * len(means)
    label = f"signal quality of {len(means)} leads over time; {100 * float(shares.mean()):.0f} % of it can be read"
    return drawing(WIDE, end + BOTTOM, label, *parts, time_axis(x, end), class_="chart wide")
