"""Sums through shared memory: right, the same on every rank, and no rank waits for one that has gone."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from heartlm.distributed import shared_memory
from heartlm.distributed.parallel import HostAllReduce
from heartlm.distributed.ranks import Ranks
from heartlm.distributed.shared_memory import KINDS, SLOT_BYTES, NodesSum, RankGone, SharedSum, shared_sum_of
from tests.ranks import run_in_a_process_of_its_own, run_ranks


def shared() -> SharedSum:
    rank, of = dist.get_rank(), dist.get_world_size()
    made = shared_sum_of(Ranks(rank, of, rank, of), timeout_s=60)
    assert made is not None
    return made


def numbers(rank: int, num: int, kind: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    if kind is torch.int64:
        return torch.randint(-(2**63), 2**63 - 1, (num,), generator=generator)  # sums wrap around
    return torch.randn(num, generator=generator, dtype=kind)


def sum_as_rank() -> None:
    add_up, rank, of = shared(), dist.get_rank(), dist.get_world_size()
    for kind in KINDS:
        for num in (1, 3, 17, SLOT_BYTES // 8, SLOT_BYTES // 4 + 1, SLOT_BYTES + 5):
            mine = numbers(rank, num, kind)
            add_up(mine)
            expected = numbers(0, num, kind)
            for other in range(1, of):
                expected += numbers(other, num, kind)
            assert torch.equal(mine, expected), (kind, num)


def begin_as_rank(folder: str) -> None:
    """Ranks begin a round while others still read the sums of the one before; no file stays that a kill could leave."""
    shared_memory.FOLDER = Path(folder)
    add_up, rank, of = shared(), dist.get_rank(), dist.get_world_size()
    dist.barrier()
    assert not list(Path(folder).iterdir())
    for turn in range(200):
        mine = torch.tensor([rank, turn], dtype=torch.float64)
        wait = add_up.begin(mine)
        wait()
        assert mine.tolist() == [of * (of - 1) / 2, of * turn]


def early_as_rank() -> None:
    """Two ranks wait for each other's numbers alone, not for each other to wait."""
    add_up, rank = shared(), dist.get_rank()
    wait = add_up.begin(torch.tensor([1.0 + rank]))
    if rank == 0:
        wait()
    dist.barrier()
    wait()


def lose_as_rank() -> None:
    add_up, rank = shared(), dist.get_rank()
    add_up(torch.ones(3))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    # The other one may have noticed it, and ended, before this rank looks.
    with pytest.raises(RankGone, match=rf"^rank (1|{2 - rank}) has exited$"):
        add_up(torch.ones(3))


def late_as_rank() -> None:
    rank = dist.get_rank()
    made = shared_sum_of(Ranks(rank, 2, rank, 2), timeout_s=0.05)
    assert made is not None
    if rank == 0:
        with pytest.raises(RankGone, match=r"^no answer within 0.05 s$"):
            made(torch.ones(3))
    dist.barrier()


def without_as_rank(folder: str) -> None:
    """Where memory cannot be shared, gloo adds up."""
    shared_memory.FOLDER = Path(folder) if folder else shared_memory.FOLDER
    rank, of = dist.get_rank(), dist.get_world_size()
    ranks = Ranks(rank, of, rank, of)
    assert shared_sum_of(ranks, 60) is None
    assert HostAllReduce(ranks)(1.0, rank) == [of, of * (of - 1) / 2]


def nodes_as_rank(per_node: int) -> None:
    """Machines of `per_node` ranks, the last of as many as are left: each through its memory, and firsts by gloo."""
    rank, of = dist.get_rank(), dist.get_world_size()
    local = min(per_node, of - rank // per_node * per_node)
    ranks = Ranks(rank, of, rank % per_node, local)
    add_up = shared_sum_of(ranks, 60)
    assert isinstance(add_up, NodesSum)
    for kind in KINDS:
        for num in (1, 17, SLOT_BYTES // 4 + 1):
            mine = numbers(rank, num, kind)
            expected = sum(numbers(other, num, kind) for other in range(1, of)) + numbers(0, num, kind)
            add_up(mine)
            if kind is torch.int64:
                assert torch.equal(mine, expected)
            assert torch.allclose(mine, expected, atol=1e-5)
            seen = [torch.empty_like(mine) for _ in range(of)]
            dist.all_gather(seen, mine)
            assert all(torch.equal(own, mine) for own in seen), "the same bits on every rank"
    wait = HostAllReduce(ranks).begin(1.0, rank)
    assert wait() == wait() == [of, of * (of - 1) / 2]
    dist.barrier()


def lose_node_as_rank(victim: int) -> None:
    """Of 2 machines with 2 ranks each one rank is killed: none of the others waits for it."""
    rank = dist.get_rank()
    add_up = shared_sum_of(Ranks(rank, 4, rank % 2, 2), 60)
    assert add_up is not None
    add_up(torch.ones(3))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RankGone):
        for _ in range(3):
            add_up(torch.ones(3))


def elsewhere_as_rank() -> None:
    rank, of = dist.get_rank(), dist.get_world_size()
    assert shared_sum_of(Ranks(rank, of, 0, 1), 60) is None
    dist.barrier()  # one that ends while the others are still meeting would be missed


def in_turn(calls: list[tuple[int, str, list[str], list[int]]]) -> None:
    for num_ranks, function, arguments, statuses in calls:
        assert run_ranks(num_ranks, globals()[function], *arguments) == statuses, function


@pytest.mark.skipif(sys.platform != "linux", reason="memory is shared through /dev/shm")
@pytest.mark.parametrize(
    ("function", "num_ranks"),
    [
        (sum_as_rank, 2),
        (sum_as_rank, 3),
        (early_as_rank, 2),
        (early_as_rank, 3),
        (late_as_rank, 2),
        (elsewhere_as_rank, 2),
    ],
)
def test_ranks_add_up(function: object, num_ranks: int) -> None:
    name = getattr(function, "__name__", "")
    run_in_a_process_of_its_own(f"{__name__}:in_turn", [(num_ranks, name, [], [0] * num_ranks)])


@pytest.mark.skipif(sys.platform != "linux", reason="memory is shared through /dev/shm")
def test_machines_add_up_among_their_first_ranks() -> None:
    killed = -signal.SIGKILL
    calls = [(4, "nodes_as_rank", [2], [0] * 4), (3, "nodes_as_rank", [2], [0] * 3)]
    calls += [
        (4, "lose_node_as_rank", [victim], [killed if rank == victim else 0 for rank in range(4)]) for victim in (2, 3)
    ]
    run_in_a_process_of_its_own(f"{__name__}:in_turn", calls)


def test_rounds_follow_each_other_and_nothing_is_left(tmp_path: Path) -> None:
    run_in_a_process_of_its_own(f"{__name__}:in_turn", [(4, "begin_as_rank", [str(tmp_path)], [0] * 4)])


@pytest.mark.parametrize("num_gathered", [0, 1])
def test_a_rank_that_exits_before_the_first_sum_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_gathered: int
) -> None:
    gathered = list[object]()

    def gather(value: object) -> list[object]:
        gathered.append(value)
        if len(gathered) > num_gathered:
            raise RuntimeError("another rank exited")
        return [value, value]

    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    with pytest.raises(RuntimeError):
        shared_memory.opened(Ranks(0, 2, 0, 2), 1.0, gather)
    assert isinstance(gathered[0], Path) and not list(tmp_path.iterdir())


def test_a_rank_that_has_gone_is_not_waited_for() -> None:
    run_in_a_process_of_its_own(f"{__name__}:in_turn", [(3, "lose_as_rank", [], [0, -signal.SIGKILL, 0])])


def test_without_memory_to_share_gloo_adds_up(tmp_path: Path) -> None:
    run_in_a_process_of_its_own(f"{__name__}:in_turn", [(2, "without_as_rank", [str(tmp_path / "none")], [0, 0])])


def test_ranks_add_up_by_the_portable_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTLM_KERNELS", "portable")
    run_in_a_process_of_its_own(f"{__name__}:in_turn", [(2, "sum_as_rank", [], [0, 0])])
