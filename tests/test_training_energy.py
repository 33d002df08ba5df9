"""Energy: only what a counter of the machine says."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from heartlm.instrumentation import energy
from heartlm.instrumentation.energy import energy_counter, rapl_counter

RANGE_UJ = 262_143_328_850


def zone(powercap: Path, name: str, what: str, energy_uj: int) -> Path:
    folder = powercap / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{what}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return folder


def test_packages_are_added_and_what_lies_in_or_around_them_is_not(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 100)
    zone(tmp_path, "intel-rapl:2", "psys", 100)
    counter = rapl_counter(tmp_path)
    assert counter is not None
    before = counter()
    zone(tmp_path, "intel-rapl:0", "package-0", 4_000_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 5_500_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 10**9)
    zone(tmp_path, "intel-rapl:2", "psys", 10**9)
    assert counter() - before == pytest.approx(3.5)


def test_a_counter_that_starts_again_from_nought_goes_on(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 2_000_000)
    counter = rapl_counter(tmp_path)
    assert counter is not None
    before = counter()
    for energy_uj in (RANGE_UJ - 1_000_000, 500_000, 700_000):
        zone(tmp_path, "intel-rapl:0", "package-0", energy_uj)
        counter()
    assert counter() - before == pytest.approx(2.7)


def test_no_counter_is_no_number(tmp_path: Path) -> None:
    assert rapl_counter(tmp_path) is None
    assert rapl_counter(tmp_path / "none") is None
    folder = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (folder / "energy_uj").unlink()
    (folder / "energy_uj").mkdir()  # unreadable even for root
    assert rapl_counter(tmp_path) is None


def test_the_packages_of_a_node_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    assert energy_counter(local_rank=1) is None
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    counters = [energy_counter(local_rank=rank) for rank in (0, 1)]
    before = [counter() for counter in counters]
    zone(tmp_path, "intel-rapl:0", "package-0", 3_000_000)
    assert [counter() - first for counter, first in zip(counters, before, strict=True)] == pytest.approx([2, 0])


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
