"""Energy of the training devices, from hardware counters: NVML for a GPU, RAPL for CPU packages.

Without a readable counter there is no value; energy is never estimated from data sheets.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")

EnergyCounter = Callable[[], float]
"""Returns joules since an arbitrary start; monotonic."""


def energy_counter(gpu_uuid: str | None = None, local_rank: int = 0) -> EnergyCounter | None:
    """Return the energy counter of this rank, or None if there is none.

    Args:
        gpu_uuid: `torch.cuda.get_device_properties(…).uuid` of the training GPU; None for training on the CPU.
        local_rank: rank on the node; the CPU packages of a node count once, for rank 0.
    """
    if gpu_uuid is not None:
        return _nvml_counter(gpu_uuid)
    counter = rapl_counter(POWERCAP)
    return counter if counter is None or local_rank == 0 else lambda: 0.0


def rapl_counter(powercap: Path) -> EnergyCounter | None:
    """Return the counter of all CPU packages from the Linux folder `powercap`; None if it cannot be read.

    It includes all processes on the machine. Read it at least once per overflow period of a package counter, which is
    about five minutes or more.
    """
    # Subzones (cores, memory) are part of their package, and psys includes the packages: neither is added.
    names = sorted(powercap.glob("intel-rapl:*/name"))
    try:
        zones = [_Zone(name.parent) for name in names if name.read_text(encoding="ascii").startswith("package")]
    except (OSError, ValueError):
        return None
    return (lambda: sum(zone.joules() for zone in zones)) if zones else None


class _Zone:
    """Counter of one package in microjoules, which overflows to 0 at `max_energy_range_uj`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._total_uj = folder, 0
        self._last_uj = self._read("energy_uj")

    def _read(self, name: str) -> int:
        return int((self._folder / name).read_text(encoding="ascii"))

    def joules(self) -> float:
        now_uj = self._read("energy_uj")
        self._total_uj += now_uj - self._last_uj
        self._total_uj += self._read("max_energy_range_uj") if now_uj < self._last_uj else 0
        self._last_uj = now_uj
        return self._total_uj / 1e6


def _nvml_counter(gpu_uuid: str) -> EnergyCounter | None:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return None
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu_uuid if gpu_uuid.startswith("GPU-") else f"GPU-{gpu_uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return None
    return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3  # millijoules
