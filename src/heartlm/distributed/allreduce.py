"""How long ranks take to add up their gradients: measured over message sizes, fitted by a latency and a rate.

    sizes ─► back-to-back all-reduces among the ranks ─► median seconds of each size ─► time = latency + bytes / rate

Under torchrun, or in an allocation, the ranks that are there are measured; otherwise ranks are started on this machine,
each on cores of its own, or one on each GPU (NCCL). CPU ranks of one machine add up as training does, through shared
memory, and over gloo where /dev/shm is full or there are more machines.
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
from dataclasses import asdict, dataclass, replace
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

QUICK_SIZES_BYTES = SIZES_BYTES[1::2]

MODULE = "heartlm.distributed.allreduce"

ROUNDS = 9
FILL_BYTES = 1 << 20
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class AllReduceFit:
    """What an all-reduce among `world_size` ranks takes.

    Attributes:
        latency_s: of a message of no length.
        bytes_per_s: message bytes of one rank a second, not what crosses the wires.
        world_size: ranks that add up.
        backend: gloo, nccl or shared memory.
        points: what was measured, `(num_bytes, median seconds)` of each size, smallest first.
    """

    latency_s: float
    bytes_per_s: float
    world_size: int
    backend: str
    points: tuple[tuple[int, float], ...]

    def time_s(self, num_bytes: float) -> float:
        """Seconds that a message of `num_bytes` takes."""
        return self.latency_s + num_bytes / self.bytes_per_s

    @property
    def twice(self) -> AllReduceFit:
        """The all-reduce of which this all-gather is half (Thakur, Rabenseifner & Gropp 2005)."""
        points = tuple((size, 2 * taken_s) for size, taken_s in self.points)
        return replace(self, latency_s=2 * self.latency_s, bytes_per_s=self.bytes_per_s / 2, points=points)

    @property
    def median_error(self) -> float:
        """Share by which the fit misses what was measured, in the middle of the points."""
        return statistics.median(abs(self.time_s(size) / taken_s - 1) for size, taken_s in self.points)

    def save(self, path: Path) -> None:
        """Write it to `path` as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> AllReduceFit:
        """Read it from `path`.

        Raises:
            HeartlmError: there is none, or it is broken.
        """
        fit = read_json(path, cls)
        if fit.bytes_per_s <= 0 or fit.world_size < 1 or any(taken_s <= 0 for _, taken_s in fit.points):
            raise HeartlmError(f"{path}: a rate, ranks and times above 0 expected: measure it again")
        return fit


def fit_points(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Latency in seconds and bytes a second that miss `points` by the least sum of relative errors; neither below 0.

    A sum of absolute values is least on a line through two of the points, or, at the bounds, through one; so all of
    those are tried. One odd point moves nothing.

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
    gather: bool = False,
) -> AllReduceFit:
    """Measure among the ranks that torchrun started, or among `num_ranks` on this machine.

    Args:
        num_ranks: to start; by default one a GPU where there are several, otherwise one a core, 2 to 8. It means
            nothing where ranks are there already.
        device: cpu for gloo, cuda for NCCL; auto takes GPUs where every rank can have one.
        sizes_bytes: message sizes, multiples of 4.
        rounds: of each size; the median counts.
        gather: measure an all-gather in its place, of which each rank has a part of the message, as FSDP2 makes it.

    Raises:
        HeartlmError: fewer than 2 ranks, fewer GPUs than ranks, or a rank failed.
    """
    ranks = Ranks.from_environment()
    if ranks.world_size > 1:
        with process_group(ranks, device):
            return measure_in_group(sizes_bytes, rounds, gather)
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
    wanted = {"device": device, "sizes_bytes": list(sizes_bytes), "rounds": rounds, "gather": gather}
    return typed(AllReduceFit, ask_ranks(MODULE, num_ranks, wanted))


def measure_in_group(
    sizes_bytes: Sequence[int] = SIZES_BYTES, rounds: int = ROUNDS, gather: bool = False
) -> AllReduceFit:
    """Measure in the default process group, which is there; every rank calls this, and all return the same."""
    import torch
    import torch.distributed as dist

    from heartlm.distributed.shared_memory import shared_sum_of

    backend = str(dist.get_backend())
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
    act: Callable[[Any], object] = dist.all_reduce
    if gather:
        num_ranks, rank = dist.get_world_size(), dist.get_rank()

        def act(message: torch.Tensor) -> None:
            own = message[: len(message) // num_ranks * num_ranks]
            dist.all_gather_into_tensor(own, own.chunk(num_ranks)[rank].clone())

    elif backend == "gloo" and (shared := shared_sum_of(Ranks.from_environment(), TIMEOUT_S)) is not None:
        act, backend = shared, "shared memory"
    medians = torch.tensor(
        [_median_s(size, rounds, device, act) for size in sizes_bytes], dtype=torch.float64, device=device
    )
    dist.all_reduce(medians, dist.ReduceOp.MAX)
    points = tuple(zip(sizes_bytes, medians.tolist(), strict=True))
    return AllReduceFit(*fit_points(points), dist.get_world_size(), backend, points)


def _median_s(num_bytes: int, rounds: int, device: Any, act: Callable[[Any], object]) -> float:
    """Seconds of one all-reduce in the middle of `rounds`; small ones go many in a row, as clocks are no finer."""
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
    """Be one of several ranks in a group of gloo or NCCL; where they are in one already, stay in it.

    Args:
        ranks: where this process stands.
        device: cpu for gloo; auto takes GPUs where every rank of this machine can have one.
        meet_at: where, as torch writes it; by default where torchrun says.

    Raises:
        HeartlmError: the others cannot be met, or one goes.
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
    """Let torchrun start `num_ranks` processes of `module` on this machine; what the first of them prints last, JSON.

    Args:
        module: run as `python -m`, with `wanted` as JSON in its only argument.
        num_ranks: how many, of one thread each.
        wanted: what they are sent.

    Raises:
        HeartlmError: one failed, or they do not end.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks), "-m", module]
    # A rank imports from where this process does: `module` may be outside of heartlm.
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
    """Measure what `measure_all_reduce` wants, as one of the ranks it started; the first prints the fit."""
    ranks, wanted = Ranks.from_environment(), json.loads(arguments[0])
    with process_group(ranks, wanted["device"]):
        fit = measure_in_group(wanted["sizes_bytes"], wanted["rounds"], wanted["gather"])
    if ranks.is_first:
        print(json.dumps(asdict(fit)))


if __name__ == "__main__":
    main(sys.argv[1:])
