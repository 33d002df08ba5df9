"""`heartlm watch`: show a running training in the terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import existing, parse
from heartlm.errors import HeartlmError


@dataclass(frozen=True)
class WatchOptions:
    """Options of `heartlm watch`.

    Attributes:
        run: run folder.
        once: print one frame and exit.
        every: interval between frames in seconds.
    """

    run: Path
    once: bool = False
    every: float = 1.0


def run(arguments: Sequence[str]) -> int:
    """Show the progress, loss and speed of a run, and how its time is spent.

    Examples:
        heartlm watch runs/beats
        heartlm watch runs/beats --once
    """
    options = parse(WatchOptions, arguments, "watch", run, positionals=["run"])
    if options.every <= 0:
        raise HeartlmError(f"every: {options.every:g} found, more than 0 seconds expected")
    existing(options.run, "run folder")
    from rich.console import Console
    from rich.live import Live

    from heartlm.cluster.watch.frame import frame
    from heartlm.cluster.watch.watch import WatchedRun

    watched, console = WatchedRun(options.run), Console()
    watched.refresh()
    if options.once:
        console.print(frame(watched))
        return 0
    # Ctrl-C ends the display; the run continues.
    with suppress(KeyboardInterrupt), Live(frame(watched), console=console, auto_refresh=False) as live:
        while not watched.is_finished:
            time.sleep(options.every)
            watched.refresh()
            live.update(frame(watched), refresh=True)
    return 0
