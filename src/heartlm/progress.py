"""Progress of long work: a bar with rate and remaining time on a terminal, a line now and then in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

LOG_EVERY_S = 30.0


def track(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Yield `items`, showing on standard error how many of `total` are done; `what` names the work."""
    if sys.stderr.isatty():
        yield from _bar(items, total, what)
    else:
        yield from _lines(items, total, what)


def _bar(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(items, total=total, description=what)


def _lines(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    started = said = time.monotonic()
    for count, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - said > LOG_EVERY_S:
            left = (now - started) / count * (total - count)
            print(f"{what}: {count} of {total}, {left:.0f} s left", file=sys.stderr, flush=True)
            said = now
