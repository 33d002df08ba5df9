"""Figures as files, for those who want a picture rather than a page: PNG, drawn with matplotlib.

Pages draw their own, as SVG; these go with `scores.json`, or next to the table of a study, and into papers and slides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heartlm.errors import needs
from heartlm.files import atomic_file
from heartlm.report.numbers import Score
from heartlm.report.scaling_model import Chart, Curve
from heartlm.report.scores import method_scores, score_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 160
ACCENT, GREYS = "#0b5cad", ("#59636e", "#8c959f", "#b3bac2", "#ced3d9")
MARKERS = "osD^v"
TONES = ("#0b5cad", "#1b7f9e", "#17797c", "#4d8a3a", "#b98500", "#c4612a", "#98041d", "#7c3bb0")


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """An empty figure of a size in inches.

    Raises:
        HeartlmError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise needs("report", "matplotlib") from None
    return Figure(figsize=(width, height), **options)


def save_png(figure: Figure, path: Path) -> Path:
    """Write a figure, atomically; return its path."""
    with atomic_file(path, "wb") as stream:
        figure.savefig(stream, format="png", dpi=DPI)
    return path


def save_score_figures(scores: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the scores of one `scores.json` into `folder` and return the files written.

    `f1.png` has the scores with their intervals next to the baselines'; `confusion.png` the confusion matrix, which
    only beat scores have.

    Raises:
        HeartlmError: matplotlib is not installed, or the folder cannot be written.
    """
    drawn = {"confusion.png": _confusion(scores), "f1.png": _forest(scores)}
    return [save_png(figure, Path(folder) / name) for name, figure in drawn.items() if figure is not None]


def _confusion(scores: Mapping[str, Any]) -> Figure | None:
    block = scores.get("scores") or {}
    matrix = np.array(block.get("confusion") or [], dtype=float)
    labels = list(block.get("confusion_labels") or block.get("classes") or [])
    if not len(labels) or matrix.shape != (len(labels), len(labels)):
        return None
    totals = matrix.sum(axis=1, keepdims=True)
    share = np.divide(matrix, totals, out=np.zeros_like(matrix), where=totals > 0)
    figure = new_figure(4.6, 4.2, layout="constrained")
    axes = figure.subplots()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks(range(len(labels)), labels)
    axes.set(xlabel="the model says", ylabel="reference")
    for (i, j), part in np.ndenumerate(share):
        words = f"{int(matrix[i, j])}\n{100 * part:.1f} %"
        axes.text(j, i, words, ha="center", va="center", fontsize=8, color="white" if part > 0.5 else "black")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return figure


def _forest(scores: Mapping[str, Any]) -> Figure | None:
    rows = score_rows(scores)
    methods = list(method_scores(scores))
    if not any(score.value is not None for row in rows.values() for score in row.values()):
        return None
    figure = new_figure(6.4, 1.1 + 0.2 * len(rows) * (len(methods) + 1), layout="constrained")
    axes = figure.subplots()
    for number, method in enumerate(methods):
        offset = (number - (len(methods) - 1) / 2) * 0.8 / len(methods)
        _draw_method(axes, [row.get(method, Score()) for row in rows.values()], offset, number, method)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(axis="x", color="#d8dee4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def _draw_method(axes: Any, column: list[Score], offset: float, number: int, method: str) -> None:
    known = [(row + offset, score) for row, score in enumerate(column) if score.value is not None]
    heights, scores = [y for y, _ in known], [score for _, score in known]
    colour = ACCENT if number == 0 else GREYS[(number - 1) % len(GREYS)]
    for y, score in known:
        if score.low is not None:
            axes.plot([score.low, score.high], [y, y], color=colour, linewidth=1.4, clip_on=False)
    marker = MARKERS[number % len(MARKERS)]
    values = [score.value for score in scores]
    axes.plot(values, heights, marker, color=colour, markersize=5, label=method, clip_on=False)


def save_charts(figures: Mapping[str, Sequence[tuple[str, Chart]]], folder: Path) -> list[Path]:
    """Draw figures, each of some charts with their titles, into `folder`; return the files written.

    Raises:
        HeartlmError: matplotlib is not installed, or the folder cannot be written.
    """
    written = []
    for name, drawn in figures.items():
        columns = min(2, len(drawn))
        rows = -(-len(drawn) // columns)
        figure = new_figure(5.4 * columns, 3.6 * rows, layout="constrained")
        every = list(figure.subplots(rows, columns, squeeze=False).flat)
        for (title, chart), axes in zip(drawn, every, strict=False):
            _draw_chart(axes, title, chart)
        for axes in every[len(drawn) :]:
            axes.set_axis_off()
        written.append(save_png(figure, folder / f"{name}.png"))
    return written


def _draw_chart(axes: Any, title: str, chart: Chart) -> None:
    axes.set_title(f"{title}, {chart.about}", fontsize=9)
    axes.set_xticks(range(len(chart.x_labels)), chart.x_labels)
    axes.set_xlim(-0.3, len(chart.x_labels) - 0.7)
    axes.set(xlabel=chart.x_title, ylabel=f"{chart.title}, {chart.unit}" if chart.unit else chart.title)
    if chart.ideal:
        axes.plot(range(len(chart.ideal)), chart.ideal, "--", color="#8c959f", linewidth=1, label="ideal")
    for curve in chart.curves:
        _draw_curve(axes, curve)
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


def _draw_curve(axes: Any, curve: Curve) -> None:
    colour = TONES[curve.tone % len(TONES)]
    places = [point.place for point in curve.points]
    axes.plot(
        places, [point.value.value for point in curve.points], "o-", color=colour, markersize=3.5, label=curve.name
    )
    for point in curve.points:
        if point.value.low is not None:
            axes.plot([point.place] * 2, [point.value.low, point.value.high], color=colour, alpha=0.35, linewidth=1)
