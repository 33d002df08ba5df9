"""`heartlm watch`: show a running training in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import existing, parse

REFRESH_S = 1.0


@dataclass(frozen=True)
class WatchOptions:
    """Options of `heartlm watch`.

    Attributes:
        run: run folder.
        once: print one frame and exit.
    """

    run: Path
    once: bool = False


def run(arguments: Sequence[str]) -> int:
    """Show the progress, loss and speed of a run, and how its time is spent.

    Examples:
        heartlm watch runs/beats
        heartlm watch runs/beats --once
    """
    options = parse(WatchOptions, arguments, "watch", run, positionals=["run"])
    existing(options.run, "run folder")
    from rich.console import Console
    from rich.live import Live

    from heartlm.extensions.cluster.watch import frame
    from heartlm.runs.run_folder import RunFolder
    from heartlm.system.printable import unfiltered

    folder, console = RunFolder(options.run), Console(file=unfiltered(sys.stdout))
    if options.once:
        console.print(frame(folder))
        return 0
    # Ctrl-C ends the display; the run continues.
    with suppress(KeyboardInterrupt), Live(frame(folder), console=console, auto_refresh=False) as live:
        while not folder.is_finished:
            time.sleep(REFRESH_S)
            folder = RunFolder(options.run)  # its files are read once
            live.update(frame(folder), refresh=True)
    return 0
