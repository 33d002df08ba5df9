"""Tables of a benchmark: measured as `heartlm.bench.measure` does, and written to `results/NAME.md` and `.json`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steps import RESULTS

from heartlm.bench.measure import BenchTable, interleaved, median_rates, pin, probe, row, seconds
from heartlm.bench.output import environment

__all__ = ["Table", "environment", "interleaved", "median_rates", "pin", "probe", "seconds", "write"]


class Table(BenchTable):
    """A table that shows each row when it is added."""

    def add(self, *cells: object) -> None:
        """Add a row, and show it."""
        super().add(*cells)  # type: ignore[arg-type]
        print(row(*cells), flush=True)


def write(name: str, heading: str, tables: list[Table], more: Mapping[str, Any] | None = None) -> None:
    """Write `results/NAME.md` and `.json`: the command, the environment and every table."""
    words = ["FOLDER" if word.startswith("/") else word for word in sys.argv[1:]]
    command = "python " + shlex.join([f"benchmarks/{Path(sys.argv[0]).name}", *words])
    about = environment() | dict(more or {})
    text = [f"# {heading}", "", f"    {command}", "", ", ".join(f"{key} {value}" for key, value in about.items()), ""]
    text += [table.markdown() for table in tables]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text("\n".join(text), encoding="utf-8")
    entries = [table.as_json() for table in tables]
    content = {"command": command, "environment": about, "tables": entries}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
