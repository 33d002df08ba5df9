"""An error of gloo is told from an error of one rank alone by the connections, not by its words."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from heartlm.distributed.agreement import RankConsensus
from heartlm.distributed.parallel import is_peer_failure
from tests.ranks import run_in_a_process_of_its_own, run_ranks

KILLED = -signal.SIGKILL


def sums() -> None:
    dist.all_reduce(torch.ones(3))


def hook() -> None:
    """As in DDP: the error comes from a function that is called with the sum."""
    dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda sums: sums.value()).wait()


def objects() -> None:
    RankConsensus().all(lambda: 3)


def lose_as_rank(act: str) -> None:
    sums()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError) as raised:
        globals()[act]()
    assert is_peer_failure(raised.value)


def wait_as_rank() -> None:
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.2))
    if dist.get_rank() == 1:
        time.sleep(1.0)
        return
    with pytest.raises(RuntimeError) as raised:
        sums()
    assert is_peer_failure(raised.value)


def err_as_rank() -> None:
    """Rank 0 has errors of its own, with the words of lost ranks; the others meanwhile wait for its number."""
    if dist.get_rank() == 0:
        time.sleep(0.1)
        for words in ("[gloo/transport/tcp/pair.cc:553] Connection closed by peer", "NCCL error", "Wait timeout"):
            assert not is_peer_failure(RuntimeError(words))
    number = torch.ones(1)
    dist.all_reduce(number)
    assert number.item() == 3
    dist.barrier()


def in_turn(function: str, arguments: list[str], statuses: list[int]) -> None:
    assert run_ranks(3, globals()[function], *arguments) == statuses


@pytest.mark.parametrize("act", ["sums", "hook", "objects"])
def test_a_killed_rank_is_lost(act: str) -> None:
    run_in_a_process_of_its_own(f"{__name__}:in_turn", "lose_as_rank", [act], [0, KILLED, 0])


def test_a_rank_that_does_not_answer_is_lost() -> None:
    run_in_a_process_of_its_own(f"{__name__}:in_turn", "wait_as_rank", [], [0, 0, 0])


def test_an_error_of_one_rank_is_not_taken_for_a_lost_rank_and_disturbs_no_sum() -> None:
    run_in_a_process_of_its_own(f"{__name__}:in_turn", "err_as_rank", [], [0, 0, 0])
    assert not is_peer_failure(RuntimeError("Connection closed by peer: gloo"))
