"""Run a script on this machine, without SLURM, and handle signals while it runs."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def answered(answer: Callable[[int], object]) -> Iterator[None]:
    """Call `answer` with the number of each signal that asks this process to stop."""
    before = {number: signal.signal(number, lambda number, _: answer(number)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_here(script: str) -> int:
    """Run a bash script and return its exit status; signals are forwarded to it."""
    started, early = list[subprocess.Popen[bytes]](), list[int]()

    def hand_on(number: int) -> None:
        if started:
            started[0].send_signal(number)
        else:
            early.append(number)

    # Before bash starts: it cannot trap signals inherited as ignored, as SIGINT is in the background of a shell.
    with answered(hand_on), subprocess.Popen(["bash", "-c", script], start_new_session=True) as process:
        started.append(process)
        for number in early:
            process.send_signal(number)
        return process.wait()
