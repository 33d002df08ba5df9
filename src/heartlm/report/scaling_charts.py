"""Charts of a study as SVG: curves over ranks or CPUs with whiskers, the ideal, others' marks, and where time goes.

Points carry their words in `data-tip`, curves their window in `data-window`: the page's script shows and picks by them,
and without a script the words are titles.
"""

from __future__ import annotations

from collections.abc import Sequence

from heartlm.report.line_chart import LABEL_HEIGHT, spread
from heartlm.report.numbers import percent, significant
from heartlm.report.scaling_model import Chart, Curve, Mark, plural
from heartlm.report.svg import Markup, Scale, drawing, group, line, path_of, rectangle, tag, text, tick_label
from heartlm.scaling.cell import PARTS
from heartlm.scaling.table import Row

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
    x, y = _x_scale(chart), _y_scale(chart)
    return drawing(
        WIDTH,
        HEIGHT,
        f"{chart.title} against {chart.x_title}, {chart.about}",
        _axes(chart, x, y),
        *([_ideal(chart, x, y)] if chart.ideal else []),
        *(_ceiling(mark, x, y) for mark in chart.ceilings),
        *(_curve(curve, x, y) for curve in chart.curves),
        *(_published(mark, x, y, chart) for mark in chart.published),
        *_end_labels(chart, x, y),
    )


def _x_scale(chart: Chart) -> Scale:
    last = max(1, len(chart.x_labels) - 1)
    return Scale(-0.12 * last, last * 1.06, LEFT, WIDTH - RIGHT)


def _y_scale(chart: Chart) -> Scale:
    values = [0.0, *chart.ideal, *(mark.value for mark in (*chart.published, *chart.ceilings))]
    values += [point.value.value for curve in chart.curves for point in curve.points]
    high, low = max(values), min(values)
    margin = 0.08 * ((high - low) or 1.0)
    return Scale(low - (margin if low < 0 else 0), high + margin, HEIGHT - BOTTOM, TOP)


def _axes(chart: Chart, x: Scale, y: Scale) -> Markup:
    title = f"{chart.title}, {chart.unit}" if chart.unit else chart.title
    parts = [text(LEFT, 11, f"{title} – {chart.about}", class_="axis-title")]
    for tick in y.ticks(5):
        parts.append(line(LEFT, y(tick), x.last, y(tick), class_="grid"))
        parts.append(text(LEFT - 6, y(tick) + 3.5, tick_label(tick), class_="tick", text_anchor="end"))
    for place, label in enumerate(chart.x_labels):
        parts.append(line(x(place), y.first, x(place), y.first + 4, class_="axis"))
        parts.append(text(x(place), y.first + 16, label, class_="tick", text_anchor="middle"))
    parts.append(line(LEFT, y.first, x.last, y.first, class_="axis"))
    parts.append(text(x.last, HEIGHT - 4, chart.x_title, class_="tick", text_anchor="end"))
    return group(*parts)


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
        parts.append(text(place - 9, height + 4.5, "published", class_="tick", text_anchor="end"))
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
    return group(*parts, class_=f"series tone-{curve.tone % NUM_TONES}", data_window=curve.window)


def _end_labels(chart: Chart, x: Scale, y: Scale) -> list[Markup]:
    wanted = [y(curve.points[-1].value.value) + 3.5 for curve in chart.curves]
    return [
        group(
            text(x.last + 7, place, curve.name, class_="end-label"),
            class_=f"series tone-{curve.tone % NUM_TONES}",
            data_window=curve.window,
        )
        for curve, place in zip(chart.curves, spread(wanted, LABEL_HEIGHT - 1), strict=True)
    ]


def parts_chart(rows: Sequence[Row]) -> Markup:
    """Draw where the time of a step goes, one bar a row; the parts of a bar add up to its step."""
    bar, left = 22, 150
    height = TOP + bar * len(rows) + BOTTOM
    longest = max(sum(row.part_s.values()) for row in rows)
    x = Scale(0.0, 1000 * longest * 1.04, left, WIDTH * 2 - 20)
    parts = [text(left, 11, "Seconds of a mean step, in ms", class_="axis-title")]
    for tick in x.ticks(6):
        parts.append(line(x(tick), TOP, x(tick), height - BOTTOM, class_="grid"))
        parts.append(text(x(tick), height - BOTTOM + 16, tick_label(tick), class_="tick", text_anchor="middle"))
    for number, row in enumerate(rows):
        parts.append(_bar(row, TOP + number * bar, bar - 6, x, left))
    return drawing(WIDTH * 2, height, "Where the time of a step goes", *parts)


def _bar(row: Row, top: float, thick: float, x: Scale, left: float) -> Markup:
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
