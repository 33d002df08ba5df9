"""Ranks of a gloo group for tests, forked from a process that has imported torch already, so they start at once."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # slow to import, and every rank would do it for itself
import torch.distributed as dist

from tests.conftest import ROOT


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
    """Call `function`, `module:name`, in a new process with JSON arguments; return what it returns."""
    code = "import sys; from tests.ranks import _answer; _answer(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, function, json.dumps(arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _answer(function: str, arguments: str) -> None:
    module, _, name = function.partition(":")
    print(json.dumps(getattr(importlib.import_module(module), name)(*json.loads(arguments))))
