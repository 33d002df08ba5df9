"""Archive work on a real SLURM of two nodes: an array job of parts with a job that joins them, and Dask workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from heartlm.cli.main import main
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from tests.extensions.cluster.slurm import Cluster, wait_for

pytestmark = pytest.mark.slow


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def ward(tmp_path: Path) -> Path:
    simulate_database(tmp_path / "ward", SimulationConfig(patients=5, minutes=0.25, seed=8, name="ward"))
    return tmp_path / "ward"


def test_an_array_job_of_parts_and_dask_jobs_give_the_bytes_of_one_process(
    slurm: Cluster, ward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["delineate", str(ward), "--tables", "parquet"]
    assert main([*words, "--out", str(tmp_path / "one"), "--processes", "1"]) == 0
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "site.yaml"
    profile.write_text(yaml.safe_dump({"cpus_per_node": 1, "header": []}))
    run = {"command": "delineate", "path": [str(ward)], "tables": "parquet", "out": str(tmp_path / "parts")}
    (tmp_path / "waves.yaml").write_text(yaml.safe_dump(run))
    launch = ["launch", "waves.yaml", "--profile", str(profile), "--parts", "2"]
    assert main([*launch, "--submit", "--wait"]) == 0
    assert content(tmp_path / "parts") == content(tmp_path / "one")
    printed = [path.read_text() for path in sorted((tmp_path / "logs").glob("waves-*_[12].out"))]
    assert [text.splitlines()[-1] for text in printed] == [f"{num} recordings delineated, 0 left out" for num in (4, 2)]
    by_dask = ["--engine", "dask", "--scheduler", f"slurm:{profile}", "--processes", "2"]
    assert main([*words, "--out", str(tmp_path / "dask"), *by_dask]) == 0
    assert content(tmp_path / "dask") == content(tmp_path / "one")
    wait_for(slurm.nodes_are_idle, "the end of the workers' jobs", slurm)
