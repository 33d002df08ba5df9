"""Charts as SVG: curves over training steps, ranks or time, with intervals.

The name of each curve is written at its end instead of in a legend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heartlm.report.numbers import Interval
from heartlm.report.render import Floats, Markup, path_of, render

WIDTH, HEIGHT = 400, 232
LEFT, TOP, BOTTOM = 44, 22, 36
LABEL_HEIGHT = 14.0
MAX_POINTS = 400
"""Maximum number of points of a curve; longer curves are drawn as means of this number of equal segments."""
MAX_DOTS = 60
"""Maximum number of points of a curve that are marked."""


@dataclass(frozen=True)
class Scale:
    """Linear map from values `start`..`stop` to positions `first`..`last`."""

    start: float
    stop: float
    first: float
    last: float

    def __call__(self, value: Any) -> Any:
        """Return the position of a value, or of an array of values."""
        return self.first + (value - self.start) / (self.stop - self.start) * (self.last - self.first)

    def ticks(self, num_wanted: int = 5) -> list[float]:
        """Return about `num_wanted` round values within the scale."""
        rough = (self.stop - self.start) / num_wanted
        power = 10 ** math.floor(math.log10(rough))
        # A step that fits exactly may be computed a little too small.
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
        lowest, highest = math.ceil(self.start / step - 1e-9), math.floor(self.stop / step + 1e-9)
        return [round(index * step, 12) for index in range(lowest, highest + 1)]


def tick_label(value: float) -> str:
    """Format a tick value: 0.5, 20, 12k, 1e-4."""
    if value and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e−").replace("e-", "e−")
    if abs(value) >= 10_000:
        return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k"
    return f"{value:g}".replace("-", "−")


def draw(
    label: str, width: float, bottom: float, x: Scale, x_ticks: Sequence[tuple[float, str]], x_title: str, **parts: Any
) -> Markup:
    """Draw a chart.

    Args:
        label: description for screen readers.
        width: width of the drawing.
        bottom: position of the x axis.
        x: scale of the x axis.
        x_ticks: values of `x` with their labels.
        x_title: title of the x axis.
        parts: `y`, scale of the y axis, and `y_title`; `paths`, class and `d` attribute of each; `labels`, position,
            class, text and title of each; `dots`, position, class and title of each; `class_` of the drawing.
    """
    y = parts.get("y")
    placed_ticks = [(float(x(value)), words) for value, words in x_ticks]
    grid = [] if y is None else [(float(y(value)), tick_label(value)) for value in y.ticks()]
    axes = {"x": x, "x_ticks": placed_ticks, "x_title": x_title, "grid": grid}
    return render("chart.svg", label=label, width=width, bottom=bottom, **(parts | axes))


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


def thinned(values: Sequence[float]) -> Floats:
    """Return the values, or the means of `MAX_POINTS` equal segments if there are more."""
    parts = np.array_split(np.asarray(values, np.float64), min(len(values), MAX_POINTS))
    return np.array([part.mean() for part in parts])


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    from_zero: bool = False,
    along: str = "step",
    ticks: Sequence[float] = (),
    names: Sequence[str] = (),
) -> Markup | None:
    """Draw the curves that have points; return None if none has.

    Args:
        series: curves; the last is drawn on top.
        title: title of the y axis, written above it; also the label for screen readers.
        from_zero: start the y axis at 0.
        along: title of the x axis.
        ticks: ticks of a logarithmic x axis, drawn where curves have points; by default it is linear and starts at 0.
        names: labels of the x values 1, 2, …, in place of numbers.
    """
    curves = [each for each in series if len(each.steps)]
    if not curves:
        return None
    steps = [step for each in curves for step in each.steps]
    to_axis = np.log2 if ticks else np.asarray  # ranks double from point to point
    right = WIDTH - 14 - max(6.4 * len(each.name) for each in curves)
    x = _scale(to_axis(np.array(steps, np.float64)), LEFT, right, from_zero=not ticks)
    y = _scale([value for each in curves for value in each.values], HEIGHT - BOTTOM, TOP, from_zero=from_zero)
    paths, dots, ends = list[tuple[str, str]](), list[tuple[float, float, str, str]](), list[float]()
    for each in curves:
        at, values = thinned(each.steps), thinned(each.values)
        xs, ys = x(to_axis(at)), y(values)
        if each.joined:
            paths.append((f"curve stroke-{each.class_name}", path_of(xs, ys)))
        ranges = [(left, one.low, one.high) for left, one in zip(xs, each.intervals, strict=False)]
        whiskers = [
            f"M{left:.1f} {min(y(low), y.first):.1f}V{max(y(high), y.last):.1f}"
            for left, low, high in ranges
            if low is not None and high is not None
        ]
        paths.append((f"interval stroke-{each.class_name}", "".join(whiskers)))
        if (each.dots and len(at) <= MAX_DOTS) or len(at) == 1:
            words = [f"{each.name}: {value:.4g} at {along} {step:g}" for step, value in zip(at, values, strict=True)]
            dots += zip(xs.tolist(), ys.tolist(), [each.class_name] * len(at), words, strict=True)
        ends.append(float(ys[-1]) + 3.5)
    tops = spread(ends, LABEL_HEIGHT)
    tops += max(0.0, LABEL_HEIGHT - min(tops))
    numbers = [
        (float(to_axis(tick)), tick_label(tick)) for tick in [tick for tick in ticks if tick in steps] or x.ticks(4)
    ]
    return draw(
        f"{title} by {along}",
        WIDTH,
        HEIGHT - BOTTOM,
        x,
        list(enumerate(names, 1)) or numbers,
        along,
        y=y,
        y_title=title,
        height=HEIGHT,
        paths=paths,
        dots=dots,
        labels=[
            (right + 7, float(top), f"end-label fill-{each.class_name}", each.name)
            for each, top in zip(curves, tops, strict=True)
        ],
    )


def _scale(values: Sequence[float] | Floats, first: float, last: float, *, from_zero: bool) -> Scale:
    low, high = float(min(values)), float(max(values))
    low = min(low, 0.0) if from_zero else low
    if high <= low:
        low, high = low - 0.5, high + 0.5
    margin = 0.04 * (high - low)
    return Scale(low - (0 if from_zero and low == 0 else margin), high + margin, first, last)


def spread(places: Sequence[float], distance: float) -> Floats:
    """Move labels apart to at least `distance` between neighbours, in the same order, as little as possible."""
    order = np.argsort(places, kind="stable")
    from scipy.optimize import isotonic_regression  # slow to import

    # Without their distances, labels may touch but not change places: the nearest such order is a monotonic regression.
    shift = distance * np.arange(len(places))
    moved = np.empty(len(places))
    moved[order] = isotonic_regression(np.asarray(places)[order] - shift).x + shift
    return moved
