"""Energy: only what a counter of the machine says."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from heartlm.instrumentation.energy import energy_counter


class FakeNvml(SimpleNamespace):
    """The calls of NVML that are used, for one GPU."""

    class NVMLError(Exception):
        pass

    def __init__(self, millijoules: int | None) -> None:
        super().__init__(millijoules=millijoules)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1234":
            raise self.NVMLError("not found")
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if self.millijoules is None:
            raise self.NVMLError("not supported")
        return self.millijoules


@pytest.mark.parametrize("uuid", ["1234", "GPU-1234"])
def test_a_gpu_counts_millijoules(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    nvml = FakeNvml(2_500)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    counter = energy_counter(uuid)
    assert counter is not None
    assert counter() == 2.5
    nvml.millijoules = 4_000
    assert counter() == 4.0


@pytest.mark.parametrize(("nvml", "uuid"), [(FakeNvml(None), "1234"), (FakeNvml(1), "5678"), (None, "1234")])
def test_a_gpu_that_does_not_count_has_no_number(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None, uuid: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert energy_counter(uuid) is None
