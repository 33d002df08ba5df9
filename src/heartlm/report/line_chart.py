"""Line charts over training steps, ranks or patients: loss, learning rate, F1, speedup.

The name of each curve is written at its end instead of in a legend.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heartlm.report.svg import Markup, Scale, drawing, group, line, path_of, tag, text, tick_label, x_axis, y_axis
from heartlm.scaling.equations import Interval

WIDTH, HEIGHT = 400, 232
LEFT, TOP, BOTTOM = 44, 22, 36
LABEL_HEIGHT = 14
MAX_POINTS = 400
"""Maximum number of points of a curve; longer curves are drawn as means of this number of equal segments."""


@dataclass(frozen=True)
class Series:
    """One curve.

    Attributes:
        name: name, written at the end of the curve.
        steps: x values, `[num_points]`.
        values: y values, `[num_points]`.
        class_name: CSS class, which sets the colour.
        dots: whether points are marked and show their values on hover.
        joined: whether a line joins the points.
        intervals: intervals of the points, drawn as whiskers, `[num_points]` or empty.
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    class_name: str = "accent"
    dots: bool = False
    joined: bool = True
    intervals: Sequence[Interval] = ()

    @classmethod
    def measured(cls, name: str, points: Sequence[tuple[float, Interval]], tone: int) -> Series:
        """Return the curve of measurements with intervals, in one of eight tones; higher numbers wrap around."""
        steps, intervals = [step for step, _ in points], [value for _, value in points]
        values = [each.value for each in intervals]
        return cls(name, steps, values, f"tone-{tone % 8}", dots=True, intervals=intervals)


def thinned(steps: Sequence[float], values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Return the curve, or the means of `MAX_POINTS` equal segments if it has more points."""
    if len(steps) <= MAX_POINTS:
        return steps, values
    parts = [np.array_split(np.asarray(each, dtype=float), MAX_POINTS) for each in (steps, values)]
    means = [[float(stretch.mean()) for stretch in each] for each in parts]
    return means[0], means[1]


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    unit: str = "",
    log: bool = False,
    from_zero: bool = False,
    along: str = "step",
    ticks: Sequence[float] = (),
) -> Markup | None:
    """Draw the curves that have points; return None if none has.

    Args:
        series: curves; the last is drawn on top.
        title: title of the y axis, written above it; also the label for screen readers.
        unit: unit, written after the title.
        log: use a logarithmic y axis if all values are positive.
        from_zero: start the y axis at 0.
        along: title of the x axis.
        ticks: ticks of a logarithmic x axis, drawn where curves have points; by default it is linear and starts at 0.
    """
    curves = [each for each in series if len(each.steps)]
    if not curves:
        return None
    right = WIDTH - 14 - max(6.4 * len(each.name) for each in curves)
    steps = [step for each in curves for step in each.steps]
    x = _scale(steps, LEFT, right, log=bool(ticks), from_zero=not ticks)
    values = [value for each in curves for value in each.values]
    y = _scale(values, HEIGHT - BOTTOM, TOP, log=log and min(values) > 0, from_zero=from_zero)
    names = spread([y(thinned(each.steps, each.values)[1][-1]) + 3.5 for each in curves], LABEL_HEIGHT)
    lower = max(0.0, LABEL_HEIGHT - min(names))  # distance of the topmost name above the drawing
    x_ticks = [tick for tick in ticks if tick in steps] or x.ticks(4)
    return drawing(
        WIDTH,
        HEIGHT,
        f"{title} by {along}",
        y_axis(x, y, f"{title}, {unit}" if unit else title, 4),
        x_axis(x, y.first, [(tick, tick_label(tick)) for tick in x_ticks], along),
        *(_curve(each, x, y, along) for each in curves),
        *(
            text(x.last + 7, place + lower, each.name, class_=f"end-label fill-{each.class_name}")
            for each, place in zip(curves, names, strict=True)
        ),
    )


def _scale(values: Sequence[float], first: float, last: float, *, log: bool = False, from_zero: bool = False) -> Scale:
    low, high = min(values), max(values)
    if from_zero:
        low = min(low, 0.0)
    if high <= low:
        low, high = (low / 1.5, high * 1.5) if log else (low - 0.5, high + 0.5)
    if log:
        return Scale(low / 1.05, high * 1.05, first, last, log=True)
    margin = 0.04 * (high - low)
    return Scale(low - (0 if from_zero and low == 0 else margin), high + (0 if first < last else margin), first, last)


def _curve(series: Series, x: Scale, y: Scale, along: str) -> Markup:
    steps, values = thinned(series.steps, series.values)
    xs, ys = [x(step) for step in steps], [y(value) for value in values]
    parts = []
    if series.joined:
        parts.append(tag("path", d=path_of(xs, ys), class_=f"curve stroke-{series.class_name}"))
    for place, each in zip(xs, series.intervals, strict=False):
        if each.low is not None and each.high is not None:
            low, high = (min(max(y(end), y.last), y.first) for end in (each.low, each.high))
            parts.append(line(place, low, place, high, class_=f"interval stroke-{series.class_name}"))
    if (series.dots and len(steps) <= 60) or len(steps) == 1:
        parts += [
            tag(
                "circle",
                tag("title", f"{series.name}: {value:.4g} at {along} {step:g}"),
                cx=cx,
                cy=cy,
                r=2.6,
                class_=f"dot fill-{series.class_name}",
            )
            for cx, cy, step, value in zip(xs, ys, steps, values, strict=True)
        ]
    return group(*parts)


def spread(places: Sequence[float], distance: float) -> list[float]:
    """Move labels apart to at least `distance` between neighbours, in the same order; `[num_labels]`."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for _ in range(20 * len(places)):
        for above, below in itertools.pairwise(order):
            overlap = distance - (moved[below] - moved[above])
            if overlap > 0:
                moved[above] -= overlap / 2
                moved[below] += overlap / 2
    return moved
