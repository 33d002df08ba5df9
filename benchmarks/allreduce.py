"""Time of an all-reduce of gradients: shared memory, gloo, NCCL and MPI among the same ranks, in turns.

    python -m benchmarks.allreduce
    python -m benchmarks.allreduce --ranks 4 --machines 2 --kib 4 64 1024
    torchrun --nproc-per-node 4 benchmarks/allreduce.py     # the ranks that are there, of all nodes
    mpiexec -n 2 python -m benchmarks.allreduce             # MPI is one of the ways

Ranks are started on cores or GPUs of their own, unless torchrun or mpiexec has started them; --machines counts them as
those of several machines. Latency and rate are
fitted to the measured times with the least sum of relative errors. The tables are written to runs/bench/allreduce.json.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heartlm.distributed.allreduce import FILL_BYTES, TIMEOUT_S, AllReduceFit, ask_ranks, fit_points, process_group
from heartlm.distributed.ranks import Ranks
from heartlm.distributed.shared_memory import NodesSum, shared_sum_of
from heartlm.errors import HeartlmError, needs
from lab.measure import BenchTable, Timed, cores
from lab.output import write_results
from lab.places import options as parser_of

MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")
"""Environment variables that Open MPI, MPICH and derivatives set for each rank."""
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


def measured(options: argparse.Namespace) -> dict[str, Any] | None:
    """Measure with the ranks that are there, or start some; None on all ranks but the first."""
    wanted = {"device": options.device, "rounds": options.rounds, "sizes": [1024 * kib for kib in options.kib]}
    ranks = Ranks.from_environment()
    if ranks.world_size > 1:
        return among_ranks(ranks, "env://", wanted)
    if any(int(os.environ.get(name, "1")) > 1 for name in MPI_SIZES):
        return among_mpi_ranks(wanted)
    num_gpus = 0 if options.device == "cpu" else torch.cuda.device_count()
    num_ranks = options.ranks or (num_gpus if num_gpus > 1 else min(8, max(2, len(cores()))))
    if num_ranks < 2 or num_ranks % options.machines:
        raise HeartlmError(f"--ranks: {num_ranks} found, 2 or more expected, a multiple of --machines")
    if options.device == "cuda" and num_gpus < num_ranks:
        raise HeartlmError(f"--device cuda: a GPU for each of {num_ranks} ranks expected, {num_gpus} seen")
    found: dict[str, Any] = ask_ranks(among_ranks, num_ranks, {**wanted, "machines": options.machines})
    return found


def tables_of(found: Mapping[str, Any], points: BenchTable, fits: BenchTable) -> None:
    """Fill the rows of all sizes, and of the line through them."""
    num_ranks = int(found["num_ranks"])
    for way, by_size in found["seconds"].items():
        timed = {int(size): Timed(tuple(taken)) for size, taken in by_size.items()}
        for size, each in timed.items():
            ratio = each.times_faster_than(Timed(tuple(found["seconds"]["gloo"][str(size)])))
            rate = size / each.median_s / 1e9
            points.add(way, num_ranks, size / 1024, 1e6 * each.median_s, 100 * each.spread, rate, ratio)
        measured = tuple((size, each.median_s) for size, each in sorted(timed.items()))
        fit = AllReduceFit(*fit_points(measured), num_ranks, way, measured)
        fits.add(way, num_ranks, 1e6 * fit.latency_s, fit.bytes_per_s / 1e9, 100 * fit.median_error)
    points.notes.append("GB/s counts the bytes of a message on one rank, not what crosses wires or caches.")
    points.notes.append(f"Every way gave the sum of what the {num_ranks} ranks held, before it was timed.")
    fits.notes += [f"Not measured: {reason}." for reason in found["left_out"]]


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, machines=1, rounds=15)
    parser.add_argument("--ranks", type=int, help="to start; by default one for each GPU, or core, 2 to 8")
    parser.add_argument("--kib", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1024, 4096, 16384], help="sizes")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto measures NCCL, if any")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder of the tables")
    options = parser.parse_args(words)
    if len(set(options.kib)) < 2 or min(*options.kib, options.rounds, options.machines) < 1:
        parser.error("--kib: two sizes or more expected, to fit a line; --kib, --rounds and --machines from 1 on")
    columns = ("way", "ranks", "KiB", "µs", "spread %", "GB/s", "times gloo")
    points = BenchTable(f"One all-reduce of float32 (median of {options.rounds})", columns)
    fits = BenchTable("Latency and rate that explain it best", ("way", "ranks", "latency µs", "GB/s", "median error %"))
    try:
        found = measured(options)
        if found is not None:
            tables_of(found, points, fits)
            write_results("allreduce", "All-reduce", [points.close(), fits.close()], folder=options.out)
            print(points.markdown(), fits.markdown(), sep="\n")
    except HeartlmError as error:
        print(f"allreduce.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
