"""All-reduce benchmark: measures the time over message sizes, and fits a latency and a bandwidth.

    sizes ─► back-to-back all-reduces among the ranks ─► median seconds of each size ─► time = latency + bytes / rate

Under torchrun or in an allocation the existing ranks are measured. Otherwise ranks are started on this machine, each on
its own cores or GPU (NCCL). As in training, CPU ranks of one machine use shared memory. They use gloo if /dev/shm is
full or there are several machines.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from heartlm.cores import cpus_of, pin, usable_cores
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError
from heartlm.files import read_json, write_json
from heartlm.typed import typed

SIZES_BYTES = tuple(4**power for power in range(5, 13))
"""1 KiB to 16 MiB: from the sums of a step to the gradients of a small model."""

MODULE = "heartlm.distributed.allreduce"

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
        device: cpu for gloo, cuda for NCCL; auto uses GPUs if there is one for every rank.
        sizes_bytes: message sizes, multiples of 4.
        rounds: repetitions of each size; the result is their median.

    Raises:
        HeartlmError: fewer than 2 ranks, fewer GPUs than ranks, or a rank failed.
    """
    ranks = Ranks.from_environment()
    if ranks.world_size > 1:
        with process_group(ranks, device):
            return measure_in_group(sizes_bytes, rounds)
    if device != "cpu":
        import torch

        num_gpus, least = torch.cuda.device_count(), num_ranks or 2
        if device == "cuda" and num_gpus < least:
            raise HeartlmError(f"device: 'cuda' found, a GPU for each of {least} ranks expected, {num_gpus} seen")
        device = "cuda" if num_gpus >= least else "cpu"
        num_ranks = num_gpus if device == "cuda" and num_ranks is None else num_ranks
    num_ranks = num_ranks or min(8, max(2, len(usable_cores())))
    if num_ranks < 2:
        raise HeartlmError(f"num_ranks: {num_ranks} found, at least 2 expected: one rank has no other to add up with")
    wanted = {"device": device, "sizes_bytes": list(sizes_bytes), "rounds": rounds}
    return typed(AllReduceFit, ask_ranks(MODULE, num_ranks, wanted))


def measure_in_group(sizes_bytes: Sequence[int] = SIZES_BYTES, rounds: int = ROUNDS) -> AllReduceFit:
    """Measure in the existing default process group; every rank calls this and returns the same fit."""
    import torch
    import torch.distributed as dist

    from heartlm.distributed.shared_memory import shared_sum_of

    backend = str(dist.get_backend())
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
    act: Callable[[Any], object] = dist.all_reduce
    if backend == "gloo" and (shared := shared_sum_of(Ranks.from_environment(), TIMEOUT_S)) is not None:
        act, backend = shared, "shared memory"
    medians = torch.tensor(
        [_median_s(size, rounds, device, act) for size in sizes_bytes], dtype=torch.float64, device=device
    )
    dist.all_reduce(medians, dist.ReduceOp.MAX)
    points = tuple(zip(sizes_bytes, medians.tolist(), strict=True))
    return AllReduceFit(*fit_points(points), dist.get_world_size(), backend, points)


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
    return statistics.median(taken_s[1:])


@contextmanager
def process_group(ranks: Ranks, device: str = "auto", meet_at: str = "env://") -> Iterator[None]:
    """Join a process group of gloo or NCCL within the context, or use the existing one.

    Args:
        ranks: rank of this process and number of ranks.
        device: cpu for gloo; auto uses GPUs if there is one for every rank of this machine.
        meet_at: rendezvous address in the format of torch; by default from torchrun.

    Raises:
        HeartlmError: the rendezvous failed, or a rank was lost.
    """
    import torch
    import torch.distributed as dist

    from heartlm.distributed.parallel import joined, reason_of

    if dist.is_initialized():
        yield
        return
    use_gpu = device != "cpu" and torch.cuda.device_count() >= ranks.local_world_size
    cores = usable_cores()
    try:
        with joined("cuda" if use_gpu else "cpu", threads=1, timeout_s=TIMEOUT_S, ranks=ranks, meet_at=meet_at):
            yield
    except RuntimeError as error:
        raise HeartlmError(f"rank {ranks.rank} cannot add up with the others: {reason_of(error)}") from error
    finally:
        pin(cpus_of(cores))


def ask_ranks(module: str, num_ranks: int, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Run `module` on `num_ranks` ranks of this machine with torchrun; return the JSON in the last line of its output.

    Args:
        module: module to run with `python -m`, with `wanted` as JSON in its only argument.
        num_ranks: number of ranks, with one thread each.
        wanted: arguments of the module.

    Raises:
        HeartlmError: a rank failed or timed out.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks), "-m", module]
    # Ranks use the import path of this process, since `module` may be outside of heartlm.
    more = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(
            [sys.executable, *launcher, json.dumps(wanted)],
            capture_output=True,
            text=True,
            env=os.environ | more,
            timeout=2 * TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise HeartlmError(f"{num_ranks} ranks did not end an all-reduce within {2 * TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise HeartlmError(f"a rank failed: {next((line for line in lines if 'Error: ' in line), lines[-1])}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(arguments: Sequence[str]) -> None:
    """Measure as one of the ranks that `measure_all_reduce` started; rank 0 prints the fit."""
    ranks, wanted = Ranks.from_environment(), json.loads(arguments[0])
    with process_group(ranks, wanted["device"]):
        fit = measure_in_group(wanted["sizes_bytes"], wanted["rounds"])
    if ranks.is_first:
        print(json.dumps(asdict(fit)))


if __name__ == "__main__":
    main(sys.argv[1:])
