"""CPU topology: hardware threads of each core, the cores assigned to each process, and its threads. Imports no torch.

    CPU 0 … 127 ─► cores by socket and memory node: (0, 64) (1, 65) … (32, 96) (33, 97) … ─► neighbours for each rank

Linux numbers hardware threads, not cores. The two threads of a core are i and i + 1 on some machines, i and i + N on
others. A split by contiguous numbers could assign the two threads of one core to two ranks, which halves their speed.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

DEVICES = Path("/sys/devices")
CONTROL_GROUPS = Path("/sys/fs/cgroup")

SPIN_COUNT = 1000
"""Rounds that an idle thread of libgomp spins, a few microseconds, before it sleeps; its own default is 300,000.

Spinning threads take the core from the thread that they wait for, if other processes want the cores too.
"""

Item = TypeVar("Item")


class Core(NamedTuple):
    """One core. Cores sort by speed, fastest first, then by socket and NUMA node.

    Attributes:
        slowness: negative of the CPU capacity reported by Linux; it differs only on hybrid processors.
        package: socket.
        node: NUMA node.
        cpus: hardware threads that this process may use, ascending.
    """

    slowness: int
    package: int
    node: int
    cpus: tuple[int, ...]


def cores_of(cpus: Iterable[int], devices: Path = DEVICES) -> list[Core]:
    """Return the cores of `cpus`, sorted. A CPU without topology information counts as a separate core.

    Args:
        cpus: usable CPUs, such as `usable_cpus()`.
        devices: device folder of Linux, `/sys/devices`.
    """
    efficient = set(_numbers(devices / "cpu_atom/cpus"))  # hybrid processors by Intel
    groups: dict[tuple[int, int, int, int], list[int]] = {}
    for cpu in sorted(cpus):
        folder = devices / f"system/cpu/cpu{cpu}"
        siblings = _numbers(folder / "topology/thread_siblings_list") or _numbers(folder / "topology/core_cpus_list")
        # Core numbers repeat in every socket, and on some machines in every die, so the sibling list has priority.
        core = siblings or _numbers(folder / "topology/core_id") or [cpu]
        (package,) = _numbers(folder / "topology/physical_package_id") or [0]
        (capacity,) = _numbers(folder / "cpu_capacity") or [0 if cpu in efficient else 1]
        node = min((int(path.name[4:]) for path in folder.glob("node[0-9]*")), default=0)
        groups.setdefault((-capacity, package, node, min(core)), []).append(cpu)
    return sorted(Core(slow, package, node, tuple(cpus)) for (slow, package, node, _), cpus in groups.items())


def usable_cpus() -> list[int]:
    """Return the hardware threads that this process may use, ascending: all of them where no system call tells."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def usable_cores() -> list[Core]:
    """Return the cores that this process may use."""
    return cores_of(usable_cpus())


def bind(cpus: Iterable[int]) -> None:
    """Pin this thread, and those that it starts later, to `cpus`. No effect where the system has no such call."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def limit_spinning() -> None:
    """Let threads of OpenMP sleep soon when they wait, unless the user chose how they wait or torch is loaded already.

    torch loads libgomp, which reads the environment once.
    """
    if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


def default_threads() -> int | None:
    """Return the number of threads for a process alone on its machine: one per core, at most its quota of CPU time.

    None if `OMP_NUM_THREADS` or `MKL_NUM_THREADS` states it: torch follows them.
    """
    if {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys():
        return None
    return max(1, math.floor(min(len(usable_cores()), cpu_quota())))


_threads: int | None = None


def compute_threads() -> int:
    """Return the number of threads of kernels and products of NumPy in this process; see `limit_threads`."""
    if _threads is None:
        stated = os.environ.get("OMP_NUM_THREADS") or os.environ.get("MKL_NUM_THREADS") or ""
        first = stated.partition(",")[0].strip()  # the others are of nested loops
        _limit_numpy(default_threads() or (int(first) if first.isdigit() and int(first) else len(usable_cores())))
    assert _threads is not None
    return _threads


def limit_threads(num: int) -> None:
    """Compute with `num` threads in this process: kernels, products of NumPy, and torch if it is loaded."""
    _limit_numpy(num)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(num)


def _limit_numpy(num: int) -> None:
    from threadpoolctl import threadpool_limits

    global _threads
    _threads = num
    threadpool_limits(num, user_api="blas")


def cpu_quota(groups: Path = Path("/proc/self/cgroup"), mounted: Path = CONTROL_GROUPS) -> float:
    """Return the number of CPUs whose time the control groups of this process may use; infinity if unlimited.

    Args:
        groups: file with the groups of a process, one per line: number, controllers (empty in version 2), path.
        mounted: folder of the hierarchies.
    """
    lowest = math.inf
    for line in _lines(groups):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = mounted / controllers if controllers else mounted
        folder = root / path.lstrip("/")
        # In a container the path may be that of the host; then only the root is there. Each parent may limit too.
        for each in (folder, *folder.parents):
            limit = [word for line in _lines(each / "cpu.max") for word in line.split()]
            limit = limit or [*_lines(each / "cpu.cfs_quota_us"), *_lines(each / "cpu.cfs_period_us")]
            if len(limit) == 2 and limit[0] not in ("max", "-1"):
                lowest = min(lowest, int(limit[0]) / int(limit[1]))
            if each == root:
                break
    return lowest


def share_of_cores(cores: Sequence[Core], index: int, num_processes: int) -> list[Core]:
    """Return the cores of process `index` of `num_processes`: an equal, contiguous part. No core stays idle.

    On hybrid processors the cores of each kind are distributed evenly, because ranks wait for the slowest.
    Processes that share a core get different hardware threads as long as there are enough.
    """
    if num_processes > len(cores):
        core = cores[index * len(cores) // num_processes]
        first = -(-cores.index(core) * num_processes // len(cores))  # first process on this core
        last = -(-(cores.index(core) + 1) * num_processes // len(cores))
        return [core._replace(cpus=tuple(share_of(core.cpus, index - first, last - first)))]
    if len({core.slowness for core in cores}) > 1:
        return list(cores[index::num_processes])
    return list(share_of(cores, index, num_processes))


def share_of(items: Sequence[Item], index: int, num_parts: int) -> Sequence[Item]:
    """Return part `index` of `num_parts` equal, contiguous parts, or one shared item if there are too few."""
    if len(items) < num_parts:
        return [items[index % len(items)]]
    return items[index * len(items) // num_parts : (index + 1) * len(items) // num_parts]


def cpus_of(cores: Iterable[Core]) -> list[int]:
    """Return all hardware threads of `cores`, ascending."""
    return sorted(cpu for core in cores for cpu in core.cpus)


def pin(cpus: Iterable[int]) -> None:
    """Pin every thread of this process to `cpus`, as `bind`; threads started later inherit the affinity."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = list(cpus)
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), allowed)


def format_cpus(cpus: Iterable[int]) -> str:
    """Return CPU numbers in the list format of Linux, for example `0-31,64-95`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _numbers(path: Path) -> list[int]:
    """Return the numbers of a Linux CPU list file, such as `0-3,8`; empty if the file is unreadable or malformed."""
    try:
        runs = [part.split("-") for part in path.read_text(encoding="ascii").strip().split(",") if part]
        return [number for run in runs for number in range(int(run[0]), int(run[-1]) + 1)]
    except (OSError, ValueError):
        return []


def _lines(path: Path) -> list[str]:
    """Return the lines of a small file of Linux; none if it is unreadable."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
