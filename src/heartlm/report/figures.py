"""Figures as files, for those who want a picture rather than a page: PNG, drawn with matplotlib.

The page of a run draws its own, as SVG; these go beside `scores.json` and into papers and slides.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.errors import needs
from heartlm.files import atomic_file
from heartlm.report.numbers import Score
from heartlm.report.scores import method_scores, score_rows

DPI = 160
ACCENT, GREYS = "#0b5cad", ("#59636e", "#8c959f", "#b3bac2", "#ced3d9")
MARKERS = "osD^v"


def save_score_figures(scores: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the scores of one `scores.json` into `folder` and return the files written.

    `f1.png` has the scores with their intervals beside the baselines'; `confusion.png` the confusion matrix, which
    only beat scores have.

    Raises:
        HeartlmError: matplotlib is not installed, or the folder cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise needs("report", "matplotlib") from None
    drawn = {"confusion.png": _confusion(Figure, scores), "f1.png": _forest(Figure, scores)}
    written = []
    for name, figure in drawn.items():
        if figure is not None:
            with atomic_file(Path(folder) / name, "wb") as stream:
                figure.savefig(stream, format="png", dpi=DPI)
            written.append(Path(folder) / name)
    return written


def _confusion(figure_class: Any, scores: Mapping[str, Any]) -> Any | None:
    block = scores.get("scores") or {}
    matrix = np.array(block.get("confusion") or [], dtype=float)
    labels = list(block.get("confusion_labels") or block.get("classes") or [])
    if not len(labels) or matrix.shape != (len(labels), len(labels)):
        return None
    totals = matrix.sum(axis=1, keepdims=True)
    share = np.divide(matrix, totals, out=np.zeros_like(matrix), where=totals > 0)
    figure = figure_class(figsize=(4.6, 4.2), layout="constrained")
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


def _forest(figure_class: Any, scores: Mapping[str, Any]) -> Any | None:
    rows = score_rows(scores)
    methods = list(method_scores(scores))
    if not any(score.value is not None for row in rows.values() for score in row.values()):
        return None
    figure = figure_class(figsize=(6.4, 1.1 + 0.2 * len(rows) * (len(methods) + 1)), layout="constrained")
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
