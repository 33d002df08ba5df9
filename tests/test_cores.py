"""Cores are what the machine says they are: layouts of real machines, and what each rank must get there."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heartlm.system import cores
from heartlm.system.cores import (
    SPIN_COUNT,
    Core,
    cores_of,
    cpu_quota,
    cpus_of,
    default_threads,
    format_cpus,
    share_of_cores,
    usable_cores,
)


def numbers(text: str) -> list[int]:
    """`0-3,8` as numbers."""
    runs = (part.partition("-") for part in text.split(",") if part)
    return [number for first, _, last in runs for number in range(int(first), int(last or first) + 1)]


@dataclass
class Layout:
    """A machine as `lscpu -e=CPU,NODE,SOCKET,CORE` shows it.

    Attributes:
        siblings: hardware threads of each core, cores in the order of their numbers.
        sockets: CPUs of each socket.
        nodes: CPUs of each memory node.
        core_ids: of each core; by default they count.
        atom: CPUs of the efficient cores of a hybrid processor.
        name: of the file with the siblings.
    """

    siblings: list[list[int]]
    sockets: list[str]
    nodes: list[str] = field(default_factory=list)
    core_ids: list[int] = field(default_factory=list)
    atom: str = ""
    name: str = "thread_siblings_list"

    def write(self, devices: Path) -> Path:
        """The folder of Linux that says so."""
        for place, core in enumerate(self.siblings):
            for cpu in core:
                topology = devices / f"system/cpu/cpu{cpu}/topology"
                topology.mkdir(parents=True)
                (topology / "core_id").write_text(f"{self.core_ids[place] if self.core_ids else place}\n")
                (topology / self.name).write_text(f"{format_cpus(core)}\n")
                (socket,) = (each for each, cpus in enumerate(self.sockets) if cpu in numbers(cpus))
                (topology / "physical_package_id").write_text(f"{socket}\n")
                for node, cpus in enumerate(self.nodes):
                    if cpu in numbers(cpus):
                        (topology.parent / f"node{node}").mkdir()
        if self.atom:
            (devices / "cpu_atom").mkdir()
            (devices / "cpu_atom/cpus").write_text(f"{self.atom}\n")
        return devices


MELUXINA_GPU = Layout(  # 2 × AMD EPYC 7452: 32 cores of two threads each, the second ones after all first ones
    [[cpu, cpu + 64] for cpu in range(64)],
    sockets=["0-31,64-95", "32-63,96-127"],
    nodes=["0-15,64-79", "16-31,80-95", "32-47,96-111", "48-63,112-127"],
)
LAPTOP = Layout([[0, 1], [2, 3], [4, 5], [6, 7]], sockets=["0-7"], nodes=["0-7"])  # Core i7-8650U and its like
HYBRID = Layout(  # Core i7-1260P: 4 fast cores of two threads, 8 efficient ones of one
    [[0, 1], [2, 3], [4, 5], [6, 7], *([cpu] for cpu in range(8, 16))],
    sockets=["0-15"],
    nodes=["0-15"],
    core_ids=[0, 4, 8, 12, 16, 17, 18, 19, 20, 21, 22, 23],
    atom="8-15",
)
XEON_IN_TURN = Layout(  # PowerEdge with 2 × Xeon Silver 4110: sockets take turns, core numbers repeat and have gaps
    [[cpu, cpu + 16] for cpu in range(16)],
    sockets=["0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30", "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31"],
    nodes=["0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30", "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31"],
    core_ids=[0, 0, 1, 1, 2, 2, 3, 3, 8, 8, 9, 9, 10, 10, 11, 11],
)
DIES = Layout(  # like Xeon Platinum 9242: numbers of cores repeat in each die of a socket; the list by its newer name
    [[0, 8], [1, 9], [2, 10], [3, 11], [4, 12], [5, 13], [6, 14], [7, 15]],
    sockets=["0-15"],
    core_ids=[0, 1, 2, 3, 0, 1, 2, 3],
    name="core_cpus_list",
)
VIRTUAL = Layout([[0], [1]], sockets=["0", "1"], nodes=["0-1"], core_ids=[0, 0])  # a guest: every CPU its own socket

WANTED: dict[str, tuple[Layout, str, int, list[str]]] = {
    "MeluXina, a rank a GPU": (
        MELUXINA_GPU,
        "0-127",
        4,
        ["0-15,64-79", "16-31,80-95", "32-47,96-111", "48-63,112-127"],
    ),
    "MeluXina, a rank a core": (MELUXINA_GPU, "0-127", 64, [f"{cpu},{cpu + 64}" for cpu in range(64)]),
    "MeluXina, a rank a thread": (
        MELUXINA_GPU,
        "0-127",
        128,
        [str(cpu + 64 * thread) for cpu in range(64) for thread in (0, 1)],
    ),
    "MeluXina, eight cores of a job": (MELUXINA_GPU, "8-11,40-43,72-75,104-107", 2, ["8-11,72-75", "40-43,104-107"]),
    "MeluXina, first threads alone": (MELUXINA_GPU, "0-3", 2, ["0-1", "2-3"]),
    "MeluXina, two threads of one core": (MELUXINA_GPU, "5,69", 2, ["5", "69"]),
    "laptop": (LAPTOP, "0-7", 2, ["0-3", "4-7"]),
    "laptop, a rank a core": (LAPTOP, "0-7", 4, ["0-1", "2-3", "4-5", "6-7"]),
    "laptop, three ranks": (LAPTOP, "0-7", 3, ["0-1", "2-3", "4-7"]),
    "laptop, more ranks than cores": (LAPTOP, "0-7", 6, ["0", "1", "2-3", "4", "5", "6-7"]),
    "laptop, a container with three threads": (LAPTOP, "1,2,3", 2, ["1", "2-3"]),
    "hybrid": (HYBRID, "0-15", 2, ["0-1,4-5,8,10,12,14", "2-3,6-7,9,11,13,15"]),
    "hybrid, a rank a fast core": (HYBRID, "0-15", 4, ["0-1,8,12", "2-3,9,13", "4-5,10,14", "6-7,11,15"]),
    "hybrid, a container with efficient cores": (HYBRID, "8-11", 2, ["8-9", "10-11"]),
    "sockets in turn": (
        XEON_IN_TURN,
        "0-31",
        2,
        ["0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30", "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31"],
    ),
    "sockets in turn, four ranks": (
        XEON_IN_TURN,
        "0-31",
        4,
        ["0,2,4,6,16,18,20,22", "8,10,12,14,24,26,28,30", "1,3,5,7,17,19,21,23", "9,11,13,15,25,27,29,31"],
    ),
    "dies": (DIES, "0-15", 2, ["0-3,8-11", "4-7,12-15"]),
    "virtual": (VIRTUAL, "0-1", 2, ["0", "1"]),
    "virtual, more ranks than CPUs": (VIRTUAL, "0-1", 3, ["0", "0", "1"]),
    "no topology": (Layout([], []), "3,5-7", 2, ["3,5", "6-7"]),
}


@pytest.mark.parametrize("machine", WANTED)
def test_ranks_get_cores_of_their_own(machine: str, tmp_path: Path) -> None:
    layout, allowed, num_ranks, expected = WANTED[machine]
    cores = cores_of(numbers(allowed), layout.write(tmp_path))
    assert [format_cpus(cpus_of(share_of_cores(cores, rank, num_ranks))) for rank in range(num_ranks)] == expected


def test_an_arm_machine_states_the_speed_of_its_cores(tmp_path: Path) -> None:
    devices = Layout([[cpu] for cpu in range(6)], ["0-5"]).write(tmp_path)
    for cpu, capacity in enumerate((446, 446, 446, 446, 1024, 1024)):  # Rockchip RK3399
        (devices / f"system/cpu/cpu{cpu}/cpu_capacity").write_text(f"{capacity}\n")
    cores = cores_of(range(6), devices)
    assert [core.cpus for core in cores] == [(4,), (5,), (0,), (1,), (2,), (3,)]
    assert [cpus_of(share_of_cores(cores, rank, 2)) for rank in (0, 1)] == [[0, 2, 4], [1, 3, 5]]


def test_cores_know_their_socket_and_node(tmp_path: Path) -> None:
    cores = cores_of(range(128), MELUXINA_GPU.write(tmp_path))
    assert len(cores) == 64
    assert cores[33] == Core(-1, package=1, node=2, cpus=(33, 97))


def test_what_linux_says_of_this_machine_is_understood() -> None:
    allowed = os.sched_getaffinity(0)
    cores = cores_of(allowed)
    assert cpus_of(cores) == sorted(allowed)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=40), kinds=st.integers(1, 2), num_ranks=st.integers(1, 90)
)
def test_ranks_share_the_cores_and_leave_none_idle(sizes: list[int], kinds: int, num_ranks: int) -> None:
    numbered = iter(range(sum(sizes)))
    cores = sorted(
        Core(-(place % kinds), 0, 0, tuple(next(numbered) for _ in range(size))) for place, size in enumerate(sizes)
    )
    shares = [share_of_cores(cores, rank, num_ranks) for rank in range(num_ranks)]
    assert all(shares)
    taken = [cpus_of(share) for share in shares]
    if num_ranks <= len(cores):
        assert sorted(core for share in shares for core in share) == cores, "each core belongs to one rank"
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        return
    ranks_on = [sum(bool({*core.cpus} & {*cpus}) for cpus in taken) for core in cores]
    assert max(ranks_on) - min(ranks_on) <= 1 and min(ranks_on) >= 1
    for core, num in zip(cores, ranks_on, strict=True):
        mine = [cpus for cpus in taken if {*cpus} & {*core.cpus}]
        assert apart(mine) == (num <= len(core.cpus)), "threads are shared only where there are too few"


def apart(sets: Iterable[list[int]]) -> bool:
    """Whether no number is in two of them."""
    everything = [number for each in sets for number in each]
    return len({*everything}) == len(everything)


def test_numbers_are_written_as_linux_writes_them() -> None:
    assert format_cpus([65, 0, 1, 2, 64, 9]) == "0-2,9,64-65"
    assert format_cpus([7]) == "7"


QUOTAS: dict[str, tuple[str, dict[str, str], float]] = {
    "no groups": ("", {}, math.inf),
    "version 2, none": ("0::/user.slice/a", {"user.slice/a/cpu.max": "max 100000"}, math.inf),
    "version 2, container": ("0::/", {"cpu.max": "250000 100000"}, 2.5),
    "version 2, a parent limits": (
        "0::/pod/one",
        {"pod/one/cpu.max": "400000 100000", "pod/cpu.max": "150000 100000", "cpu.max": "max 100000"},
        1.5,
    ),
    "version 2, path of the host": ("0::/../../docker/1f", {"cpu.max": "50000 100000"}, 0.5),
    "version 1": (
        "4:memory:/a\n3:cpu,cpuacct:/a",
        {"cpu,cpuacct/a/cpu.cfs_quota_us": "300000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
        3.0,
    ),
    "version 1, none": (
        "3:cpu:/",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        math.inf,
    ),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_quota_of_control_groups(tmp_path: Path, name: str):
    groups, files, expected = QUOTAS[name]
    (tmp_path / "groups").write_text(groups)
    for path, text in files.items():
        (tmp_path / "mounted" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mounted" / path).write_text(text + "\n")
    assert cpu_quota(tmp_path / "groups", tmp_path / "mounted") == expected


def test_threads_are_at_most_the_cores_and_the_quota(monkeypatch: pytest.MonkeyPatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for quota, expected in ((math.inf, len(usable_cores())), (0.5, 1), (1.9, 1)):
        monkeypatch.setattr("heartlm.system.cores.cpu_quota", lambda quota=quota: quota)
        assert default_threads() == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert default_threads() is None


def environment_without_waiting(given: dict[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    } | given


@pytest.mark.parametrize(
    ("first", "given", "expected"),
    [
        ("heartlm", {}, str(SPIN_COUNT)),
        ("torch", {}, None),
        ("heartlm", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("heartlm", {"OMP_WAIT_POLICY": "ACTIVE"}, None),
    ],
)
def test_spinning_is_limited_before_torch_is_loaded(first: str, given: dict[str, str], expected: str | None):
    script = f"import {first}, heartlm, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    environment = environment_without_waiting(given)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(expected), done.stderr


def test_the_library_of_threads_reads_the_limit():
    """libgomp prints what it reads from the environment when torch loads it."""
    environment = environment_without_waiting({"OMP_DISPLAY_ENV": "VERBOSE"})
    script = "import heartlm, torch; torch.ones(9).sum()"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert f"GOMP_SPINCOUNT = '{SPIN_COUNT}'" in done.stderr


@pytest.mark.parametrize(("stated", "expected"), [("3", 3), ("2,1", 2), ("", None), ("many", None)])
def test_numpy_computes_with_the_threads_that_are_stated(
    monkeypatch: pytest.MonkeyPatch, stated: str, expected: int | None
) -> None:
    before = cores.compute_threads()
    monkeypatch.setattr(cores, "_threads", None)
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    try:
        assert cores.compute_threads() == (expected or len(cores.usable_cores()))
    finally:
        cores._limit_numpy(before)
