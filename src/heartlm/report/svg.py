"""Small SVG library: escaped elements, scales with round ticks, paths and axis labels.

Drawings have no colours, only class names; the style sheet of the page sets the colours for light mode, dark mode and
print. All lengths are in units of the drawing's view box.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


class Markup(str):
    """Text that is already markup; templates insert it unescaped."""

    def __html__(self) -> str:
        return self


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """Return an element; children that are not `Markup` are escaped; `class_` stands for `class`, `_` for `-`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(child if isinstance(child, Markup) else html.escape(child) for child in children)
    return Markup(f"<{name}{written}>{inside}</{name}>")


def group(*children: str, **attributes: object) -> Markup:
    """Return a `<g>` element with `children`."""
    return tag("g", *children, **attributes)


def text(x: float, y: float, words: str, **attributes: object) -> Markup:
    """Return a text at a position."""
    return tag("text", words, x=x, y=y, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> Markup:
    """Return a straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def rectangle(x: float, y: float, width: float, height: float, *children: str, **attributes: object) -> Markup:
    """Return a rectangle; a `<title>` child is its hover text."""
    return tag("rect", *children, x=x, y=y, width=max(width, 0), height=max(height, 0), **attributes)


def drawing(
    width: float, height: float, label: str, *children: str, class_: str = "chart", **attributes: object
) -> Markup:
    """Return an `<svg>` with the given view box; `label` is the description for screen readers."""
    box = f"0 0 {_plain(width)} {_plain(height)}"
    return tag("svg", *children, viewBox=box, role="img", aria_label=label, class_=class_, **attributes)


def path_of(xs: Sequence[float] | Floats, ys: Sequence[float] | Floats, *, decimals: int = 1) -> str:
    """Return the `d` attribute of a path through `[num_points]` points, in short relative steps that do not drift."""
    unit = 10**decimals
    places = np.rint(np.array([xs, ys], np.float64).T * unit).astype(np.int64)
    if not len(places):
        return ""
    steps = np.diff(places, axis=0).ravel().tolist()
    written = {step: f"{step / unit:g}" for step in set(steps)}  # a trace has thousands of steps of a few lengths
    start = f"M{places[0, 0] / unit:g} {places[0, 1] / unit:g}"
    return f"{start}l{' '.join(map(written.__getitem__, steps))}" if steps else start


@dataclass(frozen=True)
class Scale:
    """Map from values `start`..`stop` to positions `first`..`last`, linear or logarithmic."""

    start: float
    stop: float
    first: float
    last: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of `value`."""
        if self.log:
            share = math.log(value / self.start) / math.log(self.stop / self.start)
        else:
            share = (value - self.start) / (self.stop - self.start)
        return self.first + share * (self.last - self.first)

    def ticks(self, num_wanted: int = 5) -> list[float]:
        """Return about `num_wanted` round values within the scale."""
        if self.log:
            return self._log_ticks(num_wanted)
        step = _round_step((self.stop - self.start) / max(num_wanted, 1))
        lowest, highest = math.ceil(self.start / step - 1e-9), math.floor(self.stop / step + 1e-9)
        return [round(index * step, 12) for index in range(lowest, highest + 1)]

    def _log_ticks(self, num_wanted: int) -> list[float]:
        decades = range(math.floor(math.log10(self.start)), math.ceil(math.log10(self.stop)) + 1)
        ticks: list[float] = []
        for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
            ticks = [d * 10**k for k in decades for d in digits if self.start <= d * 10**k <= self.stop * (1 + 1e-9)]
            if len(ticks) >= min(num_wanted, 3):
                break
        return ticks


def tick_label(value: float) -> str:
    """Format a tick value: 0.5, 20, 12k, 1e-4."""
    if value and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e−").replace("e-", "e−")
    if abs(value) >= 10_000:
        return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k"
    return f"{value:g}".replace("-", "−")


def y_axis(x: Scale, y: Scale, title: str, num_ticks: int = 5) -> Markup:
    """Draw ticks at round values of `y` with grid lines across the chart, and the title of the axis above them."""
    parts = [text(x.first, y.last - 12, title, class_="axis-title")]
    for tick in y.ticks(num_ticks):
        parts.append(line(x.first, y(tick), x.last, y(tick), class_="grid"))
        parts.append(text(x.first - 6, y(tick) + 3.5, tick_label(tick), class_="tick", text_anchor="end"))
    return group(*parts)


def x_axis(x: Scale, top: float, ticks: Iterable[tuple[float, str]], title: str) -> Markup:
    """Draw a line at `top` with `ticks`, values of `x` and their labels, and the title of the axis below."""
    parts = [line(x.first, top, x.last, top, class_="axis")]
    for tick, label in ticks:
        parts.append(line(x(tick), top, x(tick), top + 4, class_="axis"))
        parts.append(text(x(tick), top + 16, label, class_="tick", text_anchor="middle"))
    return group(*parts, text(x.last, top + 32, title, class_="tick", text_anchor="end"))


def x_grid(x: Scale, top: float, bottom: float, num_ticks: int = 5) -> Markup:
    """Draw round values of `x` with vertical grid lines and labels below."""
    parts = []
    for tick in x.ticks(num_ticks):
        parts.append(line(x(tick), top, x(tick), bottom, class_="grid"))
        parts.append(text(x(tick), bottom + 16, tick_label(tick), class_="tick", text_anchor="middle"))
    return group(*parts)


def _round_step(rough: float) -> float:
    power = 10 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return (
        next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
        if rough > 0
        else 1.0
    )


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
