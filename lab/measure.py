"""Speed measurement: methods run in turns, the median of several rounds is reported, the machine's speed is monitored.

    rivals ─► one turn each without counting ─► rounds in which every one has its turn ─► medians, ratios, spreads
              probe ─────────────────────────── the table is measured ─────────────────────────── probe

A machine may be shared, so the ratio of two rates measured in turns is more reliable than a single rate. A probe, a
fixed piece of arithmetic on every core in use, is timed before and after each table. If the two times differ by more
than a tenth, the table notes it. Imports no torch.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np

from heartlm.extensions.scaling.probe import moved
from heartlm.extensions.scaling.probe import probe as probe_cores
from heartlm.system.cores import usable_cores

PROBED_CORES, PROBE_ROUNDS = 8, 5


@dataclass(frozen=True)
class Spread:
    """A value measured in several rounds.

    Attributes:
        median: median over the rounds.
        low: lower quartile.
        high: upper quartile.
        rounds: number of rounds.
    """

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Median and quartiles of at least one value."""
        low, median, high = (float(value) for value in np.percentile(values, (25, 50, 75)))
        return cls(median, low, high, len(values))

    def times(self, factor: float) -> Spread:
        """The same in another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.rounds)


Cell = str | int | float | Spread | None
"""What stands in a table; None where there is nothing to say, shown as –."""


def cores() -> list[int]:
    """Return the first hardware thread of each core that this process may use."""
    return [core.cpus[0] for core in usable_cores()]


def pin(*places: int) -> None:
    """Pin this thread, and the processes it starts, to the indices `places` in the list of usable cores."""
    allowed = cores()
    os.sched_setaffinity(0, {allowed[place % len(allowed)] for place in places})


def probe() -> float:
    """Return the current speed of the machine: fixed pieces of arithmetic per second on the slowest core in use."""
    return probe_cores(cores()[:PROBED_CORES], PROBE_ROUNDS)


def seconds(work: Callable[[], object]) -> float:
    """Seconds that `work` takes, once."""
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s


def interleaved(
    rivals: Mapping[str, Callable[[], object]], rounds: int = 5, warm_up: bool = True
) -> dict[str, list[float]]:
    """Return the seconds of every method in every round. Methods run in turns, after one unmeasured run each."""
    if warm_up:
        for work in rivals.values():
            work()
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, work in rivals.items():
            times[name].append(seconds(work))
    return times


@dataclass(frozen=True)
class Timed:
    """Times of a method.

    Attributes:
        seconds: duration of its turn in each round.
        amount: work per turn.
    """

    seconds: tuple[float, ...]
    amount: float = 1.0

    @property
    def median_s(self) -> float:
        """Median seconds of a turn."""
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        """Amount per second, from the median."""
        return self.amount / self.median_s

    @property
    def spread(self) -> float:
        """Distance of the quartiles over the rounds, as a share of the median."""
        low, high = np.percentile(self.seconds, (25, 75))
        return float((high - low) / self.median_s)

    def times_faster_than(self, other: Timed) -> float:
        """Ratio of the rates, in the middle of the rounds: the two had their turns side by side in each."""
        pairs = zip(self.seconds, other.seconds, strict=True)
        return statistics.median(theirs / other.amount / (ours / self.amount) for ours, theirs in pairs)


def one_by_one(work: Callable[[Any], object], what: Iterable[Any]) -> Callable[[], None]:
    """A turn that does `work` with one after the other, keeping nothing."""

    def turn() -> None:
        for each in what:
            work(each)

    return turn


def kilobytes(name: str) -> int:
    """A memory of this process by its name in /proc/self/status, such as VmRSS."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def rates(times: Sequence[float], amount: float) -> Spread:
    """Amount a second over the rounds of a rival: median and quartiles, to stand in a table as one cell."""
    return Spread.of([amount / taken for taken in times])


def per(times: Sequence[float], amount: float = 1.0) -> Spread:
    """Seconds for one of `amount` over the rounds of a rival; milliseconds where `amount` is given in thousands."""
    return Spread.of([taken / amount for taken in times])


def geometric_mean(values: Sequence[float]) -> float:
    """The mean that ratios have; of at least one value, all above 0."""
    return math.exp(statistics.fmean(map(math.log, values)))


@dataclass
class BenchTable:
    """One table of results, with the probe before and after.

    Attributes:
        title: measured quantity.
        columns: names of the columns, with units.
        rows: cells of each row; numbers are formatted only for display.
        notes: remarks on the results.
        probe_before: speed of the machine when the table is created.
        probe_after: speed of the machine when the table is closed.
        date: start of the measurement, UTC.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    probe_before: float = field(default_factory=probe)
    probe_after: float | None = None
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M"))

    def add(self, *cells: Cell) -> None:
        """Add a row."""
        assert len(cells) == len(self.columns), (cells, self.columns)
        self.rows.append(cells)

    def add_rates(self, times: Mapping[str, Sequence[float]], amounts: Mapping[str, float], *rivals: str) -> Self:
        """A row for every method: its rate, and how often that of each of `rivals`; closes the table."""
        found = {name: rates(taken, amounts[name]) for name, taken in times.items()}
        for name, rate in found.items():
            self.add(name, rate, *(rate.median / found[rival].median for rival in rivals))
        return self.close()

    def close(self) -> Self:
        """Probe the machine again; returns the table itself."""
        self.probe_after = probe()
        return self

    @property
    def moved(self) -> bool:
        """Whether the machine's speed changed while the table was measured."""
        assert self.probe_after is not None, "close the table first"
        return moved(self.probe_before, self.probe_after)

    @property
    def about_the_machine(self) -> str:
        """What the probe says, as a sentence."""
        state = "THE MACHINE MOVED while this was measured" if self.moved else "the machine held its speed"
        probes = f"Probe before {self.probe_before:.0f}, after {self.probe_after:.0f} pieces/s: {state}."
        return f"{self.date} UTC. {probes}"

    def column(self, name: str) -> list[Cell]:
        """The cells of a column."""
        return [cells[self.columns.index(name)] for cells in self.rows]

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values, no number of which is infinite or none."""
        rows = [[_plain(cell) for cell in cells] for cells in self.rows]
        probes = {"probe_before": self.probe_before, "probe_after": self.probe_after, "moved": self.moved}
        about = {"title": self.title, "date": self.date, "columns": list(self.columns)}
        return {**about, "rows": rows, "notes": self.notes, **probes}

    def markdown(self) -> str:
        """The table with its notes and what the probe said, for a document."""
        lines = [f"## {self.title}", "", *header(*self.columns)]
        lines += [row(*map(shown, cells)) for cells in self.rows]
        return "\n".join([*lines, "", *self.notes, self.about_the_machine]) + "\n"


class Table(BenchTable):
    """A table that prints each row when it is added."""

    def add(self, *cells: Cell) -> None:
        """Add a row, and print it."""
        super().add(*cells)
        print(row(*map(shown, cells)), flush=True)


def row(*cells: object) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def header(*names: str) -> list[str]:
    """The first two lines of a Markdown table."""
    return [row(*names), "|" + "---|" * len(names)]


def shown(cell: object) -> str:
    """A cell as it is read: three digits, thousands apart, – for nothing, the quartiles in brackets."""
    if isinstance(cell, Spread):
        return f"{shown(cell.median)} ({shown(cell.low)}–{shown(cell.high)})"
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "–"
    if isinstance(cell, float) and abs(cell) < 1000:
        return f"{cell:.3g}"
    return f"{cell:,.0f}" if isinstance(cell, int | float) else str(cell)


def _plain(cell: Cell) -> Any:
    if isinstance(cell, Spread):
        return asdict(cell)
    if isinstance(cell, np.generic):
        cell = cell.item()
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell
