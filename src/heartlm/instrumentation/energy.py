"""Energy of the training GPUs, from the counter of NVML. Without a counter there is no value, and no estimate.

Linux lets only root read the energy counters of CPUs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

EnergyCounter = Callable[[], float]
"""Returns joules since an arbitrary start; monotonic."""


def energy_counter(gpu_uuid: str) -> EnergyCounter | None:
    """Return the energy counter of a GPU, or None if it has none or pynvml is not installed.

    Args:
        gpu_uuid: `torch.cuda.get_device_properties(…).uuid`.
    """
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
