"""Rendering of templates, of this package and of others: HTML pages and SVG drawings.

Jinja escapes the values of a template; drawings, which are markup already, are inserted as they are. Drawings have no
colours, only class names: the style sheet of the page sets the colours for light mode, dark mode and print.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.report.numbers import MISSING, count, decimal, duration, elapsed, percent, rates, significant

Floats = NDArray[np.floating]

# Characters outside of those of XML 1.0, section 2.2.
_NO_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is already markup; templates insert it unescaped."""

    def __html__(self) -> str:
        return self


def plain(value: Any) -> str:
    """Format a value of a JSON file."""
    if value is None:
        return MISSING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def render(template: str | Path, **shown: Any) -> Markup:
    """Render a template with the values `shown`: one of this package by its name, another one, which can include these.

    Characters that neither HTML nor XML may have, such as a NUL from a damaged file, become U+FFFD.

    Raises:
        HeartlmError: Jinja is not installed.
    """
    environment = _environment()
    if isinstance(template, Path):
        found = environment.from_string(template.read_text(encoding="utf-8"))
    else:
        found = environment.get_template(template)
    return Markup(_NO_XML.sub("\ufffd", found.render(shown)))


@functools.cache  # a folder of recordings renders one template a thousand times
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("heartlm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (count, decimal, duration, elapsed, percent, plain, rates, significant)
    environment.filters |= {each.__name__: each for each in filters}
    return environment


def path_of(xs: Sequence[float] | Floats, ys: Sequence[float] | Floats) -> str:
    """Return the `d` attribute of a path through `[num_points]` points, in short relative steps that do not drift."""
    points = np.rint(np.array([xs, ys], np.float64).T * 10).astype(np.int64)
    steps = np.diff(points, axis=0).ravel().tolist()
    written = {step: f"{step / 10:g}" for step in set(steps)}  # a trace has thousands of steps of a few lengths
    start = f"M{points[0, 0] / 10:g} {points[0, 1] / 10:g}"
    return f"{start}l{' '.join(map(written.__getitem__, steps))}" if steps else start
