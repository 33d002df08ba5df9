"""Under SLURM, on two nodes, a federated study ends with the model that it ends with in one process."""

from __future__ import annotations

import csv
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from heartlm.cli.main import main
from heartlm.extensions.federated.federate import federate
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.extensions.federated.study_folder import StudyFolder
from heartlm.extensions.federated.sweep import run_sweep
from heartlm.extensions.federated.sweep_file import SweepConfig
from heartlm.storage.reading import read_json
from heartlm.storage.typed import typed
from tests.extensions.cluster.slurm import Cluster

pytestmark = pytest.mark.slow

CELL = "G0-ranks-2-batch-16-steps-3-0"


def test_a_sweep_on_two_nodes_ends_with_the_models_of_one_process(
    slurm: Cluster, tiny_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "sweep.yaml"
    settings.write_text(
        f"study: {{model: tiny_ecg, databases: ['{tiny_database}']}}\nconfigs: [G0]\nworld_sizes: [2]\n"
        "batch_sizes: [16]\n"
        "local_steps: [3]\nrounds: 2\nrepeats: 1\nclients_per_rank: 2\nslurm: generic\nnodes: 2\ntimeout_s: 300\n"
    )
    assert main(["federate", "sweep", str(settings), "--out", "sweep"]) == 0
    study = tmp_path / "sweep" / "studies" / CELL
    settings = typed(FederatedConfig, StudyFolder(study).settings)
    alone = federate(replace(settings, communicator="local", out=tmp_path / "alone")).folder
    models = [(folder / "models" / "last" / "model.safetensors").read_bytes() for folder in (study, alone)]
    assert models[0] == models[1]
    assert read_json(study / "scores.json") == read_json(alone / "scores.json")
    with (tmp_path / "sweep" / "table.csv").open(newline="") as stream:
        assert {(line["rank"], line["num_clients"]) for line in csv.DictReader(stream)} == {("0", "2"), ("1", "2")}
    said = next((tmp_path / "sweep" / "logs").glob("*/*.out")).read_text()
    assert "nodes: 2, ranks on each: 1" in said


def script_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: int, device: str) -> str:
    """The script of a sweep's only study, which is not submitted."""
    scripts = list[str]()

    def run_job(path: Path, script: str) -> tuple[str, float]:
        scripts.append(script)
        return "not submitted", 0.0

    monkeypatch.setattr("heartlm.extensions.cluster.cells.run_job", run_job)
    monkeypatch.setattr("shutil.which", lambda name, **_: name)
    study = {"model": "tiny_ecg", "databases": ["a b"], "device": device}
    grid = {"world_sizes": [world_size], "batch_sizes": [16], "local_steps": [3], "repeats": 1}
    shape = {"slurm": "generic", "nodes": 2, "cpus_per_rank": 4, "timeout_s": 600.0}
    run_sweep(SweepConfig(out=tmp_path / "sweep", study=study, **grid, **shape))
    return scripts[0]


@pytest.mark.parametrize(("world_size", "on_each"), [(1, 1), (2, 1), (3, 3), (4, 2)])
def test_scripts_ask_for_what_the_ranks_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: int, on_each: int
):
    shellcheck = shutil.which("shellcheck")
    script = script_of(tmp_path, monkeypatch, world_size, "cpu")
    nodes = world_size // on_each
    assert f"#SBATCH --nodes={nodes}\n" in script
    assert f"#SBATCH --cpus-per-task={4 * on_each}\n" in script
    assert f"\nranks={on_each} " in script
    assert "--requeue" not in script
    path = tmp_path / "job.sh"
    path.write_text(script)
    subprocess.run(["bash", "-n", str(path)], check=True)
    if shellcheck:
        subprocess.run([shellcheck, str(path)], check=True)


def test_gpus_are_asked_for_where_ranks_compute_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "#SBATCH --gpus-per-node=2\n" in script_of(tmp_path, monkeypatch, 4, "cuda")
