"""The figures of a study as PNG, numbered as those of the published study: one column a panel and CPU or rank count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heartlm.errors import needs
from heartlm.files import atomic_file
from heartlm.report.figures import DPI
from heartlm.report.scaling_model import Chart, Curve, Panel

TONES = ("#0b5cad", "#1b7f9e", "#17797c", "#4d8a3a", "#b98500", "#c4612a", "#98041d", "#7c3bb0")
NAMES = {3: "figure-3-time-cpus", 4: "figure-4-time-speedup", 5: "figure-5-efficiency", 6: "figure-6-overhead"}


def save_scaling_figures(panels: Sequence[Panel], folder: Path) -> list[Path]:
    """Draw the figures that the panels have into `folder`; return the files written.

    Raises:
        HeartlmError: matplotlib is not installed, or the folder cannot be written.
    """
    figures = {
        name: [(panel.title, chart) for panel in panels for chart in panel.figures.get(number, ())]
        for number, name in NAMES.items()
    }
    return save_charts({name: drawn for name, drawn in figures.items() if drawn}, folder)


def save_charts(figures: Mapping[str, Sequence[tuple[str, Chart]]], folder: Path) -> list[Path]:
    """Draw figures, each of some charts with their titles, into `folder`; return the files written.

    Raises:
        HeartlmError: matplotlib is not installed, or the folder cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise needs("report", "matplotlib") from None
    written = []
    for name, drawn in figures.items():
        path = folder / f"{name}.png"
        with atomic_file(path, "wb") as stream:
            _figure(Figure, drawn).savefig(stream, format="png", dpi=DPI)
        written.append(path)
    return written


def _figure(figure_class: Any, drawn: Sequence[tuple[str, Chart]]) -> Any:
    columns = min(2, len(drawn))
    rows = -(-len(drawn) // columns)
    figure = figure_class(figsize=(5.4 * columns, 3.6 * rows), layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False).flat
    for (title, chart), axes in zip(drawn, every, strict=False):
        _draw(axes, title, chart)
    for axes in list(every)[len(drawn) :]:
        axes.set_axis_off()
    return figure


def _draw(axes: Any, title: str, chart: Chart) -> None:
    axes.set_title(f"{title}, {chart.about}", fontsize=9)
    axes.set_xticks(range(len(chart.x_labels)), chart.x_labels)
    axes.set_xlim(-0.3, len(chart.x_labels) - 0.7)
    axes.set(xlabel=chart.x_title, ylabel=f"{chart.title}, {chart.unit}" if chart.unit else chart.title)
    if chart.ideal:
        axes.plot(range(len(chart.ideal)), chart.ideal, "--", color="#8c959f", linewidth=1, label="ideal")
    for curve in chart.curves:
        _curve(axes, curve)
    for number, mark in enumerate(chart.ceilings):
        label = "machine allows" if number == 0 else None
        axes.plot(mark.place, mark.value, "_", color="#1b2026", alpha=0.5, markersize=14, label=label)
    for number, mark in enumerate(chart.published):
        label = "published (A100), not measured here" if number == 0 else None
        axes.plot(mark.place, mark.value, "D", markerfacecolor="white", color="#1b2026", markersize=5, label=label)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.grid(axis="y", color="#d8dee4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=6.5, frameon=False, ncols=2)


def _curve(axes: Any, curve: Curve) -> None:
    colour = TONES[curve.tone % len(TONES)]
    places = [point.place for point in curve.points]
    axes.plot(
        places, [point.value.value for point in curve.points], "o-", color=colour, markersize=3.5, label=curve.name
    )
    for point in curve.points:
        if point.value.low is not None:
            axes.plot([point.place] * 2, [point.value.low, point.value.high], color=colour, alpha=0.35, linewidth=1)
