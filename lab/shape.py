"""Size and shape of the code of a checkout, a row for each package: `python -m lab.shape [CHECKOUT]`.

Code are lines with a token that is neither comment nor docstring. Lengths of functions are code lines of their bodies.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
MARKS = ("noqa", "type: ignore", "fmt:")
"""What comments for tools have in them; they do not count."""


class File:
    """One file: its numbers of lines, and the lengths of its functions."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text)))
        docs, code, self.comments = set[int](), set[int](), 0
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for each in node.body:
                    if isinstance(each, ast.Expr) and isinstance(getattr(each.value, "value", None), str):
                        docs.update(range(each.lineno, (each.end_lineno or 0) + 1))
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                self.comments += not any(mark in token.string for mark in MARKS)
            elif token.type not in LAYOUT:
                code.update(range(token.start[0], token.end[0] + 1))
        code -= docs
        self.code, self.docs, self.lines = len(code), len(docs), text.count("\n")
        self.functions = [
            sum(line in code for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1))
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]


def row(name: str, paths: Iterable[Path]) -> str:
    """A row of the table."""
    files = [File(path) for path in paths]
    lengths = sorted(each for file in files for each in file.functions) or [0]
    code = sum(file.code for file in files)
    median, high = (lengths[int(share * len(lengths))] for share in (0.5, 0.9))
    short = sum(each <= 5 for each in lengths) / len(lengths)
    cells = [name, f"{len(files)}", f"{code:,}", f"{sum(file.docs for file in files):,}", f"{len(lengths):,}"]
    cells += [f"{median} / {high} / {lengths[-1]}", f"{100 * short:.0f} %"]
    cells += [
        f"{100 * sum(file.comments for file in files) / max(code, 1):.1f} %",
        f"{max(file.lines for file in files)}",
    ]
    return f"| {' | '.join(cells)} |"


def rows(checkout: Path) -> Iterator[str]:
    """The table of a checkout."""
    head = "package", "files", "code", "docstrings", "functions", "median / p90 / max", "≤ 5 lines", "comments"
    yield f"| {' | '.join(head)} | longest file |"
    yield "|---|---|---|---|---|---|---|---|---|"
    source, rooms = checkout / "src" / "heartlm", defaultdict[str, list[Path]](list)
    for path in sorted(source.rglob("*.py")):
        rooms[path.relative_to(source).parts[0].removesuffix(".py")].append(path)
    for name in sorted(rooms, key=lambda name: -sum(File(path).code for path in rooms[name])):
        yield row(name, rooms[name])
    yield row("core, without extensions", (path for name in rooms if name != "extensions" for path in rooms[name]))
    for folder in ("tests", "lab", "benchmarks", "studies", "recipes"):
        if paths := sorted((checkout / folder).rglob("*.py")):
            yield row(folder, paths)


if __name__ == "__main__":
    print("\n".join(rows(Path(sys.argv[1] if len(sys.argv) > 1 else "."))))
