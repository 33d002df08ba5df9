"""Archive work on a real SLURM of two nodes: an array job of parts with a job that joins them, and Dask workers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from heartlm.cli.main import main
from heartlm.extensions.cluster import dask_workers
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


def by_slurm(ward: Path, site: str) -> list[str]:
    where = ["--engine", "dask", "--scheduler", f"slurm:{site}", "--processes", "2"]
    return ["delineate", str(ward), "--tables", "parquet", "--out", "out", *where]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"partition": "ward7"}, "sbatch refused: .*[Ii]nvalid partition"),
        ({"python": "/no/python"}, r"all jobs have ended, the last as job \d+: FAILED, .*\.out: .*/no/python: No such"),
    ],
)
def test_jobs_that_slurm_refuses_or_that_end_without_a_worker_are_one_line(
    settings: dict[str, str],
    said: str,
    slurm: Cluster,
    site: str,
    ward: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(dask_workers, "ASK_EVERY_S", 0.5)
    Path(site).write_text(yaml.safe_dump({"cpus_per_node": 1, "header": []} | settings))
    assert main(by_slurm(ward, site)) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("waiting for ")]
    assert len(lines) == 1 and re.search(f"scheduler: no Dask workers by SLURM, profile site: {said}", lines[0]), lines
    wait_for(slurm.nodes_are_idle, "the end of the workers' jobs", slurm)


def test_jobs_that_wait_are_reported_until_workers_come(slurm: Cluster, site: str, ward: Path, tmp_path: Path) -> None:
    Path(site).write_text(yaml.safe_dump({"cpus_per_node": 1, "header": ["--hold"]}))
    command = [sys.executable, "-m", "heartlm", *by_slurm(ward, site)]
    with subprocess.Popen(command, env=slurm.environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        reported = next(line for line in process.stderr if "2 jobs PENDING (JobHeldUser)" in line)
        assert reported.startswith("waiting for Dask workers by SLURM, profile site: ")
        jobs = slurm.command("squeue", "--noheader", "--format=%A", "--states=PENDING").split()
        slurm.command("scontrol", "release", ",".join(jobs))
        process.stderr.read()
    assert process.returncode == 0
    wait_for(slurm.nodes_are_idle, "the end of the workers' jobs", slurm)


def test_without_sbatch_the_line_says_so(
    tmp_path: Path, ward: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(by_slurm(ward, "generic")) == 2
    assert "scheduler: sbatch: no such command, so no SLURM here" in capsys.readouterr().err
