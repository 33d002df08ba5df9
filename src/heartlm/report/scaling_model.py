"""What the figures of a study show, before anybody draws them: curves over ranks or CPUs, marks, an ideal.

    table ─► panels (stage, database, precision, scaling) ─► charts of each figure ─► SVG for the page, PNG for papers

The figures are those of the published study (its numbers 3 to 6), so that the two can be laid side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from heartlm.report.numbers import decimal, plural, significant
from heartlm.scaling.cell import StudyCell
from heartlm.scaling.equations import Interval, efficiency
from heartlm.scaling.reference_marks import EFFICIENCY, SOURCE, SPEEDUP
from heartlm.scaling.table import CellRow, Table, groups

STAGES = {"pretrain": "Pretraining", "finetune": "Fine-tuning"}


@dataclass(frozen=True)
class Point:
    """A value over the x label number `place`, with its interval and the words shown when it is pointed at."""

    place: int
    value: Interval
    words: str


@dataclass(frozen=True)
class Curve:
    """Points that belong together; `tone` counts curves of a chart, `window` is what the page picks them by."""

    name: str
    window: int
    tone: int
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Mark:
    """A value that is no measurement of this study."""

    place: int
    value: float
    words: str


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        title: of the y axis.
        unit: of the y axis.
        about: what all curves have in common.
        x_title: of the x axis.
        x_labels: of its places, equally far apart.
        curves: one a window width.
        ideal: where nothing is lost, at every place; empty where that differs from curve to curve.
        published: marks of others' figures.
        ceilings: what the machine itself allows.
    """

    title: str
    unit: str
    about: str
    x_title: str
    x_labels: tuple[str, ...]
    curves: tuple[Curve, ...]
    ideal: tuple[float, ...] = ()
    published: tuple[Mark, ...] = ()
    ceilings: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Panel:
    """The charts of one stage, database, precision and kind of scaling, by the published figure's number."""

    title: str
    anchor: str
    rows: tuple[CellRow, ...]
    figures: dict[int, tuple[Chart, ...]]


CAPTIONS = {
    3: "Training time against CPUs per rank, one chart a number of ranks (figure 3 of the published study).",
    4: "Training time, and speedup next to the ideal (figure 4 of the published study). Dashes: what independent "
    "trainings reach side by side on these cores, the most this machine allows.",
    5: "Efficiency, the speedup over the number of ranks (figure 5 of the published study).",
    6: "Overhead, the time beyond the ideal (figure 6 of the published study).",
}


def panels_of(table: Table) -> list[Panel]:
    """The panels of a study, in order."""
    found = groups(table.rows, lambda cell: (cell.stage, cell.database, cell.precision, cell.scaling))
    return [_panel(key, tuple(rows)) for key, rows in found.items()]


def _panel(key: tuple[str, str, str, str], rows: tuple[CellRow, ...]) -> Panel:
    stage, database, precision, scaling = key
    title = f"{STAGES[stage]} on {database}"
    title += "" if (precision, scaling) == ("fp32", "strong") else f", {precision}, {scaling} scaling"
    figures: dict[int, tuple[Chart, ...]] = {3: tuple(_over_cpus(rows)), 4: (), 5: (), 6: ()}
    for cpus, slice_ in groups(rows, lambda cell: cell.cpus_per_task).items():
        if any(row.cell.ranks > 1 for row in slice_):
            time, speedups, efficiencies, overhead = _over_ranks(slice_, cpus)
            figures[4] += (time, speedups)
            figures[5] += (efficiencies,)
            figures[6] += (overhead,)
    anchor = "-".join(key).lower()
    return Panel(title, anchor, rows, {number: charts for number, charts in figures.items() if charts})


def _over_cpus(rows: Sequence[CellRow]) -> Iterable[Chart]:
    every = sorted({row.cell.cpus_per_task for row in rows})
    for ranks, slice_ in groups(rows, lambda cell: cell.ranks).items():
        curves = _curves(slice_, every, lambda cell: cell.cpus_per_task, lambda row: row.time_s)
        yield Chart("Training time", "s", plural(ranks, "rank"), "CPUs per rank", tuple(map(str, every)), curves)


def _over_ranks(rows: Sequence[CellRow], cpus: int) -> tuple[Chart, Chart, Chart, Chart]:
    """Training time, speedup, efficiency and overhead against ranks of the same number of CPUs."""
    ranks = sorted({row.cell.ranks for row in rows})
    about, labels = f"{plural(cpus, 'CPU')} per rank", tuple(map(str, ranks))

    def chart(
        title: str,
        unit: str,
        value: Callable[[CellRow], Interval | None],
        **marks: Any,
    ) -> Chart:
        curves = _curves(rows, ranks, lambda cell: cell.ranks, value)
        return Chart(title, unit, about, "ranks", labels, curves, **marks)

    ceilings = [
        Mark(ranks.index(row.cell.ranks), value, f"{row.cell.window}: side by side {value:.2f}x")
        for row in rows
        if row.ceiling is not None
        for value in (row.ceiling.value,)
    ]
    published = {number: value for number, value in SPEEDUP.items() if number > 1}
    of_speedups = {number: efficiency(value, number) for number, value in published.items()}
    efficiency_marks = _published(ranks, of_speedups, "{:g}, of the published speedup")
    efficiency_marks += _published(ranks, EFFICIENCY, "{:g}, best as stated")
    return (
        chart("Training time", "s", lambda row: row.time_s),
        chart(
            "Speedup",
            "x",
            lambda row: row.speedup,
            ideal=tuple(map(float, ranks)),
            ceilings=tuple(ceilings),
            published=_published(ranks, published, "{:g}x"),
        ),
        chart("Efficiency", "", lambda row: row.efficiency, ideal=(1.0,) * len(ranks), published=efficiency_marks),
        chart("Overhead", "s", lambda row: row.overhead_s, ideal=(0.0,) * len(ranks)),
    )


def _curves(
    rows: Sequence[CellRow],
    places: Sequence[int],
    x: Callable[[StudyCell], int],
    value: Callable[[CellRow], Interval | None],
) -> tuple[Curve, ...]:
    """One curve a window; one a bucket size, too, where there are several. One rank has none and begins all of them."""
    windows = sorted({row.cell.window for row in rows})
    curves = []
    for tone, window in enumerate(windows):
        of_window = [row for row in rows if row.cell.window == window]
        caps = sorted({row.cell.bucket_cap_mb for row in of_window if row.cell.ranks > 1}) or [StudyCell.bucket_cap_mb]
        for cap in caps:
            chosen = [row for row in of_window if row.cell.ranks == 1 or row.cell.bucket_cap_mb == cap]
            points = [
                Point(places.index(x(row.cell)), found, _words(row))
                for row in chosen
                if (found := value(row)) is not None
            ]
            name = f"{window}" if len(caps) == 1 else f"{window}, {cap:g} MiB"
            if points:
                curves.append(Curve(name, window, tone, tuple(sorted(points, key=lambda point: point.place))))
    return tuple(curves)


def _published(ranks: Sequence[int], values: dict[int, float], words: str) -> tuple[Mark, ...]:
    return tuple(
        Mark(ranks.index(number), value, f"{words.format(round(value, 3))} ({SOURCE})")
        for number, value in values.items()
        if number in ranks
    )


def _words(row: CellRow) -> str:
    """All that is known of a row, for its points in every chart."""
    nodes = f" on {row.cell.nodes} nodes" if row.cell.nodes > 1 else ""
    cpus = plural(row.cell.cpus_per_task, "CPU")
    words = f"width {row.cell.window}, {plural(row.cell.ranks, 'rank')} × {cpus}{nodes}"
    words += f": {significant(row.time_s.value)} s{between(row.time_s)}"
    if row.speedup is not None and row.efficiency is not None:
        words += f", speedup {row.speedup.value:.2f}x{between(row.speedup)}, efficiency {row.efficiency.value:.2f}"
    if row.efficiency_of_ceiling is not None:
        words += f", {row.efficiency_of_ceiling.value:.2f} of what the machine allows"
    if row.overhead_s is not None:
        words += f", {significant(row.overhead_s.value)} s beyond the ideal{between(row.overhead_s)}"
    return words


def between(interval: Interval, places: int = 2) -> str:
    """The interval in brackets, nothing where there is none."""
    if interval.low is None or interval.high is None:
        return ""
    return f" ({decimal(interval.low, places)} to {decimal(interval.high, places)})"
