"""Drawings of the pages as files: PNG, SVG or PDF, for papers and slides.

    SVG whose elements carry class names ─┐
    style sheets of the pages, light mode ┴─► patches and words of matplotlib ─► file

So each chart and each strip is drawn once, as SVG. Read here is what the drawings of this room hold, not all of SVG:
straight paths, lines, rectangles, circles, polygons and words, and selectors of tags and classes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from heartlm.errors import HeartlmError, needs
from heartlm.files import atomic_file
from heartlm.report.page import render
from heartlm.report.scaling_charts import curves_chart
from heartlm.report.scaling_model import Chart
from heartlm.report.score_charts import confusion_chart, forest_chart
from heartlm.report.scores import score_rows
from heartlm.report.strip import Strip
from heartlm.report.svg import Markup
from heartlm.report.svg_strip import sheets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 160
FORMATS = ("png", "svg", "pdf")
CHART_IN, STRIP_IN = 1 / 78, 1 / (4 * 25.4)
"""Inches a unit of a chart, and of a strip, whose units are quarters of a millimetre."""

_MARGIN, _CAPTION = 20.0, 26.0  # around a drawing, and above it for its caption, in units
_PATHS = {
    "path": "{d}",
    "line": "M{x1} {y1}L{x2} {y2}",
    "rect": "M{x} {y}h{width}v{height}h-{width}z",
    "polygon": "M{points}z",
}
"""Each element of straight lines as the `d` of a path."""
_INHERITED = ("fill", "stroke", "font-size", "font-weight", "text-anchor")

Style = dict[str, str]
Names = frozenset[str]
"""Of an element: its tag and its classes, such as `{"text", ".tick"}`."""


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """An empty figure of a size in inches.

    Raises:
        HeartlmError: matplotlib is not installed.
    """
    with needs("report"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), **options)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, SVG or PDF, after the ending of `path`, atomically; return the path.

    Raises:
        HeartlmError: another ending, or `path` cannot be written.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise HeartlmError(f"{path}: a picture's name must end in {', '.join(f'.{name}' for name in FORMATS)}")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with atomic_file(Path(path), "wb") as stream:
        figure.savefig(stream, format=kind, dpi=DPI, metadata=undated)
    return Path(path)


def figure_of(drawings: Sequence[tuple[str, Markup]], *, columns: int = 1, unit_in: float = CHART_IN) -> Figure:
    """Lay drawings, each with its caption, in rows from left to right; each has axes in units of its view box.

    Raises:
        HeartlmError: matplotlib is not installed.
    """
    roots = [ElementTree.fromstring(drawing) for _, drawing in drawings]
    sizes = [tuple(map(float, root.attrib["viewBox"].split()[2:])) for root in roots]
    columns = min(columns, len(roots))
    widest = max(width for width, _ in sizes) + _MARGIN
    tops, top = list[float](), _MARGIN / 2
    for first in range(0, len(roots), columns):
        row = range(first, min(first + columns, len(roots)))
        top += _CAPTION if any(drawings[place][0] for place in row) else 0.0
        tops += [top] * len(row)
        top += max(sizes[place][1] for place in row) + _MARGIN
    total_width, total, pt = columns * widest + _MARGIN, top + _MARGIN / 2, unit_in * 72
    figure = new_figure(total_width * unit_in, total * unit_in, facecolor="white")
    named = _declared(frozenset(), frozenset({":root"}))
    for place, ((caption, _), root, (width, height)) in enumerate(zip(drawings, roots, sizes, strict=True)):
        left, bottom = _MARGIN + place % columns * widest, total - tops[place] - height
        axes = figure.add_axes((left / total_width, bottom / total, width / total_width, height / total))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        axes.text(0, -_CAPTION / 2, caption, size=13 * pt, weight="bold", va="center")
        _draw(axes, root, named, frozenset(), pt)
    return figure


def strip_figure(strip: Strip, title: str = "") -> Figure:
    """Draw a strip true to scale, in rows of ten seconds, as a figure for `save_figure`.

    Raises:
        HeartlmError: the strip is empty, or matplotlib is not installed.
    """
    if not strip.signal_mv.size:
        raise HeartlmError("there is no signal to draw: the strip has no leads or no samples")
    rows = sheets(strip, title)
    return figure_of(list(zip([title] + [""] * len(rows), rows, strict=False)), unit_in=STRIP_IN)


def save_score_figures(scores: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the scores of one `scores.json` into `folder` and return the files written.

    `f1.png` has the scores with their intervals next to the baselines'; `confusion.png` the confusion matrix, where
    the task has one.

    Raises:
        HeartlmError: matplotlib is not installed, or the folder cannot be written.
    """
    rows = score_rows(scores)
    drawn = {
        "confusion.png": confusion_chart(scores.get("scores") or {}),
        "f1.png": forest_chart(rows, label="scores with 95 % intervals"),
    }
    return [save_figure(figure_of([("", each)]), Path(folder) / name) for name, each in drawn.items() if each]


def save_charts(figures: Mapping[str, Sequence[tuple[str, Chart]]], folder: Path) -> list[Path]:
    """Draw figures, each of some charts with their titles, into `folder`; return the files written.

    Raises:
        HeartlmError: matplotlib is not installed, or the folder cannot be written.
    """
    return [
        save_figure(
            figure_of([(title, curves_chart(chart)) for title, chart in drawn], columns=2), folder / f"{name}.png"
        )
        for name, drawn in figures.items()
    ]


_MEDIA = re.compile(r"@media[^{]*\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}")


@functools.cache
def _rules() -> list[tuple[Names, Names, Style]]:
    """The rules of the style sheets: names around an element, its own names, and its style; a stronger rule is later.

    Rules that depend on the medium are left out. Selectors that no drawing uses may be read wrongly.
    """
    sheets = (render(name, {"record_css": ""}) for name in ("style.html", "holter_style.html", "scaling_style.html"))
    rules = []
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", _MEDIA.sub("", "".join(sheets))):
        style = dict(re.findall(r"([\w-]+):\s*([^;]+?)\s*(?:;|$)", body))
        for selector in re.sub("</?style>", "", selectors).split(","):
            *outer, own = (frozenset(re.findall(r"[.:]?[\w-]+", step)) for step in selector.split())
            rules.append((frozenset[str]().union(*outer), own, style))

    def strength(rule: tuple[Names, Names, Style]) -> tuple[int, int]:
        names = [*rule[0], *rule[1]]
        return sum(name.startswith(".") for name in names), len(names)

    return sorted(rules, key=strength)


@functools.cache  # a strip has hundreds of elements of a few kinds
def _declared(around: Names, own: Names) -> Style:
    """What the style sheets say of an element of some names in elements of other names."""
    style = Style()
    for outer, names, declared in _rules():
        if names <= own and outer <= around:
            style |= declared
    return style


def _draw(axes: Any, element: ElementTree.Element, outer: Style, around: Names, pt: float) -> None:
    """Draw an element and those in it; `outer` is the style it inherits, `pt` the points of a unit."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline
    from matplotlib.patheffects import withStroke

    own = frozenset([element.tag, *(f".{name}" for name in element.get("class", "").split())])
    style = {key: value for key, value in outer.items() if key.startswith("--") or key in _INHERITED}
    style |= element.attrib | _declared(around, own)
    if element.tag in ("svg", "g"):
        for child in element:
            _draw(axes, child, style, around | own, pt)
        return

    def colour(key: str, default: str) -> str:
        value = style.get(key, default)
        while value.startswith("var("):
            value = style[value[4:-1].partition(",")[0]]
        return "none" if value == "transparent" else value

    def length(key: str, default: float = 0.0) -> float:
        return float(style.get(key, str(default)).removesuffix("px"))

    opacity = length("opacity", 1)
    if element.tag == "text":
        halo = [withStroke(linewidth=length("stroke-width") * pt, foreground=colour("stroke", "none"))]
        axes.text(
            length("x"),
            length("y"),
            element.text or "",
            size=length("font-size", 11.5) * pt,
            weight="bold" if length("font-weight", 400) > 500 else "normal",
            color=colour("fill", "black"),
            alpha=opacity,
            ha={"middle": "center", "end": "right"}.get(style.get("text-anchor", ""), "left"),
            path_effects=halo if "paint-order" in style else None,
        )
        return
    if element.tag == "circle":
        outline = Outline.circle((length("cx"), length("cy")), length("r"))
    elif element.tag in _PATHS:
        outline = Outline(*_path(_PATHS[element.tag].format_map(element.attrib)))
    else:
        return
    dashes = [float(each) * pt for each in style.get("stroke-dasharray", "").split()]
    face, width = colour("fill", "black"), length("stroke-width", 1) * pt
    patch = PathPatch(
        outline, fill=face != "none", facecolor=face, edgecolor=colour("stroke", "none"), linewidth=width, clip_on=False
    )
    patch.set(alpha=opacity * length("fill-opacity", 1), linestyle=(0, dashes) if dashes else "solid")
    patch.set(joinstyle="round")
    axes.add_artist(patch)  # the limits are known: add_patch would look at every corner


def _path(d: str) -> tuple[list[tuple[float, float]], list[int]]:
    """The corners of a path of straight lines, and matplotlib's code of each: 1 moves, 2 draws, 79 closes."""
    points: list[tuple[float, float]] = []
    codes: list[int] = []
    x = y = 0.0
    for letter, rest in re.findall(r"([MLHVlhvz])([^A-Za-z]*)", d):
        numbers = [float(each) for each in re.findall(r"-?[\d.]+(?:e-?\d+)?", rest)]
        if letter == "z":
            points, codes = [*points, points[-1]], [*codes, 79]
        for at in range(0, len(numbers), 1 if letter in "HVhv" else 2):
            across, up = x * letter.islower(), y * letter.islower()
            if letter in "Hh":
                x = across + numbers[at]
            elif letter in "Vv":
                y = up + numbers[at]
            else:
                x, y = across + numbers[at], up + numbers[at + 1]
            points.append((x, y))
            codes.append(2 if at or letter != "M" else 1)
    return points, codes
