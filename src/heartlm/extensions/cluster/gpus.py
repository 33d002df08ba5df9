"""GPUs that processes started here may use, by the names that `CUDA_VISIBLE_DEVICES` accepts."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

MASK = "CUDA_VISIBLE_DEVICES"
PROC = Path("/proc/driver/nvidia/gpus")


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the indices or UUIDs of the GPUs or MIG instances that this process may use, without importing torch.

    Use these names as the mask of a child process: indices from 0 would select other GPUs if a mask is already set.
    As in CUDA, the first invalid name hides all names after it.
    """
    total = _num_gpus()
    if MASK not in environment:
        return [str(number) for number in range(total)]

    def is_valid(name: str) -> bool:
        if name.isdecimal():
            return total == 0 or int(name) < total  # 0: no driver to query
        return name.startswith(("GPU-", "MIG-"))

    return list(takewhile(is_valid, (name.strip() for name in environment[MASK].split(","))))


def _num_gpus() -> int:
    driver = nvml()
    return sum(1 for _ in PROC.glob("*")) if driver is None else int(driver.nvmlDeviceGetCount())


def nvml() -> Any:
    """Return the initialised NVML module, or None if its bindings or NVIDIA's driver are missing."""
    try:
        module: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return None
    try:
        module.nvmlInit()
    except module.NVMLError:
        return None
    return module
