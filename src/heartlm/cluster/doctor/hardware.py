"""CPUs, memory and GPUs, as reported by Linux and NVML."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from heartlm.cluster.doctor.section import Context, Section, size_in_words
from heartlm.cluster.gpus import nvml
from heartlm.cores import cores_of

VECTOR_UNITS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")

ROOT = Path("/")

BUSY = 0.5
"""Runnable processes per core above which the machine counts as busy."""


def check_processors(context: Context) -> Section:
    """Check the processors, the memory and the limits of this process."""
    facts = processors(ROOT) | memory(ROOT) | {"allowed_cpus": sorted(os.sched_getaffinity(0))}
    facts["cpu_limit"] = cgroup_cpus(ROOT)
    num_cores = len(cores_of(facts["allowed_cpus"], ROOT / "sys/devices"))
    facts["usable_cores"] = usable_cores(num_cores, facts["cpu_limit"])
    facts["load"] = os.getloadavg()[0]
    facts["is_busy"] = facts["load"] > BUSY * facts["num_cores"]
    lines = [
        f"{facts['model']}",
        f"{facts['num_sockets']} socket(s), {facts['num_cores']} cores, {facts['num_cpus']} hardware threads; "
        f"vector units {', '.join(facts['vector_units']) or 'not known'}",
        f"this process may run on {len(facts['allowed_cpus'])} of them"
        + (f", for the time of {facts['cpu_limit']:g} (cgroup)" if facts["cpu_limit"] is not None else ""),
        f"memory {size_in_words(facts['memory_bytes'])}, {size_in_words(facts['memory_available_bytes'])} available",
    ]
    if facts["memory_limit_bytes"] is not None:
        lines.append(f"memory of this group of processes is limited to {size_in_words(facts['memory_limit_bytes'])}")
    if facts["is_busy"]:
        lines.append(
            f"load {facts['load']:.1f} on {facts['num_cores']} cores: others compute here and disturb what is measured"
        )
    return Section(lines, facts)


def usable_cores(num_cores: int, cpu_limit: float | None) -> int:
    """Return how many of `num_cores` cores can work at once under a cgroup limit of `cpu_limit` CPUs."""
    return num_cores if cpu_limit is None else max(1, min(num_cores, int(cpu_limit)))


def processors(root: Path) -> dict[str, Any]:
    """Return the CPU model, vector units and counts, from `proc` and `sys` below `root`."""
    entries: list[dict[str, str]] = []
    for block in (root / "proc/cpuinfo").read_text(encoding="utf-8").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        entry = {name.strip(): value.strip() for name, _, value in pairs}
        entries += [entry] if "processor" in entry else []
    first = entries[0] if entries else {}
    flags = (first.get("flags") or first.get("Features") or "").split()
    cores = cores_of((int(entry["processor"]) for entry in entries), root / "sys/devices")
    return {
        "model": first.get("model name") or first.get("CPU implementer") or "a processor that does not say its name",
        "vector_units": [name for name in VECTOR_UNITS if name in flags],
        "num_sockets": len({core.package for core in cores}) or 1,
        "num_cores": len(cores) or 1,
        "num_cpus": len(entries) or os.cpu_count() or 1,
    }


def memory(root: Path) -> dict[str, Any]:
    """Return the total and the available memory in bytes, and the limit of this process's cgroup or None."""
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    limits = []
    for folder in cgroups(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # version 2 has "max" if there is no limit
                limits.append(int((folder / name).read_text(encoding="ascii")))
    below = [limit for limit in limits if limit < kib["MemTotal"] * 1024]
    return {
        "memory_bytes": kib["MemTotal"] * 1024,
        "memory_available_bytes": kib.get("MemAvailable", kib["MemTotal"]) * 1024,
        "memory_limit_bytes": min(below, default=None),
    }


def cgroup_cpus(root: Path) -> float | None:
    """Return the CPU limit of this process's cgroups, in CPUs (CPU seconds per second); None without a limit."""
    limits = []
    for folder in cgroups(root):
        with suppress(OSError, ValueError):  # version 2: "quota period"; "max period" is not a number
            quota, period = map(int, (folder / "cpu.max").read_text(encoding="ascii").split())
            limits.append(quota / period)
        with suppress(OSError, ValueError):  # version 1: a quota of -1 means no limit
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = (int((folder / name).read_text(encoding="ascii")) for name in names)
            limits += [quota / period] if quota >= 0 else []
    return min(limits, default=None)


def cgroups(root: Path) -> list[Path]:
    """Return the cgroup folders of this process and their parents, of versions 1 and 2; some may not exist."""
    base, folders = root / "sys/fs/cgroup", []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            tree = base / controllers if controllers else base
            inside = tree / path.lstrip("/")
            folders += [folder for folder in (inside, *inside.parents) if folder.is_relative_to(tree)]
    return folders


def check_devices(context: Context) -> Section:
    """Query the GPUs and the driver through NVML."""
    driver = nvml()
    if driver is None:
        lines = ["no NVIDIA GPU, or no bindings of NVML (pip install 'heartlm[energy]'): training uses the CPUs"]
        return Section(lines, {"gpus": []})

    version = driver.nvmlSystemGetCudaDriverVersion()
    cuda = [version // 1000, version % 1000 // 10]
    lines, gpus = [f"driver {driver.nvmlSystemGetDriverVersion()} (CUDA {cuda[0]}.{cuda[1]})"], list[dict[str, Any]]()
    for index in range(driver.nvmlDeviceGetCount()):
        handle = driver.nvmlDeviceGetHandleByIndex(index)
        name, used = driver.nvmlDeviceGetName(handle), driver.nvmlDeviceGetMemoryInfo(handle)
        gpus.append({"name": name, "memory_bytes": int(used.total), "memory_used_bytes": int(used.used)})
        lines.append(f"GPU {index}: {name}, {size_in_words(used.used)} of {size_in_words(used.total)} in use")
    return Section(lines, {"gpus": gpus, "driver_cuda": cuda})
