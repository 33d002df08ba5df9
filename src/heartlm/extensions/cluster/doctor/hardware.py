"""CPUs and GPUs, as reported by Linux and NVML."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heartlm.extensions.cluster.doctor.section import Section
from heartlm.extensions.cluster.gpus import nvml
from heartlm.system.cores import cores_of, cpu_quota, usable_cpus

VECTOR_UNITS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")

ROOT = Path("/")

BUSY = 0.5
"""Runnable processes per core above which the machine counts as busy."""


def check_processors(known: Mapping[str, Any]) -> Section:
    """Check the processors and the limits of this process."""
    quota = cpu_quota()
    facts = processors(ROOT) | {"allowed_cpus": usable_cpus(), "cpu_limit": quota if math.isfinite(quota) else None}
    num_cores = len(cores_of(facts["allowed_cpus"], ROOT / "sys/devices"))
    facts["usable_cores"] = max(1, math.floor(min(num_cores, quota)))
    facts["load"] = os.getloadavg()[0]
    facts["is_busy"] = facts["load"] > BUSY * facts["num_cores"]
    lines = [
        f"{facts['model']}",
        f"{facts['num_sockets']} socket(s), {facts['num_cores']} cores, {facts['num_cpus']} hardware threads; "
        f"vector units {', '.join(facts['vector_units']) or 'not known'}",
        f"this process may run on {len(facts['allowed_cpus'])} of them"
        + (f", for the time of {facts['cpu_limit']:g} (cgroup)" if facts["cpu_limit"] is not None else ""),
    ]
    if facts["is_busy"]:
        lines.append(
            f"load {facts['load']:.1f} on {facts['num_cores']} cores: others compute here and disturb what is measured"
        )
    return Section(lines, facts)


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


def check_devices(known: Mapping[str, Any]) -> Section:
    """Query the GPUs and the driver through NVML."""
    driver = nvml()
    if driver is None:
        lines = ["no NVIDIA GPU, or no bindings of NVML (pip install 'heartlm[energy]'): training uses the CPUs"]
        return Section(lines, {"gpus": []})

    version = driver.nvmlSystemGetCudaDriverVersion()
    # NVML gives 1000 * major + 10 * minor.
    cuda = [version // 1000, version % 1000 // 10]
    lines, gpus = [f"driver {driver.nvmlSystemGetDriverVersion()} (CUDA {cuda[0]}.{cuda[1]})"], list[dict[str, Any]]()
    for index in range(driver.nvmlDeviceGetCount()):
        handle = driver.nvmlDeviceGetHandleByIndex(index)
        name, used = driver.nvmlDeviceGetName(handle), driver.nvmlDeviceGetMemoryInfo(handle)
        gpus.append({"name": name, "memory_bytes": int(used.total), "memory_used_bytes": int(used.used)})
        lines.append(f"GPU {index}: {name}, {used.used / 2**30:.1f} of {used.total / 2**30:.1f} GiB in use")
    return Section(lines, {"gpus": gpus, "driver_cuda": cuda})
