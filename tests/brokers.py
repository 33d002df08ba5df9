"""Real brokers that tests start on free ports."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from heartlm.monitor.nats import Worker

OPEN = "listener PORT 127.0.0.1\nallow_anonymous true\n"
"""Configuration of mosquitto that lets everybody in."""


def program(name: str) -> str:
    """Path of an installed program; the test is skipped without it."""
    path = shutil.which(name) or shutil.which(f"/usr/sbin/{name}")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Broker:
    """A broker with a configuration file in which PORT stands for a free port; in a `with` it ends after the block."""

    def __init__(self, name: str, folder: Path, config: str) -> None:
        self.command, self.port = [program(name), "-c", str(folder / f"{name}.conf")], free_port()
        self.config = folder / f"{name}.conf"
        self.write(config)
        self.process = self.start()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def write(self, config: str) -> None:
        self.config.write_text(config.replace("PORT", str(self.port)))

    def start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL)
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return process
            assert process.poll() is None, f"{self.command[0]} ended with status {process.returncode}"
            time.sleep(0.05)
        raise AssertionError(f"{self.command[0]} did not start")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


@contextlib.asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[None]:
    """Connects a worker, which works until the block ends."""
    await worker.connect()
    work = asyncio.create_task(worker.run())
    yield
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
