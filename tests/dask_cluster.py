"""A Dask scheduler and workers, each a process of its own as on a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conftest import ROOT


@contextmanager
def dask_cluster(folder: Path, num_workers: int = 2) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield the address and the process of a scheduler with workers that a nanny starts again."""
    file = folder / "scheduler.json"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}
    common = ["--scheduler-file", str(file), "--no-dashboard"]
    scheduler = [*common, "--host", "127.0.0.1", "--port", "0"]
    worker = [*common, "--nworkers", str(num_workers), "--nthreads", "1", "--local-directory", str(folder)]
    with ExitStack() as stack, (folder / "dask.log").open("wb") as log:
        processes = list[subprocess.Popen[bytes]]()
        for name, words in (("dask_scheduler", scheduler), ("dask_worker", worker)):
            command = [sys.executable, "-m", f"distributed.cli.{name}", *words]
            processes.append(subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log))
            stack.callback(_end, processes[-1])
            while name == "dask_scheduler" and not file.exists():
                assert processes[-1].poll() is None, (folder / "dask.log").read_text()
                time.sleep(0.02)
        from distributed import Client

        with Client(scheduler_file=str(file), timeout=60, set_as_default=False) as client:
            client.wait_for_workers(num_workers, timeout=60)
            address = client.scheduler.address
        yield address, processes[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()
