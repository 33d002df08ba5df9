"""One study of a sweep on this machine: alone, or as ranks of mpiexec."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from heartlm.distributed.spawn import last_line
from heartlm.errors import HeartlmError


class Launcher(Protocol):
    """Runs studies somewhere."""

    def run(self, config: Path, world_size: int, log: Path) -> str | None:
        """Run the study of the file `config` on so many ranks; return why that failed, if it did."""


class MPILauncher:
    """Runs studies on this machine; several ranks under mpiexec, the one beside this Python or the system's.

    Args:
        timeout_s: after which a study counts as hung.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def run(self, config: Path, world_size: int, log: Path) -> str | None:
        """Run the study of the file `config` on so many ranks; return why that failed, if it did."""
        command = [sys.executable, "-m", "heartlm", "federate", str(config)]
        if world_size > 1:
            command = [mpiexec(), *_flags(), "-n", str(world_size), *command]
        with log.open("wb") as output:
            try:
                status = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=self._timeout_s
                ).returncode
            except subprocess.TimeoutExpired:
                return f"it was not done after {self._timeout_s:g} s"
        return None if status == 0 else f"it ended with status {status}: {last_line(log)}"


def mpiexec() -> str:
    """The program that starts ranks.

    Raises:
        HeartlmError: there is none.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise HeartlmError("mpiexec: not found: pip install 'heartlm[mpi]', or load the MPI of the machine")
    return found


def _flags() -> list[str]:
    """What Open MPI wants to be told: more ranks than cores are meant, and root may."""
    version = subprocess.run([mpiexec(), "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in version and "prte" not in version.lower():
        return []
    return ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
