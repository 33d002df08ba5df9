"""CPUs, memory, GPUs and networks, as Linux and NVML report them."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from heartlm.cluster.doctor.section import Context, Section, size_in_words
from heartlm.cores import cores_of

VECTOR_UNITS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")

ROOT = Path("/")

BUSY = 0.5
"""Processes that want to run, for each core, above which the machine counts as busy."""


def check_processors(context: Context) -> Section:
    """Read what Linux says of its processors, of memory and of this process's share."""
    facts = processors(ROOT) | memory(ROOT) | {"allowed_cpus": sorted(os.sched_getaffinity(0))}
    facts["cpu_limit"] = cgroup_cpus(ROOT)
    facts["core_cpus"] = [core.cpus[0] for core in cores_of(facts["allowed_cpus"], ROOT / "sys/devices")]
    facts["usable_cores"] = usable_cores(len(facts["core_cpus"]), facts["cpu_limit"])
    facts["load"] = os.getloadavg()[0]
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
    facts["is_busy"] = facts["load"] > BUSY * facts["num_cores"]
    if facts["is_busy"]:
        lines.append(
            f"load {facts['load']:.1f} on {facts['num_cores']} cores: others compute here and disturb what is measured"
        )
    return Section(lines, facts)


def usable_cores(num_cores: int, cpu_limit: float | None) -> int:
    """Cores of `num_cores` that can work at once where a cgroup gives the time of `cpu_limit` CPUs."""
    return num_cores if cpu_limit is None else max(1, min(num_cores, int(cpu_limit)))


def processors(root: Path) -> dict[str, Any]:
    """Model, vector units and counts, from `proc` and `sys` below `root`."""
    entries = [_entry(block) for block in (root / "proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")]
    entries = [entry for entry in entries if "processor" in entry]
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


def _entry(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def memory(root: Path) -> dict[str, Any]:
    """Bytes of memory, of what is available, and the limit of this process's cgroup or None."""
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    limits = []
    for folder in cgroups(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # version 2 says "max" where there is no limit
                limits.append(_integer(folder / name))
    below = [limit for limit in limits if limit < kib["MemTotal"] * 1024]
    return {
        "memory_bytes": kib["MemTotal"] * 1024,
        "memory_available_bytes": kib.get("MemAvailable", kib["MemTotal"]) * 1024,
        "memory_limit_bytes": min(below, default=None),
    }


def cgroup_cpus(root: Path) -> float | None:
    """CPU time a second that the cgroups of this process allow, in CPUs; None where nothing limits it."""
    limits = []
    for folder in cgroups(root):
        with suppress(OSError, ValueError):  # version 2: "quota period" or "max period"
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            limits += [] if quota == "max" else [int(quota) / int(period)]
        with suppress(OSError, ValueError):  # version 1: a quota of -1 is none
            quota_us, period_us = _integer(folder / "cpu.cfs_quota_us"), _integer(folder / "cpu.cfs_period_us")
            limits += [] if quota_us < 0 else [quota_us / period_us]
    return min(limits, default=None)


def cgroups(root: Path) -> list[Path]:
    """Folders of the cgroups of this process and of those around it, of version 1 and 2; some need not exist."""
    base, folders = root / "sys/fs/cgroup", []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            tree = base / controllers if controllers else base
            inside = tree / path.lstrip("/")
            folders += [folder for folder in (inside, *inside.parents) if folder.is_relative_to(tree)]
    return folders


def _integer(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


PROC = Path("/proc")


def check_devices(context: Context) -> Section:
    """Ask NVML; a machine without it has no NVIDIA driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return Section(["not looked at: NVML's bindings are missing: pip install 'heartlm[energy]'"], {"gpus": []})
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Section([f"no NVIDIA GPU ({error}): training uses the CPUs"], {"gpus": []})
    try:
        gpus = [gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())]
        version = nvml.nvmlSystemGetCudaDriverVersion()
        facts = {
            "gpus": gpus,
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "driver_cuda": [version // 1000, version % 1000 // 10],
            "mps_running": mps_running(PROC),
        }
    finally:
        nvml.nvmlShutdown()
    head = f"driver {facts['driver']} (CUDA {version // 1000}.{version % 1000 // 10})"
    head += ", MPS is running" if facts["mps_running"] else ", MPS is not running"
    return Section([head, *(line for index, found in enumerate(gpus) for line in _lines(index, found))], facts)


def gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    """What `nvml` reports of one GPU; what it does not report is None."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    limit_mw = _asked(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return {
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "memory_bytes": int(memory.total),
        "memory_used_bytes": int(memory.used),
        "power_limit_w": None if limit_mw is None else limit_mw / 1000,
        "num_processes": len(_asked(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []),
        "mig_instances": mig_instances(nvml, handle),
        "num_nvlinks": num_nvlinks(nvml, handle),
    }


def mig_instances(nvml: Any, handle: Any) -> list[dict[str, Any]] | None:
    """The MIG instances of a GPU; None where it is not divided."""
    mode = _asked(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] == 0:
        return None
    instances = []
    for place in range(_asked(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        if (instance := _asked(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)) is not None:
            memory = nvml.nvmlDeviceGetMemoryInfo(instance)
            instances.append({"name": _text(nvml.nvmlDeviceGetName(instance)), "memory_bytes": int(memory.total)})
    return instances


def num_nvlinks(nvml: Any, handle: Any) -> int:
    """NVLinks of a GPU that are up."""
    states = (_asked(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS))
    return sum(state == 1 for state in states)


def mps_running(proc: Path) -> bool:
    """Whether a control daemon of the Multi-Process Service is among the processes below `proc`."""
    for name in proc.glob("[0-9]*/comm"):
        with suppress(OSError):
            if name.read_text(encoding="utf-8").startswith("nvidia-cuda-mps"):
                return True
    return False


def _asked(nvml: Any, question: Any, *arguments: Any) -> Any:
    """The answer, or None where this GPU has none."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _lines(index: int, found: dict[str, Any]) -> list[str]:
    line = f"GPU {index}: {found['name']}, {size_in_words(found['memory_used_bytes'])} of "
    line += f"{size_in_words(found['memory_bytes'])} in use by {found['num_processes']} process(es)"
    line += f", {found['num_nvlinks']} NVLinks up" if found["num_nvlinks"] else ""
    line += f", power limit {found['power_limit_w']:.0f} W" if found["power_limit_w"] else ""
    instances = found["mig_instances"]
    if instances is None:
        return [line]
    inside = [f"  MIG instance: {one['name']}, {size_in_words(one['memory_bytes'])}" for one in instances]
    return [f"{line}, divided (MIG)", *(inside or ["  no MIG instance made yet: nothing can use this GPU"])]


SYS = Path("/sys")


def check_interconnect(context: Context) -> Section:
    """List the links between nodes, and between GPUs as reported by NVML."""
    ports, interfaces = infiniband_ports(SYS), network_interfaces(SYS)
    lines = [f"InfiniBand {port['port']}: {port['state']}, {port['rate']}" for port in ports]
    lines = lines or ["no InfiniBand: ranks of several nodes would meet over the network interfaces"]
    told = (name + (f" {speed} Mbit/s" if (speed := interfaces[name]) else "") for name in sorted(interfaces))
    lines.append(f"network interfaces up: {', '.join(told) or 'none but loopback'}")
    links = [gpu["num_nvlinks"] for gpu in context.fact("devices", "gpus", [])]
    if len(links) > 1:
        lines.append("GPUs are joined by NVLink" if all(links) else "GPUs are joined by PCIe: not every one has NVLink")
    return Section(lines, {"infiniband": ports, "interfaces_mbit_per_s": interfaces})


def infiniband_ports(system: Path) -> list[dict[str, str]]:
    """Ports of the InfiniBand devices below `system`, with the state and rate that the kernel tells."""
    found = []
    for port in sorted(system.glob("class/infiniband/*/ports/*")):
        with suppress(OSError):
            state, rate = ((port / name).read_text(encoding="ascii").strip() for name in ("state", "rate"))
            found.append({"port": f"{port.parent.parent.name}:{port.name}", "state": state, "rate": rate})
    return found


def network_interfaces(system: Path) -> dict[str, int | None]:
    """Interfaces below `system` that are up, loopback apart, with their Mbit a second where they tell."""
    found: dict[str, int | None] = {}
    for interface in system.glob("class/net/*"):
        with suppress(OSError):
            if interface.name != "lo" and (interface / "operstate").read_text(encoding="ascii").strip() == "up":
                found[interface.name] = None
                with suppress(OSError, ValueError):
                    speed = int((interface / "speed").read_text(encoding="ascii"))
                    found[interface.name] = speed if speed > 0 else None
    return found
