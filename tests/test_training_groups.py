"""Ranks exchange numbers over few connections, and a thread of its own is never mistaken for the main one."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist

from heartlm.distributed.agreement import RankConsensus
from heartlm.distributed.parallel import NCCL_HANDLING, HostAllReduce, together
from heartlm.training.checkpoint import Checkpoints
from tests.ranks import run_in_a_process_of_its_own, run_ranks
from tests.test_training_parallel import this

pytestmark = pytest.mark.slow

RANKS = 3


def num_sockets() -> int:
    """Sockets that this process has open."""
    names = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            names.append(str(path.readlink()))
        except OSError:  # the folder itself
            continue
    return sum(name.startswith("socket:") for name in names)


def count_connections(folder: str) -> None:
    dist.barrier()
    before = num_sockets()
    sums, rank = HostAllReduce(this()), this().rank
    for _ in range(3):
        assert together(lambda: rank) == rank
        assert RankConsensus().first(lambda: "first") == "first"
    assert sums(1.0) == [RANKS] and HostAllReduce(this())(2.0) == [2.0 * RANKS]
    assert num_sockets() == before
    Checkpoints(Path(folder), timeout_s=60.0)
    assert num_sockets() >= before + RANKS - 1, "its thread has connections of its own"
    dist.barrier()  # a rank that ended here would close connections that the others are still making


def exchange_in_other_orders() -> None:
    """The first rank's thread comes before its main thread, on the others it comes after."""
    of_main, of_thread, rank = RankConsensus(60.0), RankConsensus(60.0, own_group=True), this().rank
    for turn in range(20):
        found: list[Any] = []
        thread = Thread(target=lambda turn=turn, found=found: found.extend(of_thread.all(lambda: ("thread", turn))))
        if rank == 0:
            thread.start()
            thread.join(0.02)  # it waits for the others by now
        assert of_main.all(lambda turn=turn: ("main", turn)) == [("main", turn)] * RANKS
        if rank != 0:
            thread.start()
        thread.join()
        assert found == [("thread", turn)] * RANKS


def in_ranks(folder: str) -> None:
    assert run_ranks(RANKS, count_connections, folder) == [0] * RANKS
    assert run_ranks(RANKS, exchange_in_other_orders) == [0] * RANKS


def test_everything_in_the_main_thread_shares_one_group_and_the_checkpoints_thread_has_its_own(tmp_path: Path) -> None:
    run_in_a_process_of_its_own(f"{__name__}:in_ranks", str(tmp_path))


def test_torch_still_reads_what_is_set_for_its_watchdog() -> None:
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    known = header.read_text()
    assert all(f'"{name}"' in known for name in NCCL_HANDLING)
    assert "CleanUpOnly = 2" in known and "a != CleanUpOnly" in known, "2 leaves the process alone"
