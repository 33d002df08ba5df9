"""Archive work on a real SLURM of two nodes: an array job of parts with a job that joins them, and Dask workers."""

from __future__ import annotations

import json
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


@pytest.fixture
def site(slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A site profile; the commands of SLURM find the cluster, and the test is in a folder of its own."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yaml").write_text(yaml.safe_dump({"cpus_per_node": 1, "header": []}))
    return str(tmp_path / "site.yaml")


def launch(tmp_path: Path, site: str, **run: object) -> list[str]:
    """Do a command in two parts and join them; return the last line of each part."""
    out = "folder" if run["command"] == "data convert" else "out"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run | {out: str(tmp_path / "parts")}))
    assert main(["launch", "run.yaml", "--profile", site, "--parts", "2", "--submit", "--wait"]) == 0
    return [path.read_text().splitlines()[-1] for path in sorted((tmp_path / "logs").glob("run-*_[12].out"))]


def test_an_array_of_parts_and_dask_jobs_give_the_bytes_of_one_process(
    slurm: Cluster, site: str, ward: Path, tmp_path: Path
) -> None:
    words = ["delineate", str(ward), "--tables", "parquet"]
    assert main([*words, "--out", str(tmp_path / "one"), "--processes", "1"]) == 0
    last = launch(tmp_path, site, command="delineate", path=[str(ward)], tables="parquet")
    assert last == [f"{num} recordings delineated, 0 left out" for num in (4, 2)]
    assert content(tmp_path / "parts") == content(tmp_path / "one")
    by_dask = ["--engine", "dask", "--scheduler", f"slurm:{site}", "--processes", "2"]
    assert main([*words, "--out", str(tmp_path / "dask"), *by_dask]) == 0
    assert content(tmp_path / "dask") == content(tmp_path / "one")
    wait_for(slurm.nodes_are_idle, "the end of the workers' jobs", slurm)


def test_an_array_of_parts_makes_the_shards_of_a_corpus(slurm: Cluster, site: str, ward: Path, tmp_path: Path) -> None:
    words = ["tokenize", str(ward), "--tokenizer", "rhythm", "--shards", "2", "--out", str(tmp_path / "one")]
    assert main([*words, "--processes", "1"]) == 0
    last = launch(tmp_path, site, command="tokenize", databases=[str(ward)], tokenizer="rhythm")
    assert len(last) == 2 and all(line.startswith("when all parts are done") for line in last)
    of_parts, of_one = content(tmp_path / "parts"), content(tmp_path / "one")
    del of_parts["manifest.json"], of_one["manifest.json"]  # with the command
    assert of_parts == of_one


def test_the_jobs_of_an_anonymous_conversion_make_one_key(
    slurm: Cluster, site: str, ward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    last = launch(tmp_path, site, command="data convert", source=str(ward), anonymize=True)
    assert last == ["3 recordings converted, 0 left out"] * 2
    about = json.loads((tmp_path / "parts" / "database.json").read_text())["patients"]
    assert len(about) == 6 and len(set(about.values())) == 5  # one patient has a recording in each part
    assert not list((tmp_path / "cache").rglob("*.key"))
