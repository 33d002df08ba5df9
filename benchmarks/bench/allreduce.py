"""Time of an all-reduce of gradients, by method.

    sizes ─► shared memory, gloo, NCCL, MPI among the same ranks, in turns ─► time = latency + bytes / rate of each

The bench starts the ranks, each on its own cores, or uses the ranks started by torchrun or mpiexec.

    python benchmarks/machine.py allreduce
    python benchmarks/machine.py allreduce --ranks 4 --sizes_kib '[4, 64, 1024]'
    torchrun --nproc-per-node 4 benchmarks/machine.py allreduce
    mpiexec -n 2 python benchmarks/machine.py allreduce
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bench.measure import BenchTable, Chart, Timed, cores
from bench.options import BenchOptions, at_least, each_at_least
from heartlm.distributed.allreduce import AllReduceFit, ask_ranks, fit_points
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError

MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")
"""Environment variables that Open MPI, MPICH and derivatives set for each rank."""


@dataclass(frozen=True)
class Options(BenchOptions):
    """Options of the all-reduce bench.

    Attributes:
        rounds: number of rounds of every size; the median is reported.
        ranks: number of ranks to start; by default one per GPU if there are several, otherwise one per core, 2 to 8.
            Ignored under torchrun or mpiexec.
        machines: treat the ranks as if they ran on this number of machines, equally many on each; traffic between
            these still goes through the loopback device.
        sizes_kib: message sizes in KiB.
        device: auto also measures NCCL if every rank can have a GPU; cpu never does; cuda requires it.
    """

    rounds: int = 15
    ranks: int | None = None
    machines: int = 1
    sizes_kib: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096, 16384)
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            HeartlmError: a value is invalid; the message names the field, what was found and what is expected.
        """
        super().__post_init__()
        each_at_least("sizes_kib", self.sizes_kib, 1)
        if len(set(self.sizes_kib)) < 2:
            raise HeartlmError(f"sizes_kib: {list(self.sizes_kib)} found, two sizes or more expected, to fit a line")
        if self.ranks is not None:
            at_least("ranks", self.ranks, 2)
        at_least("machines", self.machines, 1)


def run(options: Options) -> list[BenchTable]:
    """Measure with the existing ranks, or start ranks to measure with; only the first rank returns tables."""
    tables = _empty_tables(options)
    wanted = {"device": options.device, "rounds": options.rounds, "sizes": [1024 * kib for kib in options.sizes_kib]}
    found = _found(options, wanted)
    if found is None:
        return []
    points, fits = tables
    _fill(points, fits, found)
    return [table.close() for table in tables]


def _found(options: Options, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result of the first rank; None on the others."""
    from bench.adding_up import among_mpi_ranks, among_ranks

    ranks = Ranks.from_environment()
    if ranks.world_size > 1:
        return among_ranks(ranks, "env://", wanted)
    if any(int(os.environ.get(name, "1")) > 1 for name in MPI_SIZES):
        return among_mpi_ranks(wanted)
    num_ranks = _num_ranks(options)
    if num_ranks % options.machines:
        raise HeartlmError(f"machines: {options.machines} found, a divisor of {num_ranks} ranks expected")
    found: dict[str, Any] = ask_ranks(among_ranks, num_ranks, {**wanted, "machines": options.machines})
    return found


def _num_ranks(options: Options) -> int:
    import torch

    num_gpus = 0 if options.device == "cpu" else torch.cuda.device_count()
    if options.device == "cuda" and num_gpus < (options.ranks or 2):
        raise HeartlmError(
            f"device: 'cuda' found, a GPU for each of {options.ranks or 2} ranks expected, {num_gpus} seen"
        )
    return options.ranks or (num_gpus if num_gpus > 1 else min(8, max(2, len(cores()))))


def _empty_tables(options: Options) -> tuple[BenchTable, BenchTable]:
    columns = ("way", "ranks", "KiB", "µs", "spread %", "GB/s", "times gloo")
    points = BenchTable(f"One all-reduce of float32 (median of {options.rounds})", columns)
    points.chart = Chart("lines", ("KiB",), ("µs",), "µs", by="way", log=True)
    fits = BenchTable("Latency and rate that explain it best", ("way", "ranks", "latency µs", "GB/s", "median error %"))
    points.notes.append("GB/s counts the bytes of a message on one rank, not what crosses wires or caches.")
    return points, fits


def _fill(points: BenchTable, fits: BenchTable, found: Mapping[str, Any]) -> None:
    num_ranks = int(found["num_ranks"])
    for way, by_size in found["seconds"].items():
        timed = {int(size): Timed(tuple(taken)) for size, taken in by_size.items()}
        for size, each in timed.items():
            beside = Timed(tuple(found["seconds"]["gloo"][str(size)]))
            rate = size / each.median_s / 1e9
            ratio = each.times_faster_than(beside)
            points.add(way, num_ranks, size / 1024, 1e6 * each.median_s, 100 * each.spread, rate, ratio)
        measured = tuple((size, each.median_s) for size, each in sorted(timed.items()))
        fit = AllReduceFit(*fit_points(measured), num_ranks, way, measured)
        fits.add(way, num_ranks, 1e6 * fit.latency_s, fit.bytes_per_s / 1e9, 100 * fit.median_error)
    points.notes.append(f"Every way gave the sum of what the {num_ranks} ranks held, before it was timed.")
    fits.notes += [f"Not measured: {reason}." for reason in found["left_out"]]
