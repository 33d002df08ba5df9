"""Programs of this package as processes that are forked from one that has imported them: they start at once.

A `python -m heartlm` that trains imports for four seconds, most of what a small training takes. For tests of what a
process does once it runs: how it is killed, stopped and resumed. How it is started is tested elsewhere.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.conftest import ROOT

HEARTLM = "heartlm.cli.main:run_process"
PRELOADED = (
    *("torch", "torch._dynamo", "torch.distributed.checkpoint", "sklearn.ensemble", "pyarrow.parquet"),
    *("heartlm.cli.main", "heartlm.cli.pretrain", "heartlm.cli.finetune", "heartlm.cli.evaluate"),
    *("heartlm.training.pretrain", "heartlm.training.loop", "heartlm.tasks.finetune", "heartlm.tasks.load"),
)


class Forked:
    """A process with the methods of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        *words: str | Path,
        program: str = HEARTLM,
        environment: Mapping[str, str] | None = None,
        own_session: bool = False,
    ) -> None:
        """Start `program`, a function `module:name` that reads `sys.argv`, with the environment of this process."""
        self._folder = tempfile.TemporaryDirectory(prefix="forked-")
        self._place = Path(self._folder.name)
        self.returncode: int | None = None
        about = {"program": program, "words": [*map(str, words)], "folder": self._folder.name}
        about |= {
            "environment": {**os.environ, **(environment or {})},
            "own_session": own_session,
            "cwd": str(Path.cwd()),
        }
        server = _server()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(about) + "\n")
        server.stdin.flush()
        self.pid = int(server.stdout.readline())

    def poll(self) -> int | None:
        """The exit status, minus the signal if one ended it; None as long as it runs."""
        if self.returncode is None and (path := self._place / "status").exists():
            self.returncode = int(path.read_text())
        return self.returncode

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Wait for its end; return what it wrote to standard output and standard error."""
        give_up_s = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > give_up_s:
                raise subprocess.TimeoutExpired("forked", timeout)
            time.sleep(0.005)
        return (self._place / "stdout").read_text(), (self._place / "stderr").read_text()

    def send_signal(self, number: int) -> None:
        """Send it a signal if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.communicate()


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the process that the others are forked from. It ends with this one, whose pipe it then finds closed."""
    server = subprocess.Popen(
        [sys.executable, "-c", "from tests.forked import _serve; _serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )
    atexit.register(server.communicate)
    return server


def _serve() -> None:
    """Fork a process for each line of standard input and write its number; its status goes to its folder."""
    for name in PRELOADED:
        importlib.import_module(name)
    folders = dict[int, Path]()

    def write_statuses(*_: object) -> None:
        for number, status in iter(_ended, (0, 0)):
            (folders[number] / "ending").write_text(str(os.waitstatus_to_exitcode(status)))
            (folders[number] / "ending").rename(folders.pop(number) / "status")

    signal.signal(signal.SIGCHLD, write_statuses)
    for line in sys.stdin:
        about = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # its folder is noted before its end
        number = os.fork()
        if number == 0:
            _be(about)
        folders[number] = Path(about["folder"])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        print(number, flush=True)


def _ended() -> tuple[int, int]:
    """Number and status of a child that has ended, 0 and 0 if none has."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def _be(about: dict[str, object]) -> None:
    """Be the program, to whose end this process lives."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    folder, words, environment = Path(str(about["folder"])), about["words"], about["environment"]
    assert isinstance(words, list) and isinstance(environment, dict)
    for stream, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_RDWR | os.O_CREAT), stream)  # an absolute name stands by itself
    if about["own_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(about["cwd"]))
    sys.argv = ["heartlm", *words]
    module, _, name = str(about["program"]).partition(":")
    getattr(importlib.import_module(module), name)()
    sys.exit()
