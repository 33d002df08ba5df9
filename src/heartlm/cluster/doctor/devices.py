"""GPUs by NVML: names, memory, MIG instances, whether MPS runs, NVLink."""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from heartlm.cluster.doctor.section import Context, Section, size_in_words

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
    """What `nvml` tells of one GPU; what it does not tell is None."""
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
