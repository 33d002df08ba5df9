"""Forest plots of scores: the model next to its baselines, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping

from heartlm.report.numbers import Score
from heartlm.report.svg import Markup, Scale, drawing, group, line, rectangle, tag, text, x_grid

WIDTH = 400
ROW = 15
MARKS = ("accent", "grey-1", "grey-2", "grey-3", "grey-4")


def forest_chart(rows: Mapping[str, Mapping[str, Score]], *, label: str) -> Markup | None:
    """Draw scores between 0 and 1 with their intervals.

    Args:
        rows: for each row, such as a beat class, the scores by method; the first method is the model.
        label: description of the drawing, for screen readers.

    Returns:
        The drawing, or None if no row has a score.
    """
    methods = list(dict.fromkeys(method for row in rows.values() for method in row))
    if not any(score.value is not None for row in rows.values() for score in row.values()):
        return None
    top, gap = 18 + 16 * math.ceil(len(methods) / 2), 12
    pitch = ROW * len(methods) + gap
    height = top + pitch * len(rows) + 24
    x = Scale(0, 1, 76, WIDTH - 14)
    parts = [x_grid(x, top - 6, height - 22)]
    for place, method in enumerate(methods):
        left, upper = 12 + 196 * (place % 2), 10 + 16 * (place // 2)
        parts += [_mark(left, upper, place), text(left + 11, upper + 4, method, class_="tick")]
    for number, (name, row) in enumerate(rows.items()):
        y = top + number * pitch
        parts.append(text(64, y + pitch / 2, name, class_="row-label", text_anchor="end"))
        if number:
            parts.append(line(8, y - 1, WIDTH - 14, y - 1, class_="grid"))
        parts += [
            _interval(row[method], x, y + gap / 2 + ROW * (0.5 + place), place, f"{name}, {method}")
            for place, method in enumerate(methods)
            if method in row
        ]
    return drawing(WIDTH, height, label, *parts)


def _interval(score: Score, x: Scale, y: float, place: int, name: str) -> Markup:
    if score.value is None:
        return text(x.first + 4, y + 4, "–", class_="tick")
    parts = [tag("title", f"{name}: {score.text} {score.interval and f'({score.interval})'}".strip())]
    if score.low is not None and score.high is not None:
        parts.append(line(x(score.low), y, x(score.high), y, class_=f"whisker stroke-{MARKS[place % len(MARKS)]}"))
    parts.append(_mark(x(score.value), y, place))
    return group(*parts)


def _mark(x: float, y: float, place: int) -> Markup:
    """Draw the model as a filled disc, and each baseline as a grey mark of another shape."""
    colour = MARKS[place % len(MARKS)]
    if place % 4 == 0:
        return tag("circle", cx=x, cy=y, r=4.5, class_=f"fill-{colour}")
    if place % 4 == 1:
        return rectangle(x - 3.4, y - 3.4, 6.8, 6.8, class_=f"fill-{colour}")
    corners = ((0, -4.6), (4.6, 0), (0, 4.6), (-4.6, 0)) if place % 4 == 2 else ((-4.4, 3.6), (4.4, 3.6), (0, -4.4))
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return tag("polygon", points=points, class_=f"fill-{colour}")
