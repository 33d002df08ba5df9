"""Figures of tables: one PNG per bench, with a panel for each table that has a chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from bench.measure import BenchTable, Cell, Chart, shown
from heartlm.errors import needs
from heartlm.storage.atomic import atomic_file

COLOURS = ("#0b5cad", "#c4581a", "#3f8f5f", "#7d5ba6", "#8c959f", "#b8860b", "#2a9da8", "#a33b4f")
MARKERS = "osD^vPX*"
WIDE, TITLE_LETTERS = 10, 88
BAR_INCHES, LINES_INCHES, WIDTH_INCHES = 0.26, 3.6, 7.6


def save_figure(tables: Sequence[BenchTable], path: Path) -> None:
    """Draw the tables that have a chart, one below the other, into a PNG at `path`.

    Raises:
        HeartlmError: matplotlib is not installed, or the file cannot be written.
    """
    panels = [(table, chart) for table in tables if table.chart for chart in (table.chart, *table.more_charts)]
    heights = [_height(table, chart) for table, chart in panels]
    with needs("dev"):
        from matplotlib.figure import Figure
    figure: Any = Figure((WIDTH_INCHES, sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for (table, chart), each in zip(panels, axes, strict=True):
        (_lines if chart.kind == "lines" else _bars)(each, table, chart)
        only = f"\n{chart.only[0]} {shown(chart.only[1])}" if chart.only else ""
        each.set_title(fill(table.title, TITLE_LETTERS) + only, loc="left", fontsize=8)
        each.grid(axis="both" if chart.kind == "lines" else "x", color="#d8dee4", linewidth=0.6)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
    with atomic_file(path, "wb") as stream:
        figure.savefig(stream, format="png", dpi=160)


def _height(table: BenchTable, chart: Chart) -> float:
    if chart.kind == "lines":
        return LINES_INCHES
    beside = 1 if chart.kind == "stack" else len(chart.y)
    return 1.3 + BAR_INCHES * len(_drawn(table, chart)) * (0.6 + 0.4 * beside)


def _drawn(table: BenchTable, chart: Chart) -> list[dict[str, Cell]]:
    """The rows that have a number to draw, as columns by name."""
    rows = [dict(zip(table.columns, cells, strict=True)) for cells in table.rows]
    wanted = [each for each in rows if chart.only is None or each[chart.only[0]] == chart.only[1]]
    return [each for each in wanted if any(isinstance(each[name], int | float) for name in chart.y)]


def _number(cell: Cell) -> float:
    return float(cell) if isinstance(cell, int | float) else 0.0


def _bars(axes: Any, table: BenchTable, chart: Chart) -> None:
    rows = _drawn(table, chart)
    stacked, num = chart.kind == "stack", len(chart.y)
    ends = [0.0] * len(rows)
    for index, name in enumerate(chart.y):
        values = [_number(each[name]) for each in rows]
        thickness = 0.75 if stacked else 0.8 / num
        places = [place + (0 if stacked else (index - (num - 1) / 2) * thickness) for place in range(len(rows))]
        begins = list(ends) if stacked else [0.0] * len(rows)
        axes.barh(places, values, thickness, left=begins, color=COLOURS[index % len(COLOURS)], label=name)
        ends = [end + value for end, value in zip(ends, values, strict=True)] if stacked else ends
    axes.set_yticks(range(len(rows)), [" · ".join(shown(each[name]) for name in chart.x) for each in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(chart.label, fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    if num > 1:
        axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0, -2.4 / (len(rows) + 3)), ncols=num)


def _lines(axes: Any, table: BenchTable, chart: Chart) -> None:
    rows = _drawn(table, chart)
    kinds = list(dict.fromkeys(shown(each[chart.by]) if chart.by else "" for each in rows))
    curves = [(kind, name) for kind in kinds for name in chart.y]
    for index, (kind, name) in enumerate(curves):
        points = [
            (_number(each[chart.x[0]]), _number(each[name]))
            for each in rows
            if (not chart.by or shown(each[chart.by]) == kind) and isinstance(each[name], int | float)
        ]
        label = ", ".join(word for word in (kind, name if len(chart.y) > 1 else "") if word)
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        axes.plot(*zip(*sorted(points), strict=True), color=colour, marker=marker, markersize=3.5, label=label)
    if chart.log:
        ticks = sorted({_number(each[chart.x[0]]) for each in rows})
        heights = [_number(each[name]) for each in rows for name in chart.y if _number(each[name]) > 0]
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        if heights and max(heights) > WIDE * min(heights):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
    axes.set_xlabel(chart.x[0], fontsize=8)
    axes.set_ylabel(chart.label, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=6.5, frameon=False)
