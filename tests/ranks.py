"""Ranks of a gloo group for tests, forked from a process that has imported torch already, so they start at once."""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # slow to import, and every rank would do it for itself
import torch.distributed as dist

from tests.conftest import ROOT

LONGEST_S = 300
"""Time after which a process of `run_in_a_process_of_its_own` is ended."""


def run_ranks(num_ranks: int, function: Callable[..., object], *arguments: Any) -> list[int]:
    """Fork processes that call `function` in one gloo group; return their exit statuses, by rank.

    A status below 0 is minus the signal that ended the process. The caller must have no threads, as of torch or gloo.
    """
    with tempfile.TemporaryDirectory() as folder:
        numbers = []
        for rank in range(num_ranks):
            number = os.fork()
            if number == 0:
                _be_rank(rank, num_ranks, Path(folder) / "store", function, arguments)
            numbers.append(number)
        return [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in numbers]


def _be_rank(
    rank: int, num_ranks: int, store: Path, function: Callable[..., object], arguments: tuple[Any, ...]
) -> None:
    status = 1
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks, timeout=timedelta(seconds=60)
        )
        dist.barrier()  # a rank that ends at once would close its connections while others still make theirs
        function(*arguments)
        status = 0
    except BaseException as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def run_in_a_process_of_its_own(function: str, *arguments: Any) -> Any:
    """Call `function`, `module:name`, in a new process without threads, with JSON arguments; return what it returns."""
    with tempfile.TemporaryDirectory() as folder:
        about = {"function": function, "arguments": arguments, "environment": dict(os.environ), "folder": folder}
        server = _fork_server()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(about) + "\n")
        server.stdin.flush()
        status, said = server.stdout.readline().strip(), (Path(folder) / "stderr").read_text()
        assert status == "0", f"{function} ended with status {status}: {said}"
        return json.loads((Path(folder) / "answer.json").read_text())


@functools.cache
def _fork_server() -> subprocess.Popen[str]:
    """Start the process that the others are forked from: it imports torch once, which takes seconds.

    It ends with the process that started it, whose pipe it then finds closed.
    """
    return subprocess.Popen(
        [sys.executable, "-c", "from tests.ranks import _serve; _serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def _serve() -> None:
    """Fork a process for each line of standard input; write its exit status."""
    for line in sys.stdin:
        about = json.loads(line)
        module, _, name = about["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        number = os.fork()
        if number == 0:
            status = 1
            try:
                signal.alarm(LONGEST_S)
                for stream, path in (
                    (0, os.devnull),
                    (1, f"{about['folder']}/stdout"),
                    (2, f"{about['folder']}/stderr"),
                ):
                    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), stream)
                os.environ.clear()
                os.environ.update(about["environment"] | {"OMP_NUM_THREADS": "1"})
                (Path(about["folder"]) / "answer.json").write_text(json.dumps(function(*about["arguments"])))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)
