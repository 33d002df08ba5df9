"""Under SLURM, on two nodes, a federated study ends with the model that it ends with in one process."""

from __future__ import annotations

import csv
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from heartlm.cli.main import main
from heartlm.cluster.profile import load_profile, load_slurm_profile
from heartlm.errors import HeartlmError
from heartlm.federated.federate import federate
from heartlm.federated.study_file import load_study
from heartlm.federated.sweep import job_script
from heartlm.federated.sweep_file import SweepConfig
from heartlm.files import read_json
from tests.slurm import Cluster

pytestmark = pytest.mark.slow

CELL = "G0-ranks-2-batch-16-steps-3-0"


def test_a_sweep_on_two_nodes_ends_with_the_models_of_one_process(
    slurm: Cluster, tiny_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "sweep.yaml"
    settings.write_text(
        f"study: {{databases: ['{tiny_database}']}}\nconfigs: [G0]\nworld_sizes: [2]\nbatch_sizes: [16]\n"
        "local_steps: [3]\nrounds: 2\nrepeats: 1\nclients_per_rank: 2\nslurm: generic\nnodes: 2\ntimeout_s: 300\n"
    )
    assert main(["federate", "sweep", str(settings), "--out", "sweep"]) == 0
    study = tmp_path / "sweep" / "studies" / CELL
    alone = federate(replace(load_study(study / "config.yaml"), communicator="local", out=tmp_path / "alone")).folder
    models = [(folder / "models" / "last" / "model.safetensors").read_bytes() for folder in (study, alone)]
    assert models[0] == models[1]
    assert read_json(study / "scores.json") == read_json(alone / "scores.json")
    with (tmp_path / "sweep" / "table.csv").open(newline="") as stream:
        assert {(line["rank"], line["num_clients"]) for line in csv.DictReader(stream)} == {("0", "2"), ("1", "2")}
    said = next((tmp_path / "sweep" / "logs").glob("*.out")).read_text()
    assert "nodes: 2, ranks on each: 1" in said


@pytest.mark.parametrize(("world_size", "on_each"), [(1, 1), (2, 1), (3, 3), (4, 2)])
def test_scripts_ask_for_what_the_ranks_need(tmp_path: Path, world_size: int, on_each: int):
    sweep = SweepConfig(study={"device": "cpu"}, nodes=2, cpus_per_rank=4, timeout_s=600)
    script = job_script(tmp_path / "study.yaml", world_size, tmp_path, sweep, load_profile("generic"))
    nodes = world_size // on_each
    assert f"#SBATCH --nodes={nodes}\n" in script
    assert f"#SBATCH --cpus-per-task={4 * on_each}\n" in script
    assert ("ranks=" in script) == (world_size > 1)
    assert "--requeue" not in script
    path = tmp_path / "job.sh"
    path.write_text(script)
    subprocess.run(["bash", "-n", str(path)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(path)], check=True)


def test_gpus_are_asked_for_where_ranks_compute_on_them(tmp_path: Path):
    sweep = SweepConfig(study={"device": "cuda"}, nodes=2, cpus_per_rank=4, timeout_s=600)
    script = job_script(tmp_path / "study.yaml", 4, tmp_path, sweep, load_profile("generic"))
    assert "#SBATCH --gpus-per-node=2\n" in script


def test_a_site_without_slurm_is_refused():
    with pytest.raises(HeartlmError, match="slurm: local found, a profile of a site with SLURM expected"):
        load_slurm_profile("local")
