"""What the machine is doing now: its GPUs by NVML where there are any, otherwise its CPUs and memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heartlm.cluster.gpus import nvml

PROC = Path("/proc")


@dataclass(frozen=True)
class Usage:
    """How busy one device is.

    Attributes:
        name: such as `GPU 0` or `CPU`.
        busy: share of time, 0 to 1; None where nothing tells.
        memory_used_bytes: of it.
        memory_bytes: that it has.
        power_w: that it draws now; None where nothing tells.
    """

    name: str
    busy: float | None
    memory_used_bytes: int
    memory_bytes: int
    power_w: float | None = None


class Machine:
    """Asked again and again; what CPUs did is the difference of two readings.

    Args:
        proc: where Linux tells.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc, self._nvml = proc, nvml()
        self._before = self._ticks()

    def usage(self) -> list[Usage]:
        """How busy it is: every GPU, or the CPUs together."""
        num_gpus = 0 if self._nvml is None else self._nvml.nvmlDeviceGetCount()
        return [self._gpu(self._nvml, index) for index in range(num_gpus)] or [self._cpus()]

    def _gpu(self, nvml: Any, index: int) -> Usage:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        busy = power_w = None
        try:
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            power_w = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        except nvml.NVMLError:  # a divided GPU does not tell
            pass
        return Usage(f"GPU {index}", busy, int(memory.used), int(memory.total), power_w)

    def _cpus(self) -> Usage:
        busy, all_ticks = self._ticks()
        busy_before, all_before = self._before
        self._before = busy, all_ticks
        passed = all_ticks - all_before
        lines = (self._proc / "meminfo").read_text(encoding="ascii").splitlines()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        used = kib["MemTotal"] - kib.get("MemAvailable", 0)
        return Usage("CPU", (busy - busy_before) / passed if passed > 0 else None, used * 1024, kib["MemTotal"] * 1024)

    def _ticks(self) -> tuple[int, int]:
        """Ticks that all CPUs were busy, and all ticks, since the machine started."""
        first = (self._proc / "stat").read_text(encoding="ascii").splitlines()[0]
        ticks = [int(number) for number in first.split()[1:9]]  # the time of guests counts in user already
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
