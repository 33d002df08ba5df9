"""Running a script on this machine, without SLURM."""

from __future__ import annotations

import signal
import subprocess

HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def run_here(script: str) -> int:
    """Run a script of bash to its end and return its status; signals are handed on to it."""
    with subprocess.Popen(["bash", "-c", script], start_new_session=True) as process:
        before = {
            number: signal.signal(number, lambda number, frame: process.send_signal(number)) for number in HANDED_ON
        }
        try:
            return process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
