"""Progress of long work: a bar with rate and remaining time on a terminal, periodic lines in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")

LOG_EVERY_S = 30.0

_is_shown = True
_is_asked_for = False


@contextmanager
def show_progress() -> Iterator[None]:
    """Show progress and warnings of the calls inside on standard error: a bar on a terminal, else periodic lines.

    Examples
    --------
    >>> import heartlm
    >>> with heartlm.show_progress():
    ...     corpus = heartlm.tokenize("data/mitdb", out="corpora/mitdb")
    """
    global _is_asked_for
    before, _is_asked_for = _is_asked_for, True
    try:
        yield
    finally:
        _is_asked_for = before


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the output of `track` and `say`, except inside of `show_progress()`."""
    global _is_shown
    before, _is_shown = _is_shown, _is_asked_for
    try:
        yield
    finally:
        _is_shown = before


def say(line: str) -> None:
    """Write a status line to standard error, unless output is suppressed."""
    if _is_shown:
        print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Measure(Generic[Item]):
    """Measure of the work of each item, and the unit of the rate.

    Attributes:
        total: total work, in any unit.
        share: function that returns the work of an item, in the unit of `total`.
        amount: function that returns the amount of an item for the rate, in `unit`; called once per item.
        unit: unit of the rate, for example `"M samples"`.
        done: work done before the start, not counted in the rate.
    """

    total: float
    share: Callable[[Item], float]
    amount: Callable[[Item], float]
    unit: str
    done: float = 0.0


class Meter(Generic[Item]):
    """Meter of the completed fraction, the rate and the remaining time, measured with `clock`."""

    def __init__(self, total: int, measure: Measure[Item] | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.measure, self.clock = measure, clock
        self.num_items, self.num_all = 0, total
        self.done = self.before = measure.done if measure else 0.0
        self.total = measure.total if measure else float(total)
        self.amount = 0.0
        self.started = clock()

    def count(self, item: Item) -> None:
        """Count `item` as done."""
        self.num_items += 1
        self.done += self.measure.share(item) if self.measure else 1.0
        self.amount += self.measure.amount(item) if self.measure else 1.0

    def state(self) -> str:
        """Return the completed part, the rate if there is a measure, and the seconds left at the rate so far."""
        passed_s = self.clock() - self.started
        left_s = passed_s / max(self.done - self.before, 1e-9) * max(self.total - self.done, 0.0)
        if self.measure is None:
            return f"{self.num_items} of {self.num_all}, {left_s:.0f} s left"
        rate = f"{self.amount / max(passed_s, 1e-9):,.1f} {self.measure.unit}/s"
        return f"{100 * self.done / max(self.total, 1e-9):.0f} %, {rate}, {left_s:.0f} s left"


def track(items: Iterable[Item], total: int, what: str, measure: Measure[Item] | None = None) -> Iterator[Item]:
    """Yield `items` and show the progress out of `total` on standard error; `what` names the work.

    With a `measure`, items are weighted by their share of the work, and the rate is shown.
    """
    meter = Meter(total, measure)
    if _is_shown:
        yield from (_bar if sys.stderr.isatty() else _lines)(items, meter, what)
    else:
        yield from items


def _bar(items: Iterable[Item], meter: Meter[Item], what: str) -> Iterator[Item]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=meter.total, state="")
        progress.update(task, completed=meter.done)
        for item in items:
            yield item
            meter.count(item)
            progress.update(task, completed=meter.done, state=meter.state())


def _lines(items: Iterable[Item], meter: Meter[Item], what: str) -> Iterator[Item]:
    said = meter.started
    for item in items:
        yield item
        meter.count(item)
        if meter.clock() - said > LOG_EVERY_S:
            say(f"{what}: {meter.state()}")
            said = meter.clock()
