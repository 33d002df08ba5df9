"""`heartlm watch`: a run in the terminal, while it runs."""

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
    """Which run to watch.

    Attributes:
        run: the run folder.
        once: print one frame and end.
        every: seconds between frames.
    """

    run: Path
    once: bool = False
    every: float = 1.0


def run(arguments: Sequence[str]) -> int:
    """Show how a run goes: progress, loss, speed, and what its time goes to.

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
    # Ctrl-C is how one stops looking; the run continues.
    with suppress(KeyboardInterrupt), Live(frame(watched), console=console, auto_refresh=False) as live:
        while not watched.is_finished:
            time.sleep(options.every)
            watched.refresh()
            live.update(frame(watched), refresh=True)
    return 0
