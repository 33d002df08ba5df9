"""Charts of a study as SVG: curves over ranks or CPUs with whiskers, the ideal, others' marks, and where time goes.

Points carry their words in `data-tip`, curves their window in `data-window`: the page's script shows and picks by them,
and without a script the words are titles.
"""

from __future__ import annotations

from collections.abc import Sequence

from heartlm.report.line_chart import LABEL_HEIGHT, spread
from heartlm.report.numbers import percent, plural, significant
from heartlm.report.scaling_model import Chart, Curve
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
    parts = [y_axis(x, y, f"{title} – {chart.about}"), x_axis(x, y.first, enumerate(chart.x_labels), chart.x_title)]
    if chart.ideal:
        places, heights = [x(place) for place in range(len(chart.ideal))], [y(value) for value in chart.ideal]
        near = [each[0] + (each[min(1, len(each) - 1)] - each[0]) / 4 for each in (places, heights)]
        words = text(near[0], near[1] - 6, "ideal", class_="tick", text_anchor="end")
        parts.append(group(tag("path", d=path_of(places, heights), class_="ideal"), words))
    for mark in chart.ceilings:
        place, height = x(mark.place), y(mark.value)
        dash = line(place - 9, height, place + 9, height, class_="ceiling")
        parts.append(group(dash, _target(place, height, mark.words)))
    for mark in chart.ceilings[:1]:
        parts.append(text(x(mark.place) + 11, y(mark.value) + 4, "machine allows", class_="tick"))
    parts += [_curve(curve, x, y) for curve in chart.curves]
    for mark in chart.published:
        place, height = x(mark.place), y(mark.value)
        diamond = tag("path", d=f"M{place:.1f} {height - 5:.1f}l5 5l-5 5l-5 -5z", class_="published")
        # the lowest at a place is named, or their names would cover each other
        is_lowest = mark.value == min(other.value for other in chart.published if other.place == mark.place)
        name = text(place - 9, height + 4.5, "published (A100)" if is_lowest else "", class_="tick", text_anchor="end")
        parts.append(group(diamond, name, _target(place, height, mark.words)))
    for curve, end in zip(chart.curves, ends, strict=True):
        parts.append(_of_curve(curve, text(x.last + 7, end, curve.name, class_="end-label")))
    return drawing(WIDTH, HEIGHT, f"{chart.title} against {chart.x_title}, {chart.about}", *parts)


def _of_curve(curve: Curve, *parts: Markup) -> Markup:
    """A group with the colour of a curve, which the page hides with its window."""
    return group(*parts, class_=f"series tone-{curve.tone % NUM_TONES}", data_window=curve.window)


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
        top, thick, begin_ms, step_s = TOP + number * bar, bar - 6, 0.0, sum(row.part_s.values())
        who = f"{row.cell.window} · {plural(row.cell.ranks, 'rank')} × {row.cell.cpus_per_task}"
        drawn = [text(left - 8, top + thick - 4, who, class_="tick", text_anchor="end")]
        for name in PARTS:
            part_s = max(0.0, row.part_s[name])
            words = f"{who}: {PART_WORDS[name]} {significant(1000 * part_s)} ms, {percent(part_s / step_s)} of a step"
            width, title = x(begin_ms + 1000 * part_s) - x(begin_ms), tag("title", words)
            drawn.append(rectangle(x(begin_ms), top, width, thick, title, class_=f"part-{name}", data_tip=words))
            begin_ms += 1000 * part_s
        parts.append(group(*drawn, data_window=row.cell.window, class_="series"))
    return drawing(WIDTH * 2, height, "Where the time of a step goes", *parts)
