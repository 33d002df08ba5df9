"""Processes that live as long as a block of code, each with a log of its own."""

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
from heartlm.parent import end_with_parent

STOP_WITHIN_S = 10.0
_LAST_BYTES = 20_000


class Processes:
    """Processes that are stopped when the block ends that this is the context of.

    Args:
        logs: folder of what they print, one file each.
    """

    def __init__(self, logs: Path) -> None:
        self.logs, self._running = logs, dict[str, subprocess.Popen[bytes]]()
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *raised: object) -> None:
        """Ask all to end, the last first; kill those that do not."""
        for process in reversed(self._running.values()):
            process.terminate()
        give_up_s = time.monotonic() + STOP_WITHIN_S
        for process in reversed(self._running.values()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, give_up_s - time.monotonic()))
            process.kill()
            process.wait()

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Start one; it ends with this process, however that ends."""
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
        """Wait until somebody listens there.

        Raises:
            HeartlmError: no process does, or one has ended.
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
    """The last line of a log that is not empty, if possible not one of srun; empty where there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _LAST_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(reversed([line for line in lines if not line.startswith("srun: ")] or lines), "")


def free_ports(number: int) -> list[int]:
    """Ports of this machine that no process listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
