"""Save drawings of the pages as separate files for papers and slides: SVG with its style, or PNG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from heartlm.errors import HeartlmError
from heartlm.report.render import Markup, render
from heartlm.report.strip import MM, Strip, sheet
from heartlm.storage.atomic import atomic_file

MARGIN, CAPTION = 20.0, 26.0
"""Margin around a drawing and space above it for its caption, in drawing units of a quarter of a millimetre."""
PNG_DPI = 192.0


def picture(drawings: Sequence[tuple[str, Markup]]) -> str:
    """Return drawings with captions below each other as one SVG document."""
    style = render("drawing.css")
    # few programs except browsers support CSS variables
    values = dict(re.findall(r"--([\w-]+): ([^;]+);", style))
    style = Markup(re.sub(r"var\(--([\w-]+)\)", lambda name: values[name[1]], style))
    placed, width, top = list[tuple[str, float, Markup]](), 0.0, MARGIN
    for caption, drawn in drawings:
        top += CAPTION if caption else 0
        across, down = map(float, re.findall(r'viewBox="0 0 (\S+) (\S+)"', drawn)[0])
        frame = f'<svg x="{MARGIN:g}" y="{top:g}" width="{across:g}" height="{down:g}"'
        placed.append((caption, top - CAPTION / 2, Markup(drawn.replace("<svg", frame, 1))))
        width, top = max(width, across + 2 * MARGIN), top + down + MARGIN
    return render("picture.svg", style=style, placed=placed, width=width, height=top, mm=MM, margin=MARGIN)


def save_drawings(drawings: Sequence[tuple[str, Markup]], path: Path) -> Path:
    """Write drawings with captions below each other as one SVG or PNG file, atomically; return the path.

    resvg renders PNG files; the system needs one of the fonts of `drawing.css`, such as DejaVu Sans.

    Raises:
        HeartlmError: the suffix is another, or `path` cannot be written.
    """
    if path.suffix.lower() not in (".svg", ".png"):
        raise HeartlmError(f"{path}: a picture's name must end in .svg or .png")
    whole = picture(drawings)
    content = whole.encode()
    if path.suffix.lower() == ".png":
        import resvg_py

        content = resvg_py.svg_to_bytes(svg_string=whole, dpi=PNG_DPI)
    with atomic_file(path, "wb") as stream:
        stream.write(content)
    return path


def drawn_rows(strip: Strip, title: str) -> list[tuple[str, Markup]]:
    """Return a strip to scale in rows of ten seconds, each with its caption: the title for the first."""
    return [("" if number else title, sheet(row, title)) for number, row in enumerate(strip.rows())]


def save_strip(strip: Strip, title: str, path: Path) -> Path:
    """Write a strip to scale, in rows of ten seconds, as an SVG or PNG file; return the path.

    Raises:
        HeartlmError: the strip is empty, or `save_drawings` does not accept `path`.
    """
    if not strip.signal_mv.size:
        raise HeartlmError("there is no signal to draw: the strip has no leads or no samples")
    return save_drawings(drawn_rows(strip, title), path)
