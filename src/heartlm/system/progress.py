"""Progress of long work: a bar with rate and remaining time on a terminal, periodic lines in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from heartlm.system.printable import printable, unfiltered

Item = TypeVar("Item")
Show = Callable[[int, str], object]
"""Is called with the number of items done and the text to show."""

LOG_EVERY_S = 30.0

_is_shown = True
_is_asked_for = False
_said = set[str]()


@contextmanager
def show_progress() -> Iterator[None]:
    """Show progress and warnings of the calls inside on standard error: a bar on a terminal, else periodic lines.

    Examples:
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


def plural(number: int, noun: str) -> str:
    """Format a number and a noun: `1 rank`, `2 ranks`, `1,200 ranks`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def hours_minutes_seconds(seconds: int) -> str:
    """Format a duration as HH:MM:SS, of any number of hours, as the time limits of SLURM."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the output of `track` and `say`, except inside of `show_progress()`."""
    global _is_shown
    before, _is_shown = _is_shown, _is_asked_for
    try:
        yield
    finally:
        _is_shown = before


def is_shown() -> bool:
    """Whether progress is shown."""
    return _is_shown


def say(line: str) -> None:
    """Write a status line to standard error, unless output is suppressed."""
    if _is_shown:
        print(printable(line), file=sys.stderr, flush=True)


def say_once(line: str) -> None:
    """Write a status line as `say`, unless this process wrote it before."""
    if _is_shown and line not in _said:
        _said.add(line)
        say(line)


def track(
    items: Iterable[Item],
    total: int | None,
    what: str,
    amount: Callable[[Item], float] | None = None,
    unit: str = "",
    done: int = 0,
) -> Iterator[Item]:
    """Yield items and show the progress on standard error: how many are done, the rate and the time left.

    Args:
        items: items of the work.
        total: number of items, with those done before; None if it is not known.
        what: name of the work.
        amount: amount of an item for the rate, in `unit`; without it no rate is shown.
        unit: unit of the rate, for example `"M samples"`.
        done: number of items done before, which do not count in the rate.
    """
    if not _is_shown:
        yield from items
        return
    begin_s, num_done, sum_of_amounts = time.monotonic(), done, 0.0
    with (_bar if sys.stderr.isatty() else _log)(what, total, done) as show:
        for item in items:
            yield item
            num_done += 1
            sum_of_amounts += amount(item) if amount else 0.0
            passed_s = time.monotonic() - begin_s
            rate = f"{sum_of_amounts / max(passed_s, 1e-9):,.1f} {unit}/s, " if amount else ""
            if total is None:
                show(num_done, f"{num_done}, {num_done / max(passed_s, 1e-9):,.0f}/s")
                continue
            left_s = passed_s / (num_done - done) * max(total - num_done, 0)
            show(num_done, f"{num_done} of {total}, {rate}{left_s:.0f} s left")


@contextmanager
def _bar(what: str, total: int | None, done: int) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=Console(file=unfiltered(sys.stderr)), transient=True) as progress:
        task = progress.add_task(printable(what), total=total, completed=done, state="")
        yield lambda num_done, state: progress.update(task, completed=num_done, state=state)


@contextmanager
def _log(what: str, total: int | None, done: int) -> Iterator[Show]:
    said_s = time.monotonic()

    def show(num_done: int, state: str) -> None:
        nonlocal said_s
        if time.monotonic() - said_s > LOG_EVERY_S:
            say(f"{what}: {state}")
            said_s = time.monotonic()

    yield show
