"""Which CPUs form a core, and which cores a process takes as its own. Imports no torch.

    CPU 0 … 127 ─► cores by socket and memory node: (0, 64) (1, 65) … (32, 96) (33, 97) … ─► neighbours for each rank

Linux numbers hardware threads, not cores: the two threads of a core are i and i + 1 on some machines and i and i + N on
others. Shares of contiguous numbers would give two ranks the two threads of one core, which compute at half the speed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

DEVICES = Path("/sys/devices")

Item = TypeVar("Item")


class Core(NamedTuple):
    """One core; cores sort by speed, the fastest first, then by socket and memory node.

    Attributes:
        slowness: minus the capacity that Linux states; differs only between the kinds of cores of a hybrid processor.
        package: socket.
        node: memory node (NUMA).
        cpus: its hardware threads that may be used, ascending.
    """

    slowness: int
    package: int
    node: int
    cpus: tuple[int, ...]


def cores_of(cpus: Iterable[int], devices: Path = DEVICES) -> list[Core]:
    """The cores that `cpus` belong to, sorted; a CPU whose topology is not stated is a core of its own.

    Args:
        cpus: that may be used, such as `os.sched_getaffinity(0)`.
        devices: folder that Linux keeps in `/sys/devices`.
    """
    efficient = set(_numbers(devices / "cpu_atom/cpus"))  # of hybrid processors by Intel
    groups: dict[tuple[int, int, int, int], list[int]] = {}
    for cpu in sorted(cpus):
        folder = devices / f"system/cpu/cpu{cpu}"
        siblings = _numbers(folder / "topology/thread_siblings_list") or _numbers(folder / "topology/core_cpus_list")
        # Numbers of cores repeat in every socket, and on some machines in every die, so siblings come first.
        core = siblings or _numbers(folder / "topology/core_id") or [cpu]
        (package,) = _numbers(folder / "topology/physical_package_id") or [0]
        (capacity,) = _numbers(folder / "cpu_capacity") or [0 if cpu in efficient else 1]
        node = min((int(path.name[4:]) for path in folder.glob("node[0-9]*")), default=0)
        groups.setdefault((-capacity, package, node, min(core)), []).append(cpu)
    return sorted(Core(slow, package, node, tuple(cpus)) for (slow, package, node, _), cpus in groups.items())


def usable_cores() -> list[Core]:
    """The cores that this process may use."""
    return cores_of(os.sched_getaffinity(0))


def share_of_cores(cores: Sequence[Core], place: int, num_places: int) -> list[Core]:
    """The cores of process `place` of `num_places`: an equal part, neighbours together; none stays idle.

    Of cores of several kinds each process gets equally many, as ranks wait for the slowest. Processes that have to
    share a core get different hardware threads of it, while there are enough.
    """
    if num_places > len(cores):
        core = cores[place * len(cores) // num_places]
        first = -(-cores.index(core) * num_places // len(cores))  # of the processes on this core
        last = -(-(cores.index(core) + 1) * num_places // len(cores))
        return [core._replace(cpus=tuple(share_of(core.cpus, place - first, last - first)))]
    if len({core.slowness for core in cores}) > 1:
        return list(cores[place::num_places])
    return list(share_of(cores, place, num_places))


def share_of(items: Sequence[Item], place: int, num_places: int) -> Sequence[Item]:
    """The items of `place`: an equal part, neighbours together; one, shared, where there are too few."""
    if len(items) < num_places:
        return [items[place % len(items)]]
    return items[place * len(items) // num_places : (place + 1) * len(items) // num_places]


def cpus_of(cores: Iterable[Core]) -> list[int]:
    """All hardware threads of `cores`, ascending."""
    return sorted(cpu for core in cores for cpu in core.cpus)


def pin(cpus: Iterable[int]) -> None:
    """Keep every thread of this process on `cpus`; threads started later inherit it."""
    allowed = list(cpus)
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), allowed)


def format_cpus(cpus: Iterable[int]) -> str:
    """Ascending numbers as Linux writes them, for example `0-31,64-95`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _numbers(path: Path) -> list[int]:
    """Numbers in a file of Linux, such as `0-3,8`; none where it cannot be read or says something else."""
    try:
        runs = [part.split("-") for part in path.read_text(encoding="ascii").strip().split(",") if part]
        return [number for run in runs for number in range(int(run[0]), int(run[-1]) + 1)]
    except (OSError, ValueError):
        return []
