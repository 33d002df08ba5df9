"""Charts of a study as SVG: curves over ranks or CPUs with whiskers, the ideal, others' marks, and where time goes.

Points carry their words in `data-tip`, curves their window in `data-window`: the page's script shows and picks by them,
and without a script the words are titles.
"""

from __future__ import annotations

from collections.abc import Sequence

from heartlm.report.line_chart import LABEL_HEIGHT, spread
from heartlm.report.numbers import percent, plural, significant
from heartlm.report.scaling_model import Chart, Curve, Mark
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
    x_grid,
    y_axis,
)
from heartlm.scaling.cell import PARTS
from heartlm.scaling.table import CellRow

WIDTH, HEIGHT = 420, 260
LEFT, TOP, BOTTOM, RIGHT = 46, 24, 38, 74
NUM_TONES = 8
PART_WORDS = {
    "data": "waiting for data",
    "compute": "forward and backward",
    "exposed_communication": "exposed communication",
    "straggler": "waiting for a slower rank",
    "optimizer": "the optimiser",
    "other": "all else",
}


def curves_chart(chart: Chart) -> Markup:
    """Draw a chart."""
    last = max(1, len(chart.x_labels) - 1)
    x = Scale(-0.12 * last, last * 1.06, LEFT, WIDTH - RIGHT)
    marks = [*chart.published, *chart.ceilings]
    values = [0.0, *chart.ideal, *(mark.value for mark in marks)]
    values += [point.value.value for curve in chart.curves for point in curve.points]
    high, low = max(values), min(values)
    margin = 0.08 * ((high - low) or 1.0)
    y = Scale(low - (margin if low < 0 else 0), high + margin, HEIGHT - BOTTOM, TOP)
    title = f"{chart.title}, {chart.unit}" if chart.unit else chart.title
    ends = spread([y(curve.points[-1].value.value) + 3.5 for curve in chart.curves], LABEL_HEIGHT - 1)
    return drawing(
        WIDTH,
        HEIGHT,
        f"{chart.title} against {chart.x_title}, {chart.about}",
        y_axis(x, y, f"{title} – {chart.about}"),
        x_axis(x, y.first, enumerate(chart.x_labels), chart.x_title),
        *([_ideal(chart, x, y)] if chart.ideal else []),
        *(_ceiling(mark, x, y) for mark in chart.ceilings),
        *(text(x(each.place) + 11, y(each.value) + 4, "machine allows", class_="tick") for each in chart.ceilings[:1]),
        *(_curve(curve, x, y) for curve in chart.curves),
        *(_published(mark, x, y, chart) for mark in chart.published),
        *(
            _of_curve(curve, text(x.last + 7, end, curve.name, class_="end-label"))
            for curve, end in zip(chart.curves, ends, strict=True)
        ),
    )


def _of_curve(curve: Curve, *parts: Markup) -> Markup:
    """A group with the colour of a curve, which the page hides with its window."""
    return group(*parts, class_=f"series tone-{curve.tone % NUM_TONES}", data_window=curve.window)


def _ideal(chart: Chart, x: Scale, y: Scale) -> Markup:
    places = [x(place) for place in range(len(chart.ideal))]
    heights = [y(value) for value in chart.ideal]
    near = [each[0] + (each[min(1, len(each) - 1)] - each[0]) / 4 for each in (places, heights)]
    words = text(near[0], near[1] - 6, "ideal", class_="tick", text_anchor="end")
    return group(tag("path", d=path_of(places, heights), class_="ideal"), words)


def _ceiling(mark: Mark, x: Scale, y: Scale) -> Markup:
    place, height = x(mark.place), y(mark.value)
    dash = line(place - 9, height, place + 9, height, class_="ceiling")
    return group(dash, _target(place, height, mark.words))


def _published(mark: Mark, x: Scale, y: Scale, chart: Chart) -> Markup:
    """A diamond; the lowest at a place is named, or their names would cover each other."""
    place, height = x(mark.place), y(mark.value)
    corners = f"M{place:.1f} {height - 5:.1f}l5 5l-5 5l-5 -5z"
    parts = [tag("path", d=corners, class_="published")]
    if mark.value == min(other.value for other in chart.published if other.place == mark.place):
        parts.append(text(place - 9, height + 4.5, "published (A100)", class_="tick", text_anchor="end"))
    return group(*parts, _target(place, height, mark.words))


def _target(x: float, y: float, words: str) -> Markup:
    """Something to point at, larger than what is seen."""
    return tag("circle", tag("title", words), cx=x, cy=y, r=8, class_="target", data_tip=words)


def _curve(curve: Curve, x: Scale, y: Scale) -> Markup:
    xs = [x(point.place) for point in curve.points]
    ys = [y(point.value.value) for point in curve.points]
    parts = [tag("path", d=path_of(xs, ys), class_="curve")]
    for point, place, height in zip(curve.points, xs, ys, strict=True):
        if point.value.low is not None and point.value.high is not None:
            low, high = (min(max(y(each), y.last), y.first) for each in (point.value.low, point.value.high))
            parts.append(line(place, low, place, high, class_="whisker"))
        parts.append(tag("circle", cx=place, cy=height, r=3.2, class_="dot"))
        parts.append(_target(place, height, point.words))
    return _of_curve(curve, *parts)


def parts_chart(rows: Sequence[CellRow]) -> Markup:
    """Draw where the time of a step goes, one bar a row; the parts of a bar add up to its step."""
    bar, left = 22, 150
    height = TOP + bar * len(rows) + BOTTOM
    longest = max(sum(row.part_s.values()) for row in rows)
    x = Scale(0.0, 1000 * longest * 1.04, left, WIDTH * 2 - 20)
    parts = [text(left, 11, "Seconds of a mean step, in ms", class_="axis-title")]
    parts.append(x_grid(x, TOP, height - BOTTOM, 6))
    for number, row in enumerate(rows):
        parts.append(_bar(row, TOP + number * bar, bar - 6, x, left))
    return drawing(WIDTH * 2, height, "Where the time of a step goes", *parts)


def _bar(row: CellRow, top: float, thick: float, x: Scale, left: float) -> Markup:
    cell, begin_ms, parts = row.cell, 0.0, []
    step_s = sum(row.part_s.values())
    who = f"{cell.window} · {plural(cell.ranks, 'rank')} × {cell.cpus_per_task}"
    for name in PARTS:
        part_s = max(0.0, row.part_s[name])
        words = f"{who}: {PART_WORDS[name]} {significant(1000 * part_s)} ms, {percent(part_s / step_s)} of a step"
        width = x(begin_ms + 1000 * part_s) - x(begin_ms)
        title = tag("title", words)
        parts.append(rectangle(x(begin_ms), top, width, thick, title, class_=f"part-{name}", data_tip=words))
        begin_ms += 1000 * part_s
    label = text(left - 8, top + thick - 4, who, class_="tick", text_anchor="end")
    return group(label, *parts, data_window=cell.window, class_="series")
