"""Tables of a benchmark: measured as `bench/measure.py` does, and written to `results/NAME.md` and `.json`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.measure import BenchTable, Spread, interleaved, pin, probe, row, seconds, shown
from bench.output import environment
from runner import RESULTS, sources_of

from heartlm.files import atomic_file

__all__ = [
    "Spread",
    "Table",
    "environment",
    "interleaved",
    "per",
    "pin",
    "probe",
    "rates",
    "seconds",
    "stamp",
    "write",
]


class Table(BenchTable):
    """A table that shows each row when it is added."""

    def add(self, *cells: object) -> None:
        """Add a row, and show it."""
        super().add(*cells)  # type: ignore[arg-type]
        print(row(*map(shown, cells)), flush=True)


def rates(times: Sequence[float], amount: float) -> Spread:
    """Amount a second over the rounds of a rival: median and quartiles, to stand in a table as one cell."""
    return Spread.of([amount / taken for taken in times])


def per(times: Sequence[float], amount: float = 1.0) -> Spread:
    """Seconds for one of `amount` over the rounds of a rival; milliseconds where `amount` is given in thousands."""
    return Spread.of([taken / amount for taken in times])


def stamp(name: str) -> dict[str, Any]:
    """What a result file without tables says of its making, so that `runner` and `figures` can read it."""
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    return {"date": date, "sources": sources_of(name), "environment": environment()}


def write(name: str, heading: str, tables: list[Table], more: Mapping[str, Any] | None = None) -> None:
    """Write `results/NAME.md` and `.json`: command, date, sources, environment, and every table with its probes."""
    words = ["FOLDER" if word.startswith("/") else word for word in sys.argv[1:]]
    command = "python " + shlex.join([f"benchmarks/{Path(sys.argv[0]).name}", *words])
    about = environment() | dict(more or {})
    told = {"date": min(table.date for table in tables)} | about
    text = [f"# {heading}", "", f"    {command}", "", ", ".join(f"{key} {value}" for key, value in told.items()), ""]
    text += [table.markdown() for table in tables]
    entries = [table.as_json() for table in tables]
    content = {"command": command, "date": told["date"], "sources": sources_of(name), "environment": about}
    texts = {"json": json.dumps(content | {"tables": entries}, indent=1, default=str) + "\n", "md": "\n".join(text)}
    for suffix, written in texts.items():
        with atomic_file(RESULTS / f"{name}.{suffix}") as stream:
            stream.write(written)
