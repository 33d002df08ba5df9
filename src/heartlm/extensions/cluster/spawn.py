"""Processes that run within a context, each with its own log."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from heartlm.errors import HeartlmError
from heartlm.system.parent import end_with_parent

STOP_WITHIN_S = 10.0
_LAST_BYTES = 20_000


class Processes:
    """Context manager that stops its processes on exit.

    Args:
        logs: folder of the logs, one file per process.
    """

    def __init__(self, logs: Path) -> None:
        self.logs, self._running = logs, dict[str, subprocess.Popen[bytes]]()
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *raised: object) -> None:
        """Terminate all processes, the last first; kill those that do not exit in time."""
        for process in reversed(self._running.values()):
            process.terminate()
        give_up_s = time.monotonic() + STOP_WITHIN_S
        for process in reversed(self._running.values()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, give_up_s - time.monotonic()))
            process.kill()
            process.wait()

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Start a process, which also ends if this process ends."""
        with (self.logs / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [*map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                preexec_fn=functools.partial(end_with_parent, os.getpid(), signal.SIGTERM),
            )

    def wait_for_port(self, port: int, timeout_s: float) -> None:
        """Wait until a process listens on `port`.

        Raises:
            HeartlmError: the wait timed out, or a process exited.
        """
        give_up_s = time.monotonic() + timeout_s
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            for name, process in self._running.items():
                if (status := process.poll()) is not None:
                    words = last_line(self.logs / f"{name}.log") or "it printed nothing"
                    raise HeartlmError(f"{name} ended with status {status}: {words}")
            if time.monotonic() > give_up_s:
                raise HeartlmError(f"nothing listens on port {port} after {timeout_s:g} s: see the logs in {self.logs}")
            time.sleep(0.1)


def last_line(log: Path) -> str:
    """Return the last non-empty line of a log, preferably not one of srun; empty if there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _LAST_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(reversed([line for line in lines if not line.startswith("srun: ")] or lines), "")


def free_ports(number: int) -> list[int]:
    """Return ports of this machine on which no process listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
