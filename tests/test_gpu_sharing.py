"""Several runs on one GPU: the scripts that ask for a MIG slice or start MPS, in bash and on a real SLURM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from heartlm.cli.main import main
from heartlm.cluster.campaign.arrays import TaskArray, arrays_of
from heartlm.cluster.campaign.campaign import Campaign, campaign_of
from heartlm.cluster.campaign.slurm import script_of, tasks_text
from heartlm.cluster.doctor import sharing
from heartlm.cluster.doctor.section import Context
from heartlm.cluster.doctor.sharing import offers, room, verdict
from heartlm.cluster.profile import SiteProfile, load_profile, profile_of
from heartlm.cluster.run_file import RunFile
from heartlm.cluster.script import render
from heartlm.cluster.sharing import gpu_option
from heartlm.cluster.submit import follow, state_of
from heartlm.cluster.topology import Topology
from heartlm.errors import HeartlmError
from tests.conftest import ROOT
from tests.slurm import Cluster, slurm, wait_for  # noqa: F401

GOLDEN = ROOT / "tests" / "golden" / "sharing"
UPDATE = "HEARTLM_UPDATE_GOLDEN"
SLICES = {7: "--gres=gpu:a100_1g.5gb:1", 3: "--gres=gpu:a100_2g.10gb:1"}
MPS_SITE = profile_of({"container": "apptainer", "image": "heartlm.sif"}, "mps-site")
MIG_SITE = profile_of({"gpu_slices": SLICES, "cpus_per_node": 128, "gpus_per_node": 4}, "mig-site")


def campaign(folder: Path = Path("/project/work"), runs_per_gpu: int = 4) -> Campaign:
    run = {"command": "pretrain", "corpus": "corpora/all", "seed": "{seed}", "out": "runs/s{seed}"}
    content = {
        "name": "small",
        "topology": {"gpus_per_node": 1, "cpus_per_task": 4, "time": "01:00:00", "runs_per_gpu": runs_per_gpu},
        "grid": {"seed": [1, 2, 3, 4, 5]},
        "stages": {"pretrain": {"run": run}},
    }
    return replace(campaign_of(content, default_name="x", folder=folder), path=folder / "small.yaml")


def array_on(profile: SiteProfile, of: Campaign | None = None) -> TaskArray:
    (array,) = arrays_of((of or campaign()).experiments, profile)
    return array


def rendered() -> dict[str, str]:
    run = RunFile("pretrain", {"corpus": "corpora/many", "out": "runs/small", "device": "cuda"})
    slice_of_gpu = Topology(1, 1, 1, 4, 3600, runs_per_gpu=7)
    return {
        "mps.sh": script_of(array_on(MPS_SITE), campaign(), MPS_SITE, python="python"),
        "mps.tasks": tasks_text(array_on(MPS_SITE), campaign()),
        "slice.sh": script_of(array_on(MIG_SITE), campaign(), MIG_SITE, python="python"),
        "slice-launch.sh": render(run, slice_of_gpu, MIG_SITE, name="small", logs=Path("logs")),
    }


@pytest.mark.parametrize("name", sorted(rendered()))
def test_scripts_are_the_golden_ones(name: str):
    path, text = GOLDEN / name, rendered()[name]
    if os.environ.get(UPDATE):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"if this is meant: {UPDATE}=1 python -m pytest {__file__}"


@pytest.mark.parametrize("name", [name for name in sorted(rendered()) if name.endswith(".sh")])
def test_shellcheck_finds_nothing(name: str):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck not found: apt-get install shellcheck")
    done = subprocess.run(["shellcheck", "-"], input=rendered()[name], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


# --- who shares what --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("runs", "option"), [(3, SLICES[3]), (4, SLICES[3]), (7, SLICES[7]), (20, SLICES[7])])
def test_a_run_gets_the_smallest_slice_that_is_its_part(runs: int, option: str):
    assert gpu_option(Topology(1, 1, runs_per_gpu=runs), MIG_SITE) == option


def test_a_part_that_no_slice_covers_is_refused():
    with pytest.raises(HeartlmError, match="runs_per_gpu: 2 found, at least 3 expected"):
        gpu_option(Topology(1, 1, runs_per_gpu=2), MIG_SITE)
    with pytest.raises(HeartlmError, match="profile mps-site has no gpu_slices"):
        gpu_option(Topology(1, 1, runs_per_gpu=2), MPS_SITE)


@pytest.mark.parametrize("fields", [{"nodes": 2, "gpus_per_node": 1}, {"gpus_per_node": 2, "ranks_per_node": 1}])
def test_only_runs_of_one_gpu_share_one(fields: dict[str, int]):
    with pytest.raises(HeartlmError, match="runs_per_gpu: 4 found, but 1 expected"):
        Topology(**fields, runs_per_gpu=4)


def test_runs_share_a_job_through_mps_and_have_their_own_with_slices():
    assert [len(task) for task in array_on(MPS_SITE).tasks.values()] == [4, 1]
    assert [len(task) for task in array_on(MIG_SITE).tasks.values()] == [1] * 5
    whole = replace(load_profile("meluxina"), account="p1")
    assert array_on(whole, campaign(runs_per_gpu=2)).places == 8
    text = script_of(array_on(whole, campaign(runs_per_gpu=2)), campaign(), whole, python="python")
    assert "--gpus-per-node=4\n" in text and "THREAD_PERCENTAGE=50\n" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profile", "generic", "--gpus-per-node", "1", "--runs-per-gpu", "4"], "has no gpu_slices"),
        (["--profile", "generic", "--runs-per-gpu", "4"], "runs_per_gpu: 4 found, 1 expected: no GPU is asked"),
        (["--local", "--runs-per-gpu", "2"], "runs_per_gpu: 2 found, 1 expected: no GPU is asked of SLURM"),
        (["--profile", "site.yaml", "--runs-per-gpu", "7"], "gpu_slices: found together with whole_nodes"),
    ],
)
def test_launches_that_cannot_share_are_refused(
    words: list[str],
    said: str,
    tiny_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump({"corpus": str(tiny_corpus), "steps": 2, "window": 16, "depth": 1}))
    Path("site.yaml").write_text("{gpus_per_node: 4, whole_nodes: true, gpu_slices: {7: --gres=gpu:a100_1g.5gb:1}}")
    assert main(["launch", "run.yaml", *words]) == 2
    assert said in capsys.readouterr().err


# --- the script, in bash ----------------------------------------------------------------------------------------------

STAND_INS = {
    "nvidia-cuda-mps-control": """
echo "mps $* $(test $# = 0 && cat) $CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PIPE_DIRECTORY" \
    >>"$RECORD"
test -d "$CUDA_MPS_PIPE_DIRECTORY" && test -d "$CUDA_MPS_LOG_DIRECTORY" && exit "${MPS_STATUS:-0}"
""",
    "nvidia-smi": 'echo "smi $*" >>"$RECORD"; printf "GPU-%s\\n" one two\n',
    "env": """
echo "run $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $1" >>"$RECORD"
exec /usr/bin/env "$@"
""",
}
"""Programs that write down how they were called; there is no GPU."""


def on_path(folder: Path, programs: dict[str, str]) -> dict[str, str]:
    """An environment in which `programs` come first; they write to RECORD."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "RECORD": str(folder / "record")}


def assert_started_and_quit(record: str, runs: int) -> None:
    """MPS was started once, before the runs, and quit once, after them; its folder is gone."""
    smi, start, *between, end = record.splitlines()
    assert re.fullmatch(r"smi --query-gpu=uuid --format=csv,noheader --id=[01](,1)?", smi)
    found = re.fullmatch(r"mps -d  GPU-one,GPU-two 50 (/tmp/heartlm-mps-\w+)/pipe", start)
    assert found, record
    assert between == [f"run {found[1]}/pipe 50 CUDA_VISIBLE_DEVICES=GPU-one,GPU-two"] * runs
    assert re.fullmatch(rf"mps  quit .*50 {found[1]}/pipe", end)
    assert not Path(found[1]).exists()


@pytest.mark.parametrize(("ends", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $PPID; sleep 1; exit 3", 3)])
def test_mps_is_quit_however_the_runs_end(ends: str, status: int, tmp_path: Path):
    of = campaign(tmp_path, runs_per_gpu=2)
    (tmp_path / "small.campaign" / "arrays").mkdir(parents=True)
    array = array_on(profile_of({}, "site"), of)
    (tmp_path / "small.campaign" / "arrays" / f"{array.name}.tasks").write_text(tasks_text(array, of))
    script = script_of(array, of, profile_of({}, "site"), python="true")
    srun = 'while [[ $1 == --* ]]; do shift; done; "$@" || true\n'
    environment = on_path(tmp_path / "bin", {**STAND_INS, "srun": f"{srun}{ends}\n"})
    environment |= {"SLURM_CPUS_PER_TASK": "2", "SLURM_ARRAY_TASK_ID": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=environment, timeout=60)
    assert done.returncode == status, done.stderr
    assert_started_and_quit((tmp_path / "bin" / "record").read_text(), runs=1)


def test_runs_take_turns_where_mps_does_not_start(tmp_path: Path):
    of = campaign(tmp_path, runs_per_gpu=2)
    (tmp_path / "small.campaign" / "arrays").mkdir(parents=True)
    array = array_on(profile_of({}, "site"), of)
    (tmp_path / "small.campaign" / "arrays" / f"{array.name}.tasks").write_text(tasks_text(array, of))
    script = script_of(array, of, profile_of({}, "site"), python="true")
    environment = on_path(tmp_path / "bin", {"srun": 'echo "started with $CUDA_MPS_PIPE_DIRECTORY"\n'})
    environment |= {"SLURM_CPUS_PER_TASK": "2", "SLURM_ARRAY_TASK_ID": "1", "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=environment, timeout=60)
    assert done.returncode == 0
    assert "MPS did not start" in done.stdout and "started with /tmp/heartlm-mps-" in done.stdout
    assert not list(Path("/tmp").glob(re.search(r"heartlm-mps-\w+", done.stdout)[0]))  # type: ignore[index]


# --- on SLURM ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_share_a_gpu_of_slurm(
    slurm: Cluster,  # noqa: F811
    tiny_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    for name, value in (on_path(tmp_path / "bin", STAND_INS) | {"SLURM_CONF": slurm.environment["SLURM_CONF"]}).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "site.yaml").write_text('gpu_option: "--gres=gpu:a100:{gpus}"\n')
    common = {"corpus": str(tiny_corpus), "window": 16, "batch_size": 4, "steps": 2, "threads": 1, "device": "cpu"}
    experiments = [
        {"name": f"s{seed}", "run": {**common, "depth": 1, "seed": seed, "out": f"runs/s{seed}"}} for seed in (1, 2)
    ]
    topology = {"gpus_per_node": 1, "runs_per_gpu": 2}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"topology": topology, "experiments": experiments}, sort_keys=False))
    assert main(["campaign", "run", str(path), "--profile", str(tmp_path / "site.yaml"), "--submit", "--wait"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "2 done", said
    assert "1-pretrain, 2 experiments in 1 tasks of 1 node × 1/2 GPU" in said.err
    assert_started_and_quit((tmp_path / "bin" / "record").read_text(), runs=1)


@pytest.mark.slow
def test_a_launched_run_gets_one_slice_of_slurm(
    slurm: Cluster,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """The launched program prints what it sees: training needs a GPU, which is not here."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    program = tmp_path / "program"
    program.write_text('#!/bin/bash\necho "sees $CUDA_VISIBLE_DEVICES of $SLURM_JOB_GPUS"\n')
    program.chmod(0o755)
    site = profile_of({"gpu_slices": {7: "--gres=gpu:a100_1g.5gb:1"}}, "site")
    run = RunFile("pretrain", {"corpus": "c", "out": str(tmp_path / "run")})
    topology = Topology(1, 1, 1, 1, 60, runs_per_gpu=7)
    script = tmp_path / "run.sh"
    script.write_text(render(run, topology, site, name="slice", logs=tmp_path, python=str(program)))
    job = slurm.command("sbatch", "--parsable", script).strip()
    state = follow(job, lambda line: None)
    assert state.state == "COMPLETED", state_of(job).output.read_text()
    assert "JOB_GRES=gpu:a100_1g.5gb:1" in slurm.command("scontrol", "show", "job", "--details", job)
    assert re.search(r"^sees ([23]) of \1$", state.output.read_text(), re.MULTILINE)


# --- the doctor -------------------------------------------------------------------------------------------------------


def test_what_a_site_offers_is_said_in_a_line_each():
    assert offers(7, "/usr/bin/nvidia-cuda-mps-control") == [
        "MIG: 7 slice(s) on this machine: a profile's gpu_slices says how SLURM is asked for one",
        "MPS: /usr/bin/nvidia-cuda-mps-control, a campaign with runs_per_gpu starts it in its jobs",
    ]
    none = offers(0, None)
    assert "sinfo" in none[0] and "take turns" in none[1]


@pytest.mark.parametrize(
    ("larger_s", "memory_gib", "begins", "advised"),
    [
        (0.011, 2, "sharing pays: 4 times the batch take 1.1 times as long", ["let 3 small runs share a GPU"]),
        (0.011, 30, "sharing does not pay: 4 times the batch take 1.1 times as long, but 3 runs of 30.0 GiB", []),
        (0.038, 2, "sharing does not pay: 4 times the batch take 3.8 times as long, so one run fills", []),
    ],
)
def test_sharing_pays_where_more_work_takes_no_longer(
    larger_s: float, memory_gib: int, begins: str, advised: list[str]
):
    line, advice = verdict(room(0.01, larger_s), memory_gib << 30, True, [{"memory_bytes": 40 << 30}])
    assert line.startswith(begins)
    assert [each.what for each in advice] == advised
    assert verdict(room(0.01, larger_s), memory_gib << 30, False, [{"memory_bytes": 40 << 30}]) == (line, [])


def test_the_measurement_is_two_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On CPUs, with batches of 2 and 8 windows; on a GPU only the device differs."""
    monkeypatch.setitem(sharing.WINDOWS, "gpu", 2)
    monkeypatch.setattr(sharing, "STEPS", 8)
    section = sharing.check_sharing(Context(tmp_path, facts={"versions": {"torch_sees_gpus": 1}}))
    assert section.facts["gain"] > 0
    assert re.search(r"sharing (pays|does not pay): 4 times the batch take \d", section.lines[-1])
