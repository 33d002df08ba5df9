"""One of several ranks that add up the same numbers by every way there is, in turns."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heartlm.distributed.allreduce import FILL_BYTES, TIMEOUT_S, process_group
from heartlm.distributed.ranks import Ranks
from heartlm.distributed.shared_memory import NodesSum, shared_sum_of
from heartlm.errors import HeartlmError, needs

Way = Callable[[Tensor], object]
"""Replaces a tensor by its sums over the ranks, and returns when that is done."""


def among_ranks(ranks: Ranks, meet_at: str, wanted: Mapping[str, Any], mpi: Any = None) -> dict[str, Any] | None:
    """Measure every way among `ranks`, all of which call this.

    Args:
        ranks: where this process stands.
        meet_at: where they meet; env:// under torchrun.
        wanted: `sizes` in bytes, `rounds`, `device`, and as how many `machines` to count this one.
        mpi: the communicator of mpi4py that holds the same ranks.

    Returns:
        On the first rank `num_ranks`, `seconds` of every way, size and round, and what was `left_out`; else None.

    Raises:
        HeartlmError: the ranks cannot meet, a way gives wrong sums, or there are too few GPUs.
    """
    with (
        process_group(ranks, "cpu", meet_at),
        _ways(_spread(ranks, wanted.get("machines", 1)), str(wanted["device"]), mpi) as (ways, left_out),
    ):
        for name, (add_up, device) in ways.items():
            _check(name, add_up, device, ranks.world_size)
        seconds = {name: {str(size): [] for size in wanted["sizes"]} for name in ways}  # type: dict[str, dict[str, list[float]]]
        for size in wanted["sizes"]:
            for round_index in range(wanted["rounds"] + 1):
                for name, (add_up, device) in ways.items():
                    taken_s = _seconds(add_up, size, device)
                    if round_index:
                        seconds[name][str(size)].append(taken_s)
        slowest = _slowest(seconds)
    if not ranks.is_first:
        return None
    return {"num_ranks": ranks.world_size, "seconds": slowest, "left_out": left_out}


def among_mpi_ranks(wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same among the ranks that mpiexec started, MPI among the ways.

    Raises:
        HeartlmError: mpi4py is not installed; and as `among_ranks` does.
    """
    with needs("mpi"):
        from mpi4py import MPI

    world = MPI.COMM_WORLD
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = Ranks(world.Get_rank(), world.Get_size(), node.Get_rank(), node.Get_size())
    with tempfile.TemporaryDirectory() as folder:
        meet_at = world.bcast(_meeting_place(ranks, folder) if ranks.is_first else None)
        found = among_ranks(ranks, meet_at, wanted, world)
        world.Barrier()
    return found


def _meeting_place(ranks: Ranks, folder: str) -> str:
    """Where gloo's ranks meet: at a file in `folder` on one machine, else at a free port of this one."""
    if ranks.local_world_size == ranks.world_size:
        return f"file://{folder}/met"
    with socket.socket() as free:
        free.bind(("", 0))
        return f"tcp://{socket.gethostname()}:{free.getsockname()[1]}"


def _spread(ranks: Ranks, machines: int) -> Ranks:
    """The ranks of one machine as if they were those of several."""
    each = ranks.local_world_size // machines
    return Ranks(ranks.rank, ranks.world_size, ranks.local_rank % each, each)


@contextmanager
def _ways(ranks: Ranks, device: str, mpi: Any) -> Iterator[tuple[dict[str, tuple[Way, torch.device]], list[str]]]:
    """The ways there are, each with the device its numbers lie on, and why others are left out."""
    host = torch.device("cpu")
    ways: dict[str, tuple[Way, torch.device]] = {}
    left_out: list[str] = []
    shared = shared_sum_of(ranks, TIMEOUT_S)
    if isinstance(shared, NodesSum):
        ways["shared memory, gloo between machines"] = shared, host
    elif shared is not None:
        ways["shared memory"] = shared, host
    else:
        left_out.append("shared memory, as ranks are on several machines or there are no compiled kernels")
    ways["gloo"] = dist.all_reduce, host
    enough = torch.cuda.device_count() >= ranks.local_world_size
    if device == "cuda" and not enough:
        raise HeartlmError(f"device: 'cuda' found, {ranks.local_world_size} GPUs expected on each machine")
    if device != "cpu" and enough:
        torch.cuda.set_device(ranks.local_rank)
        group = dist.new_group(backend="nccl")
        ways["NCCL"] = (lambda numbers: dist.all_reduce(numbers, group=group)), torch.device("cuda", ranks.local_rank)
    else:
        left_out.append("NCCL, as not every rank has a GPU")
    if mpi is not None:
        ways["MPI"] = _mpi_way(mpi), host
    else:
        left_out.append("MPI, as the ranks were not started by mpiexec")
    yield ways, left_out


def _mpi_way(world: Any) -> Way:
    from mpi4py import MPI

    return lambda numbers: world.Allreduce(MPI.IN_PLACE, numbers.numpy(), MPI.SUM)


def _check(name: str, add_up: Way, device: torch.device, num_ranks: int) -> None:
    """See that a way adds up.

    Raises:
        HeartlmError: it does not.
    """
    numbers = torch.arange(1000, dtype=torch.float32, device=device)
    add_up(numbers)
    if not torch.equal(numbers.cpu(), num_ranks * torch.arange(1000, dtype=torch.float32)):
        raise HeartlmError(f"{name}: wrong sums over {num_ranks} ranks")


def _seconds(add_up: Way, num_bytes: int, device: torch.device) -> float:
    """Seconds of one all-reduce; small ones go many in a row, as clocks are no finer."""
    message = torch.zeros(num_bytes // 4, device=device)
    in_a_row = max(1, min(16, FILL_BYTES // num_bytes))
    dist.barrier()
    begin_s = time.perf_counter()
    for _ in range(in_a_row):
        add_up(message)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begin_s) / in_a_row


def _slowest(seconds: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, list[float]]]:
    """Of every round what the slowest rank took."""
    found: dict[str, dict[str, list[float]]] = {}
    for way, by_size in seconds.items():
        numbers = torch.tensor(list(by_size.values()), dtype=torch.float64)
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
        found[way] = dict(zip(by_size, numbers.tolist(), strict=True))
    return found
