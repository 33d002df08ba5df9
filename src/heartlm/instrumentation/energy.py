"""The energy that the training devices used, from the machine's own counters: NVML for a GPU, RAPL for CPU packages.

A machine without a counter that can be read has no number here; nothing is estimated from a data sheet.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")

EnergyCounter = Callable[[], float]
"""Returns joules since some moment; it only goes up."""


def energy_counter(gpu_uuid: str | None = None, local_rank: int = 0) -> EnergyCounter | None:
    """The counter of what this rank uses, or None where nothing counts it.

    Args:
        gpu_uuid: `torch.cuda.get_device_properties(…).uuid` of the GPU it trains on; None where it trains on the CPU.
        local_rank: of a node; the CPU packages of a node count once, for rank 0.
    """
    if gpu_uuid is not None:
        return _nvml_counter(gpu_uuid)
    counter = rapl_counter(POWERCAP)
    return counter if counter is None or local_rank == 0 else lambda: 0.0


def rapl_counter(powercap: Path) -> EnergyCounter | None:
    """The counter of all CPU packages of this machine, of the Linux folder `powercap`; None where it cannot be read.

    Everything that runs on the machine counts. It must be read at least once in the time in which a package's counter
    runs over once, about five minutes at the least.
    """
    # Subzones (cores, memory) lie in their package, and psys is the whole machine around it: neither is added.
    names = sorted(powercap.glob("intel-rapl:*/name"))
    try:
        zones = [_Zone(name.parent) for name in names if name.read_text(encoding="ascii").startswith("package")]
    except (OSError, ValueError):
        return None
    return (lambda: sum(zone.joules() for zone in zones)) if zones else None


class _Zone:
    """One package: microjoules that start again from 0 at `max_energy_range_uj`."""

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
