"""Measured figures in README.md and docs/, written from the files `results/*.json` of benchmarks, recipes and studies.

    python -m lab.figures            # say which results are stale, and which texts differ from the results;
                                            # exit status 1 if a text does
    python -m lab.figures --write    # fill them in

How to add figures: write a Jinja2 template `lab/templates/NAME.md`, and put the lines `<!-- figures: NAME -->`
and `<!-- /figures -->` where its text belongs, in README.md or in a file of docs/. Everything between the two lines is
generated; `tests/test_readme_figures.py` fails where it was edited by hand or is older than the results. A template
gets a number with `cell("feeding", "One facet", "heartlm feed, next token", "512")`: result file, start of the table's
title, first cell of the row (or several, in a tuple), column. Where rounds were measured, that is their median;
`low(…)` and `high(…)` are the quartiles, and `spread(…)` both in brackets, or nothing. `raw(…)` is the cell as it was
written. `column(file, title, column)` gives all numbers of a column, `table(file, title)` the table as Markdown
(`table(file, title, "majority")` without the rows that start so),
`result(file)` the content of a file, `plain(file)` the same of one without tables, which then counts as used. The
filter `n` shows three digits, `n(2)` two; `geomean` is the geometric mean. Paragraphs are wrapped; a row of a table or
a list item has to be one line. A paragraph about processor and date is added below; it names results without a date and
those during which the machine's speed changed, and those of weights that no longer ship or of a recipe that changed
(`weights.py`); the first command lists these with the command that measures each again. `measured(file)` says
whether a result exists. Give the worst ratio next to the best.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import jinja2

from heartlm.errors import HeartlmError
from lab.measure import Spread, geometric_mean, row, shown
from lab.places import RESULTS, ROOT, result_of
from lab.weights import MEASURED_WITH, changed, command_of, origins

TEMPLATES = Path(__file__).parent / "templates"
BLOCK = re.compile(r"(<!-- figures: (\w[\w-]*) -->\n)(.*?)(<!-- /figures -->)", re.DOTALL)


class Results:
    """Reads result files, and keeps which tables were used."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.used: dict[tuple[str, str], dict[str, Any]] = {}
        self.processors: dict[str, None] = {}
        self.changes: dict[str, list[str]] = {}

    def result(self, name: str) -> dict[str, Any]:
        """The content of `NAME.json`.

        Raises:
            HeartlmError: there is none.
        """
        path = result_of(name, self.folders)
        if path is None:
            raise HeartlmError(f"results/{name}.json: not found; measure it: make benchmarks ONLY={name}")
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self.changes[name] = changed(name, content)
        return content

    def measured(self, name: str) -> bool:
        """Whether there is a result of that name."""
        return result_of(name, self.folders) is not None

    def plain(self, name: str) -> dict[str, Any]:
        """The content of a result without tables, such as scores."""
        content = self.result(name)
        self.used[name, ""] = {"date": content.get("date"), "moved": False}
        self.processors[content["machine"]["cpu"]] = None
        return content

    def find(self, name: str, title: str) -> dict[str, Any]:
        """The one table of a result whose title starts with `title`."""
        content = self.result(name)
        found = [table for table in content["tables"] if table["title"].startswith(title)]
        if len(found) != 1:
            titles = "; ".join(table["title"] for table in content["tables"])
            raise HeartlmError(
                f"{name}.json: {len(found)} tables start with {title!r}, one expected; there are: {titles}"
            )
        table: dict[str, Any] = found[0]
        self.used[name, table["title"]] = table
        self.processors[content["environment"]["processor"]] = None
        return table

    def raw(self, name: str, title: str, key: str | tuple[str, ...], column: str) -> Any:
        """A cell as it was written."""
        table = self.find(name, title)
        keys = [shown(key)] if isinstance(key, str | int) else [shown(each) for each in key]
        rows = [cells for cells in table["rows"] if [shown(cell) for cell in cells[: len(keys)]] == keys]
        if len(rows) != 1:
            raise HeartlmError(f"{name}.json, {table['title']!r}: {len(rows)} rows start with {keys}, one expected")
        return rows[0][self.index(table, column)]

    @staticmethod
    def index(table: dict[str, Any], column: str) -> int:
        """The place of a column."""
        if column not in table["columns"]:
            raise HeartlmError(f"{table['title']!r}: no column {column!r}; there are: {'; '.join(table['columns'])}")
        place: int = table["columns"].index(column)
        return place

    def cell(self, name: str, title: str, key: str | tuple[str, ...], column: str, part: str = "median") -> float:
        """The number of a cell; of a measured one, the median over rounds, or the quartile `low` or `high`."""
        return number(self.raw(name, title, key, column), part)

    low, high = partialmethod(cell, part="low"), partialmethod(cell, part="high")

    def spread(self, name: str, title: str, key: str | tuple[str, ...], column: str) -> str:
        """The quartiles of a measured cell in brackets, with a space before; nothing for other cells."""
        cell = self.raw(name, title, key, column)
        return f" ({digits(cell['low'])}–{digits(cell['high'])})" if isinstance(cell, dict) else ""

    def column(self, name: str, title: str, column: str) -> list[float]:
        """All numbers of a column; cells without one are left out."""
        table = self.find(name, title)
        cells = [cells[self.index(table, column)] for cells in table["rows"]]
        return [number(cell) for cell in cells if _has_number(cell)]

    def table(self, name: str, title: str, without: str = "\0") -> str:
        """A table as Markdown, with its notes; rows whose first cell starts with `without` are left out."""
        found = self.find(name, title)
        lines = [row(*found["columns"]), "|" + "---|" * len(found["columns"])]
        lines += [
            row(*(shown(Spread(**cell) if isinstance(cell, dict) else cell) for cell in c))
            for c in found["rows"]
            if not shown(c[0]).startswith(without)
        ]
        return "\n".join([*lines, *(["", *found["notes"]] if found["notes"] else [])])

    def provenance(self) -> str:
        """Where and when the tables used were measured, and what must be said against them."""
        if not self.used:
            return ""
        dates = sorted({table["date"][:10] for table in self.used.values() if table.get("date")})
        days = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "on an unrecorded day"
        lines = [f"Measured {days}; processor: {', '.join(self.processors)}."]
        for what, matches in (
            ("Without a recorded date", lambda table: not table.get("date")),
            ("The machine's speed changed by more than a tenth during", lambda table: table["moved"]),
        ):
            named = ", ".join(dict.fromkeys(name for (name, _), table in self.used.items() if matches(table)))
            lines += [f"{what}: {named}."] if named else []
        return " ".join([*lines, origins(self.changes)]).strip()


def _has_number(cell: Any) -> bool:
    try:
        number(cell)
    except HeartlmError:
        return False
    return True


def number(cell: Any, part: str = "median") -> float:
    """The number in a cell: plain, of several rounds, or at the beginning of a text such as 1.48x.

    Raises:
        HeartlmError: there is none, or no quartiles where they are asked for.
    """
    if isinstance(cell, dict):
        return float(cell[part])
    if part == "median":
        if isinstance(cell, int | float):
            return float(cell)
        found = re.match(r"[+-]?[\d,]*\.?\d+(e[+-]?\d+)?", cell) if isinstance(cell, str) else None
        if found:
            return float(found[0].replace(",", ""))
    raise HeartlmError(f"cell {cell!r}: a number{' of several rounds' if part != 'median' else ''} expected")


def digits(value: float, num: int = 3) -> str:
    """A number with `num` digits, thousands apart, zeros kept: 1.90, 17,400."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = num - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    return f"{rounded:,.{max(num - 1 - math.floor(math.log10(abs(rounded))), 0)}f}"


def rendered(name: str, folders: Sequence[Path] = RESULTS, templates: Path = TEMPLATES) -> str:
    """The text of a template with its figures, and the paragraph about the machine.

    Raises:
        HeartlmError: no such template, or one that asks for what the results do not have.
    """
    read = Results(folders)
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates), undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False
    )
    env.filters |= {"n": digits, "geomean": geometric_mean}
    functions = ("cell", "raw", "low", "high", "spread", "column", "table", "result", "plain", "measured")
    env.globals |= {each: getattr(read, each) for each in functions}
    try:
        text = env.get_template(f"{name}.md").render().strip()
    except jinja2.TemplateError as error:
        raise HeartlmError(f"{templates / name}.md: {type(error).__name__}: {error.message}") from error
    paragraphs = [*re.split(r"\n\n+", text), read.provenance()]
    return "\n\n".join(wrapped(paragraph) for paragraph in paragraphs if paragraph) + "\n"


def wrapped(paragraph: str) -> str:
    """A paragraph in lines of at most 120 characters; tables, lists and headings stay as they are."""
    if re.search(r"^(\||[-*#] |    )", paragraph, re.MULTILINE):
        return paragraph
    return textwrap.fill(" ".join(paragraph.split()), 120, break_long_words=False, break_on_hyphens=False)


def filled(text: str, folders: Sequence[Path] = RESULTS, templates: Path = TEMPLATES) -> str:
    """A document with every block generated."""
    return BLOCK.sub(lambda block: block[1] + rendered(block[2], folders, templates) + block[4], text)


def documents() -> Iterator[Path]:
    """The texts that may have figures."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="fill the figures in")
    write = parser.parse_args().write
    differing = 0
    for path in documents():
        before = path.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            differing += 1
            print(f"{path.relative_to(ROOT)}: {'written' if write else 'differs; call figures.py --write'}")
            if write:
                path.write_text(after, encoding="utf-8")
    results = Results(RESULTS)
    for name in filter(results.measured, MEASURED_WITH):
        if changes := changed(name, content := results.result(name)):
            print(f"{name}: stale ({', '.join(changes)} changed or not recorded); again: {command_of(name, content)}")
    return 0 if write else int(differing > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeartlmError as error:
        sys.exit(f"figures.py: {error}")
