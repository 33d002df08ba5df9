"""All-reduce benchmark: measures the time over message sizes, and fits a latency and a bandwidth.

    sizes ─► back-to-back all-reduces among the ranks ─► median seconds of each size ─► time = latency + bytes / rate

Under torchrun or in an allocation the existing ranks are measured. Otherwise ranks are started on this machine, each on
its own cores or GPU (NCCL). As in training, CPU ranks of one machine use shared memory. They use gloo if /dev/shm is
full or there are several machines.
"""

from __future__ import annotations

import pickle
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import write_json
from heartlm.storage.reading import read_json
from heartlm.system.cores import usable_cores

SIZES_BYTES = tuple(4**power for power in range(5, 13))
"""1 KiB to 16 MiB: from the sums of a step to the gradients of a small model."""

ROUNDS = 9
FILL_BYTES = 1 << 20
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class AllReduceFit:
    """Fitted time of an all-reduce among `world_size` ranks.

    Attributes:
        latency_s: time of an empty message in s.
        bytes_per_s: message bytes of one rank per second, not bytes on the network.
        world_size: number of ranks.
        backend: gloo, nccl or shared memory.
        points: measurements, `(num_bytes, median seconds)` of each size, smallest first.
    """

    latency_s: float
    bytes_per_s: float
    world_size: int
    backend: str
    points: tuple[tuple[int, float], ...]

    def time_s(self, num_bytes: float) -> float:
        """Return the fitted time in s of a message of `num_bytes`."""
        return self.latency_s + num_bytes / self.bytes_per_s

    @property
    def median_error(self) -> float:
        """Median relative error of the fit over the measured points."""
        return statistics.median(abs(self.time_s(size) / taken_s - 1) for size, taken_s in self.points)

    def save(self, path: Path) -> None:
        """Write the fit to `path` as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> AllReduceFit:
        """Read a fit from `path`.

        Raises:
            HeartlmError: the file is missing or invalid.
        """
        fit = read_json(path, cls)
        if fit.bytes_per_s <= 0 or fit.world_size < 1 or any(taken_s <= 0 for _, taken_s in fit.points):
            raise HeartlmError(f"{path}: a rate, ranks and times above 0 expected: measure it again")
        return fit


def fit_points(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Fit latency in s and bytes per second, both ≥ 0, to `points` by the least sum of absolute relative errors.

    The minimum is a line through two of the points, or through one at the bounds, so all of these are tried. The fit is
    robust to outliers.

    Args:
        points: bytes, above 0, and seconds of at least two sizes.
    """
    lines = []
    for (size, taken_s), (other, other_s) in combinations(points, 2):
        if size != other:
            slope = (other_s - taken_s) / (other - size)
            lines.append((taken_s - slope * size, slope))
    lines += [(0.0, taken_s / size) for size, taken_s in points]
    possible = [line for line in lines if line[0] >= 0 and line[1] > 0]

    def missed(line: tuple[float, float]) -> float:
        return sum(abs((line[0] + line[1] * size) / taken_s - 1) for size, taken_s in points)

    latency_s, s_per_byte = min(possible, key=missed)
    return latency_s, 1 / s_per_byte


def measure_all_reduce(
    num_ranks: int | None = None,
    *,
    device: str = "auto",
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    rounds: int = ROUNDS,
) -> AllReduceFit:
    """Measure among the ranks started by torchrun, or among `num_ranks` new ranks on this machine.

    Args:
        num_ranks: number of ranks to start; by default one per GPU if there are several, otherwise one per core, 2 to
            8. Ignored under torchrun.
        device: cpu for gloo; auto uses GPUs with NCCL if there is one for every rank.
        sizes_bytes: message sizes, multiples of 4.
        rounds: repetitions of each size; the result is their median.

    Raises:
        HeartlmError: fewer than 2 ranks, or a rank failed.
    """
    ranks = Ranks.from_environment()
    if ranks.world_size > 1:
        return _measure(ranks, "env://", device, sizes_bytes, rounds)
    import torch

    num_gpus = torch.cuda.device_count() if device != "cpu" else 0
    num_ranks = num_ranks or (num_gpus if num_gpus > 1 else min(8, max(2, len(usable_cores()))))
    if num_ranks < 2:
        raise HeartlmError(f"num_ranks: {num_ranks} found, at least 2 expected: one rank has no other to add up with")
    fit: AllReduceFit = ask_ranks(_measure, num_ranks, device, sizes_bytes, rounds)
    return fit


def _measure(ranks: Ranks, meet_at: str, device: str, sizes_bytes: Sequence[int], rounds: int) -> AllReduceFit:
    """Measure as one of `ranks`; each returns the same fit."""
    import torch
    import torch.distributed as dist

    from heartlm.distributed.shared_memory import shared_sum_of

    with process_group(ranks, device, meet_at):
        backend = str(dist.get_backend())
        target = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        act: Callable[[Any], object] = dist.all_reduce
        if backend == "gloo" and (shared := shared_sum_of(ranks, TIMEOUT_S)) is not None:
            act, backend = shared, "shared memory"
        medians = torch.tensor(
            [_median_s(size, rounds, target, act) for size in sizes_bytes], dtype=torch.float64, device=target
        )
        dist.all_reduce(medians, dist.ReduceOp.MAX)  # the slowest rank counts, and all ranks fit the same points
        points = tuple(zip(sizes_bytes, medians.tolist(), strict=True))
        return AllReduceFit(*fit_points(points), ranks.world_size, backend, points)


def _median_s(num_bytes: int, rounds: int, device: Any, act: Callable[[Any], object]) -> float:
    """Return the median time in s of one all-reduce over `rounds`; small ones are batched for clock resolution."""
    import torch

    message = torch.zeros(num_bytes // 4, device=device)
    in_a_row = max(1, min(16, FILL_BYTES // num_bytes))
    taken_s = []
    for _ in range(rounds + 1):
        begin_s = time.perf_counter()
        for _ in range(in_a_row):
            act(message)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken_s.append((time.perf_counter() - begin_s) / in_a_row)
    return statistics.median(taken_s[1:])  # the first also connects the ranks


@contextmanager
def process_group(ranks: Ranks, device: str = "auto", meet_at: str = "env://") -> Iterator[None]:
    """Join a process group of gloo or NCCL within the context; CPU ranks are pinned to their cores.

    Args:
        ranks: rank of this process and number of ranks.
        device: cpu for gloo; auto uses GPUs if there is one for every rank of this machine.
        meet_at: rendezvous address in the format of torch; by default from torchrun.

    Raises:
        HeartlmError: the rendezvous failed, or a rank was lost.
    """
    import torch

    from heartlm.distributed.parallel import joined, reason_of

    use_gpu = device != "cpu" and torch.cuda.device_count() >= ranks.local_world_size
    try:
        with joined("cuda" if use_gpu else "cpu", threads=1, timeout_s=TIMEOUT_S, ranks=ranks, meet_at=meet_at):
            yield
    except RuntimeError as error:
        raise HeartlmError(f"rank {ranks.rank} cannot add up with the others: {reason_of(error)}") from error


def ask_ranks(measure: Callable[..., Any], num_ranks: int, *arguments: Any) -> Any:
    """Call `measure(ranks, meet_at, *arguments)` in new processes, one per rank; return the result of rank 0.

    Args:
        measure: function that can be imported; `meet_at` is as in `process_group`.
        num_ranks: number of ranks, all on this machine.
        arguments: further arguments, which are pickled, as is the result.

    Raises:
        HeartlmError: a rank failed.
    """
    from torch.multiprocessing.spawn import ProcessException, spawn

    with tempfile.TemporaryDirectory() as folder:
        try:
            spawn(_ask_rank, (num_ranks, Path(folder), measure, arguments), num_ranks)  # type: ignore[no-untyped-call]
        except ProcessException as error:
            raise HeartlmError(f"a rank failed: {str(error).strip().splitlines()[-1]}") from None
        return pickle.loads((Path(folder) / "measured").read_bytes())


def _ask_rank(rank: int, num_ranks: int, folder: Path, measure: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    measured = measure(Ranks(rank, num_ranks, rank, num_ranks), f"file://{folder}/store", *arguments)
    if rank == 0:
        (folder / "measured").write_bytes(pickle.dumps(measured))
