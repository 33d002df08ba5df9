"""The GPUs that processes started here may use, by the names that `CUDA_VISIBLE_DEVICES` takes."""

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
    """Names of the GPUs, or MIG instances, that this process may use: indices or UUIDs. Imports no torch.

    A process that is to use some of them gets these names as its mask: its own numbers, from 0, would mean other GPUs
    where the mask is set already. As in CUDA, the first name that is not valid hides those after it.
    """
    total = _num_gpus()
    if MASK not in environment:
        return [str(number) for number in range(total)]

    def is_valid(name: str) -> bool:
        if name.isdecimal():
            return total == 0 or int(name) < total  # 0: no driver to ask
        return name.startswith(("GPU-", "MIG-"))

    return list(takewhile(is_valid, (name.strip() for name in environment[MASK].split(","))))


def _num_gpus() -> int:
    driver = nvml()
    return sum(1 for _ in PROC.glob("*")) if driver is None else int(driver.nvmlDeviceGetCount())


def nvml() -> Any:
    """The module of NVML, initialised; None where its bindings or NVIDIA's driver are missing."""
    try:
        module: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return None
    try:
        module.nvmlInit()
    except module.NVMLError:
        return None
    return module
