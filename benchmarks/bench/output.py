"""What measurements leave behind: tables on the terminal and files, each renamed into place.

A bench writes `NAME.json` and `NAME.png` where it is asked to, a benchmark `results/NAME.md` and `.json`.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from runner import RESULTS, sources_of

from bench.measure import BenchTable, cores, shown
from heartlm import __version__
from heartlm.extensions.cluster.doctor.hardware import ROOT, cgroup_cpus, processors
from heartlm.storage.atomic import atomic_file, write_json

if TYPE_CHECKING:
    from bench.options import BenchOptions

WIDTH = 160
"""Columns of a table that is not written to a terminal."""


def environment() -> dict[str, Any]:
    """What figures are taken on: processor, cores this process may use, GPU if torch has seen one, versions."""
    facts = processors(ROOT)
    found = {
        "processor": facts["model"],
        "vector": facts["vector_units"],
        "cores": len(cores()),
        "cpu_limit": cgroup_cpus(ROOT),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": _torch_version(),
        "heartlm": __version__,
    }
    return {name: value for name, value in found.items() if value is not None}


def _torch_version() -> str | None:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> str | None:
    """Name of the GPU; None without one, or where nothing has needed torch."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None


def show(tables: Sequence[BenchTable]) -> None:
    """Print tables with their notes."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    for table in tables:
        drawn = Table(box=box.SIMPLE_HEAD, title=Text(table.title), title_justify="left", title_style="bold")
        for name in table.columns:
            in_words = any(isinstance(cell, str) for cell in table.column(name))
            drawn.add_column(Text(name), justify="left" if in_words else "right", overflow="fold")
        for cells in table.rows:
            drawn.add_row(*(Text(shown(cell)) for cell in cells))
        console.print(drawn)
        for note in (*table.notes, table.about_the_machine):
            console.print(Text(f"  {note}"))
        console.print()


def write_bench(name: str, options: BenchOptions, tables: Sequence[BenchTable], elapsed_s: float) -> list[Path]:
    """Write `NAME.json` and, where matplotlib is installed and there is something to draw, `NAME.png`.

    Args:
        name: of the bench.
        options: what was asked for.
        tables: closed.
        elapsed_s: how long all of it took.

    Returns:
        The files written.

    Raises:
        HeartlmError: the folder cannot be written.
    """
    asked = {field: _plain(value) for field, value in dataclasses.asdict(options).items()}
    content = {
        "bench": name,
        "options": asked,
        "environment": environment(),
        "elapsed_s": round(elapsed_s, 2),
        "tables": [table.as_json() for table in tables],
    }
    written = [Path(options.out) / f"{name}.json"]
    write_json(written[0], content)
    if any(table.chart for table in tables):
        from bench.figure import save_figure

        written.append(written[0].with_suffix(".png"))
        save_figure(tables, written[1])
    return written


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def write_results(
    name: str,
    heading: str,
    tables: Sequence[BenchTable],
    more: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Write `NAME.md` and `.json`: command, date, sources, environment, and every table with its probes.

    Args:
        name: of the files.
        heading: title of the document.
        tables: closed.
        more: entries of the environment.
        folder: output folder.
        data: more entries of the JSON file.
    """
    folder = folder or RESULTS
    words = ["FOLDER" if word.startswith("/") else word for word in sys.argv[1:]]
    command = "python " + shlex.join([f"benchmarks/{Path(sys.argv[0]).name}", *words])
    about = environment() | dict(more or {})
    told = {"date": min(table.date for table in tables)} | about
    text = [f"# {heading}", "", f"    {command}", "", ", ".join(f"{key} {value}" for key, value in told.items()), ""]
    text += [table.markdown() for table in tables]
    entries = [table.as_json() for table in tables]
    content = {"command": command, "date": told["date"], "sources": sources_of(name), "environment": about}
    texts = {
        "json": json.dumps(content | dict(data or {}) | {"tables": entries}, indent=1, default=str) + "\n",
        "md": "\n".join(text),
    }
    for suffix, written in texts.items():
        with atomic_file(folder / f"{name}.{suffix}") as stream:
            stream.write(written)
