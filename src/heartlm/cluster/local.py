"""Running a script on this machine, without SLURM."""

from __future__ import annotations

import signal
import subprocess
from types import FrameType

HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def run_here(script: str) -> int:
    """Run a script of bash to its end and return its status; signals are handed on to it."""
    process: subprocess.Popen[bytes] | None = None
    early = list[int]()

    def hand_on(number: int, frame: FrameType | None) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    # Before bash starts: it cannot trap what it inherits as ignored, as SIGINT is in the background of a shell.
    before = {number: signal.signal(number, hand_on) for number in HANDED_ON}
    try:
        with subprocess.Popen(["bash", "-c", script], start_new_session=True) as process:
            for number in early:
                process.send_signal(number)
            return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
