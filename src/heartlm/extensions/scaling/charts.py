"""Charts of a study: time, speedup, efficiency and overhead over ranks or CPUs, one curve per window width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from heartlm.extensions.scaling.cell import StudyCell
from heartlm.extensions.scaling.marks import Marks
from heartlm.extensions.scaling.table import CellRow, groups
from heartlm.report.charts import Series, line_chart
from heartlm.report.numbers import Interval
from heartlm.report.render import Markup
from heartlm.system.progress import plural

CAPTIONS = {
    "figure-3-time-cpus": "Training time against CPUs per rank, one chart a number of ranks.",
    "figure-4-time-speedup": "Training time, and speedup next to the ideal. Grey discs: what independent trainings "
    "reach side by side on these cores, the most this machine allows.",
    "figure-5-efficiency": "Efficiency, the speedup over the number of ranks.",
    "figure-6-overhead": "Overhead, the time beyond the ideal.",
}
"""Captions of the figures, by file name."""


def charts_of(rows: Sequence[CellRow], marks: Marks) -> dict[str, list[Markup]]:
    """Return the charts of each figure of one stage, database, precision and scaling mode; omit empty figures."""
    charts: dict[str, list[Markup]] = {name: [] for name in CAPTIONS}

    def add(figure: str, title: str, along: str, curves: Sequence[Series], ticks: Sequence[int]) -> None:
        if chart := line_chart(curves, title=title, from_zero=True, along=along, ticks=ticks):
            charts[figure].append(chart)

    every = sorted({row.cell.cpus_per_task for row in rows})
    for ranks, group in groups(rows, lambda cell: cell.ranks).items():
        curves = _curves(group, lambda cell: cell.cpus_per_task, lambda row: row.time_s)
        add("figure-3-time-cpus", f"Training time, s – {plural(ranks, 'rank')}", "CPUs per rank", curves, every)
    for cpus, group in groups(rows, lambda cell: cell.cpus_per_task).items():
        counts = sorted({row.cell.ranks for row in group})
        if counts == [1]:
            continue
        limits = [(row.cell.ranks, row.ceiling.value) for row in group if row.ceiling is not None]
        speedups = [
            Series("ideal", counts, counts, "ideal"),
            Series("machine allows", *_columns(limits), "grey-2", dots=True, joined=False),
            _marked("of others", marks.speedup, counts),
        ]
        efficiencies = [
            Series("ideal", counts, [1.0] * len(counts), "ideal"),
            _marked("of others", {number: value / number for number, value in marks.speedup.items()}, counts),
            _marked("of others, as stated", marks.efficiency, counts),
        ]
        values: list[tuple[str, str, Callable[[CellRow], Interval | None], list[Series]]] = [
            ("figure-4-time-speedup", "Training time, s", lambda row: row.time_s, []),
            ("figure-4-time-speedup", "Speedup, x", lambda row: row.speedup, speedups),
            ("figure-5-efficiency", "Efficiency", lambda row: row.efficiency, efficiencies),
            ("figure-6-overhead", "Overhead, s", lambda row: row.overhead_s, []),
        ]
        for figure, title, value, references in values:
            curves = [*references, *_curves(group, lambda cell: cell.ranks, value)]
            add(figure, f"{title} – {plural(cpus, 'CPU')} per rank", "ranks", curves, counts)
    return {name: drawn for name, drawn in charts.items() if drawn}


def _curves(
    rows: Sequence[CellRow], x: Callable[[StudyCell], int], value: Callable[[CellRow], Interval | None]
) -> list[Series]:
    """Return one curve per window and way to share it; the one-rank point starts all curves."""
    curves = []
    for tone, (window, in_window) in enumerate(sorted(groups(rows, lambda cell: cell.window).items())):
        sharings = list(groups((row for row in in_window if row.cell.ranks > 1), lambda cell: cell.sharing)) or [""]
        for sharing in sharings:
            chosen = [row for row in in_window if row.cell.ranks == 1 or row.cell.sharing == sharing]
            points = [(x(row.cell), interval) for row in chosen if (interval := value(row)) is not None]
            name = f"{window}" if len(sharings) == 1 else f"{window}, {sharing}"
            steps, intervals = _columns(sorted(points, key=lambda point: point[0]))
            values, colour = [each.value for each in intervals], f"tone-{tone % 8}"
            curves.append(Series(name, steps, values, colour, dots=True, intervals=intervals))
    return curves


def _marked(name: str, values: Mapping[int, float], counts: Sequence[int]) -> Series:
    points = [(number, value) for number, value in values.items() if number in counts and number > 1]
    return Series(name, *_columns(points), "published", dots=True, joined=False)


def _columns(points: Sequence[tuple[int, Any]]) -> tuple[list[int], list[Any]]:
    return [place for place, _ in points], [value for _, value in points]
