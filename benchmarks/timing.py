"""How speed is measured: rivals take turns in one run, the median of several rounds counts, the machine is watched.

The machine may be shared, so a rate says little by itself and the ratio of two rates taken in turns says more. A probe,
a fixed piece of arithmetic, is timed before and after every table: where the two differ by more than a tenth, the table
says so. Every process is pinned to one core unless a benchmark is about more.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from steps import RESULTS, header, row

MOVED = 0.1
"""Two probes that differ by more than this share mean that the machine was not the same before and after."""


def pin(*cores: int) -> None:
    """Keep this process, and those it starts, on `cores` (places in the list of cores it may run on)."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[core % len(allowed)] for core in cores})


def probe() -> float:
    """Speed of the machine now, in fixed pieces of arithmetic a second: the best of five."""
    numbers = np.arange(1 << 20, dtype=np.float32)

    def piece() -> None:
        for _ in range(8):
            np.sqrt(numbers * 1.0001 + 1.0).sum()

    return 1 / min(seconds(piece) for _ in range(5))


def seconds(work: Callable[[], object]) -> float:
    """Seconds that `work` takes, once."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def interleaved(
    rivals: Mapping[str, Callable[[], object]], rounds: int = 5, warm_up: bool = True
) -> dict[str, list[float]]:
    """Seconds of every rival in every round; they take turns, and each is run once beforehand without counting."""
    if warm_up:
        for work in rivals.values():
            work()
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, work in rivals.items():
            times[name].append(seconds(work))
    return times


def median_rates(times: Mapping[str, list[float]], amount: float) -> dict[str, float]:
    """Amount a second of every rival, from its median time."""
    return {name: amount / statistics.median(taken) for name, taken in times.items()}


@dataclass
class Table:
    """One table of a benchmark's results, with the probe before and after.

    Attributes:
        title: what was measured, with its unit.
        columns: names of the columns.
        rows: cells of each row.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]] = field(default_factory=list)
    probe_before: float = field(default_factory=probe)
    probe_after: float | None = None

    def add(self, *cells: object) -> None:
        """Add a row, and show it."""
        assert len(cells) == len(self.columns), (cells, self.columns)
        self.rows.append(cells)
        print(row(*cells), flush=True)

    def close(self) -> None:
        """Probe the machine again."""
        self.probe_after = probe()

    @property
    def moved(self) -> bool:
        """Whether the machine's speed changed while the table was measured."""
        assert self.probe_after is not None, "close the table first"
        return abs(self.probe_after / self.probe_before - 1) > MOVED

    def markdown(self) -> str:
        """The table, and what the probe said."""
        lines = [f"## {self.title}", "", *header(*self.columns), *(row(*cells) for cells in self.rows), ""]
        state = "THE MACHINE MOVED while this was measured" if self.moved else "the machine held its speed"
        lines.append(f"Probe before {self.probe_before:.0f}, after {self.probe_after:.0f} pieces/s: {state}.")
        return "\n".join(lines) + "\n"


def environment() -> dict[str, Any]:
    """What the figures were taken on: processor, cores this process may use, versions."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    vector = [name for name in ("avx2", "avx512f", "avx512bw") if name in flags.split()]
    return {
        "processor": cpu,
        "vector": vector,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def write(name: str, heading: str, tables: list[Table], more: Mapping[str, Any] | None = None) -> None:
    """Write `results/NAME.md` and `.json`: the command, the environment and every table."""
    words = ["FOLDER" if word.startswith("/") else word for word in sys.argv[1:]]
    command = "python " + shlex.join([f"benchmarks/{Path(sys.argv[0]).name}", *words])
    about = environment() | dict(more or {})
    text = [f"# {heading}", "", f"    {command}", "", ", ".join(f"{key} {value}" for key, value in about.items()), ""]
    text += [table.markdown() for table in tables]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text("\n".join(text), encoding="utf-8")
    entries = [vars(table) | {"moved": table.moved} for table in tables]
    content = {"command": command, "environment": about, "tables": entries}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
