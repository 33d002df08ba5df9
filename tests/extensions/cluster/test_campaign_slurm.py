"""Campaigns on SLURM: who waits for whom, scripts that shells read and people know, and a real SLURM."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from heartlm.cli.main import main
from heartlm.extensions.cluster.campaign.campaign import Campaign, Experiment, campaign_of, in_order
from heartlm.extensions.cluster.campaign.slurm import Job, dependency, jobs_of, places_on_node, script_of
from heartlm.extensions.cluster.profile import load_profile, profile_of
from heartlm.extensions.cluster.run_file import RunFile
from heartlm.extensions.cluster.topology import Topology
from tests.conftest import Refused
from tests.extensions.cluster.named_corpus import name_corpus
from tests.extensions.cluster.slurm import Cluster, slurm  # noqa: F401

MELUXINA = load_profile("meluxina")
PLAIN = profile_of({"partition": "main", "python": "/opt/python"}, "plain")
SHARING = profile_of({"whole_nodes": True, "gpus_per_node": 2, "gpu_option": "--comment=gpus-{gpus}"}, "sharing")

GOLDEN = Path(__file__).parent / "golden" / "campaign"

GRID = """
name: widths
topology: {nodes: 2, gpus_per_node: 4, cpus_per_task: 64, time: "02:00:00"}
grid: {database: [mitdb, svdb], window: [128, 256, 512]}
stages:
  pretrain:
    run: {command: pretrain, corpus: corpora/all, window: "{window}", out: "runs/w{window}"}
  finetune:
    run: {command: finetune, run: "{pretrain.out}", corpus: "corpora/{database}", window: "{window}",
          out: "runs/{database}-w{window}"}
    topology: {nodes: 1, gpus_per_node: 1, time: "00:30:00"}
  evaluate:
    run: {command: evaluate, run: "{finetune.out}", on: "corpora/{database}"}
    topology: {cpus_per_task: 8, gpus_per_node: 0, time: "00:10:00"}
  annotate:
    run: {command: evaluate, run: "{finetune.out}", on: "data/{database}", beats: detected}
    topology: {cpus_per_task: 8, gpus_per_node: 0, time: "00:10:00"}
    needs: [evaluate]
"""


def grid() -> Campaign:
    return campaign_of(yaml.safe_load(GRID), default_name="x", folder=Path("/project/work"))


def names_of(job: Job) -> list[str]:
    return [each.name for each in job]


def waits_of(jobs: list[Job]) -> dict[str, list[str]]:
    """The options of sbatch of each job, by the name of its first experiment; jobs are numbered from 10."""
    numbers, found = dict[str, str](), dict[str, list[str]]()
    for number, job in enumerate(jobs, start=10):
        found[job[0].name] = dependency(job, numbers)
        numbers |= dict.fromkeys(names_of(job), str(number))
    return found


def test_a_job_waits_for_the_jobs_of_its_needs():
    jobs = jobs_of(grid().experiments, PLAIN)
    assert [len(job) for job in jobs] == [1] * (3 + 6 + 6 + 6)
    waits = waits_of(jobs)
    order = list(waits)
    assert waits["pretrain-256"] == []
    number = {name: 10 + place for place, name in enumerate(order)}
    for name, on in (
        ("finetune-svdb-256", ["pretrain-256"]),
        ("evaluate-svdb-256", ["finetune-svdb-256"]),
        ("annotate-svdb-256", ["finetune-svdb-256", "evaluate-svdb-256"]),
    ):
        option, kill = waits[name]
        assert kill == "--kill-on-invalid-dep=yes"
        assert set(option.removeprefix("--dependency=").split(",")) == {f"afterok:{number[each]}" for each in on}


def test_what_is_done_is_not_waited_for():
    experiments = [each for each in grid().experiments if each.name not in ("pretrain-128", "finetune-svdb-128")]
    waits = waits_of(jobs_of(experiments, PLAIN))
    assert waits["finetune-mitdb-128"] == waits["evaluate-svdb-128"] == []
    (job,) = [job for job in jobs_of(experiments, PLAIN) if job[0].name == "evaluate-svdb-128"]
    assert job[0].needs == ()


@given(st.data())
def test_every_job_waits_for_all_that_it_needs_and_is_run_once(data: st.DataObject):
    names = [f"e{number}" for number in range(data.draw(st.integers(1, 10)))]
    experiments = in_order(
        [
            Experiment(
                name,
                data.draw(st.sampled_from("pq")),
                RunFile("pretrain", {"out": name}),
                Topology(gpus_per_node=data.draw(st.integers(0, 2))),
                tuple(data.draw(st.lists(st.sampled_from(names[:number]), unique=True)) if number else ()),
            )
            for number, name in enumerate(names)
        ]
    )
    left = [each for each in experiments if data.draw(st.booleans())]
    pending = {each.name for each in left}
    profile = data.draw(st.sampled_from([PLAIN, SHARING]))
    jobs = jobs_of(left, profile)
    assert sorted(name for job in jobs for name in names_of(job)) == sorted(pending)
    numbers, sizes = dict[str, str](), dict[str, int]()
    needs = {each.name: set(each.needs) & pending for each in left}
    for number, job in enumerate(jobs):
        assert len({each.topology for each in job}) == 1
        assert 1 <= len(job) <= places_on_node(job[0].topology, profile)
        expected = {numbers[need] for name in names_of(job) for need in needs[name]}  # all have been submitted
        options = dependency(job, numbers)
        waits = options[0].removeprefix("--dependency=").split(",") if options else []
        assert {wait.partition(":")[2] for wait in waits} == expected
        for kind, _, other in (wait.partition(":") for wait in waits):
            assert kind == ("afterok" if len(job) == sizes[other] == 1 else "afterany")
        numbers |= dict.fromkeys(names_of(job), str(number))
        sizes[str(number)] = len(job)


def test_what_wants_a_part_of_a_node_shares_it_where_nodes_are_given_whole():
    jobs = jobs_of(grid().experiments, MELUXINA)
    shared = [job for job in jobs if len(job) > 1]
    assert [(job[0].stage, len(job)) for job in shared] == [("finetune", 4), ("finetune", 2)]
    assert waits_of(jobs)[shared[0][0].name][0] == "--dependency=afterany:10,afterany:11,afterany:12"
    script = script_of(shared[1], replace(grid(), path=Path("/project/work/widths.yaml")), MELUXINA)
    assert "    '--only=finetune-svdb-256 finetune-svdb-512'\n" in script
    assert "    --parallel=4\n" in script and "#SBATCH --gpus-per-node=4\n" in script


# --- scripts ----------------------------------------------------------------------------------------------------------


def rendered() -> dict[str, str]:
    """What a campaign gives, by the name of the golden file."""
    campaign = replace(grid(), path=Path("/project/work/widths.yaml"))
    alone = {job[0].name: job for job in jobs_of(campaign.experiments, PLAIN)}
    shared = next(job for job in jobs_of(campaign.experiments, MELUXINA) if len(job) > 1)
    return {
        "shared-finetune.sh": script_of(shared, campaign, MELUXINA),
        "meluxina-pretrain.sh": script_of(alone["pretrain-128"], campaign, MELUXINA),
        "plain-evaluate.sh": script_of(alone["evaluate-svdb-256"], campaign, PLAIN),
    }


@pytest.mark.parametrize("name", sorted(rendered()))
def test_scripts_are_the_golden_ones(name: str):
    """`python -m tests.extensions.cluster.test_campaign_slurm` writes them again, after a look at what changed."""
    assert rendered()[name] == (GOLDEN / name).read_text(encoding="utf-8")


def test_a_corpus_without_some_recordings_is_a_success_for_those_that_need_it():
    """tokenize ends with 1 where it left recordings out; a job that waits for it with afterok has to start."""
    line = "((status != 1)) || status=0"
    for command, is_success in (("tokenize", True), ("evaluate", False)):
        run = RunFile(command, {"databases": ["a"], "out": "b"} if is_success else {"run": "r", "on": "c"})
        job = (Experiment("e", "s", run, Topology()),)
        script = script_of(job, replace(grid(), path=Path("/project/work/widths.yaml")), PLAIN)
        assert (line in script) is is_success
        assert run.is_success(0) and run.is_success(1) is is_success and not run.is_success(2)
    assert script.splitlines()[-1] == 'exit "$status"'


@pytest.mark.parametrize("name", [name for name in sorted(rendered()) if name.endswith(".sh")])
def test_shells_read_the_scripts(name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_text(rendered()[name])
    assert subprocess.run(["bash", "-n", path], capture_output=True).stderr == b""
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here: apt-get install shellcheck")
    checked = subprocess.run(["shellcheck", path], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profile", "meluxina", "--submit"], "account: nothing found"),
        (["--profile", "nowhere", "--submit"], "profile: 'nowhere' found"),
    ],
)
def test_profiles_that_do_not_fit_are_refused(tmp_path: Path, refused: Refused, words: list[str], said: str):
    path = tmp_path / "c.yaml"
    path.write_text("experiments: [{name: a, run: {corpus: c, out: a}}]")
    assert said in refused("campaign", "run", path, *words)


def test_runs_are_checked_before_anything_is_submitted(tmp_path: Path, refused: Refused):
    path = tmp_path / "c.yaml"
    for field, said in (("stepz: 3", "a: "), ("steps: 0", "a: steps: 0 found"), ("resume: x", "a: resume: leave it")):
        path.write_text(f"experiments: [{{name: a, run: {{corpus: c, out: a, {field}}}}}]")
        assert said in refused("campaign", "run", path, "--profile", "generic", "--submit")
    assert not (tmp_path / "c.campaign").exists()


# --- the real thing ---------------------------------------------------------------------------------------------------


def test_a_campaign_on_two_nodes(
    slurm: Cluster,  # noqa: F811
    tiny_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    common = {"corpus": str(tiny_corpus), "window": 16, "batch_size": 4, "steps": 2, "threads": 1}
    campaign: dict[str, Any] = {
        "grid": {"seed": [1, 2]},
        "stages": {
            "pretrain": {"run": {**common, "depth": 1, "seed": "{seed}", "out": "runs/w{seed}"}},
            "finetune": {"run": {"command": "finetune", **common, "run": "{pretrain.out}", "out": "runs/b{seed}"}},
        },
        "experiments": [
            {
                "name": "score",
                "run": {
                    "command": "evaluate",
                    "run": "runs/b2",
                    "on": str(tiny_corpus),
                    "bootstrap": 5,
                    "baselines": False,
                },
            },
            {"name": "broken", "stage": "pretrain", "run": {**common, "corpus": "damaged", "out": "runs/broken"}},
            {
                "name": "after",
                "stage": "finetune",
                "run": {"command": "finetune", **common, "run": "runs/broken", "out": "runs/after"},
            },
        ],
    }
    name_corpus(tmp_path / "damaged")
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(campaign, sort_keys=False))
    assert main(["campaign", "run", str(path), "--profile", "generic", "--submit", "--wait"]) == 1
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "5 done, 1 failed, 1 not run", said
    assert lines[1].startswith("failed: broken: exit status 2: heartlm pretrain: damaged")
    assert lines[2] == "not run: after: needs broken, which failed"
    assert said.err.splitlines()[0].partition(": ")[2] == "pretrain-1 on 1 node × 1 CPU rank"

    assert main(["campaign", "status", str(path), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    attempts = {name: rows[name]["attempts"] for name in ("pretrain-1", "pretrain-2", "broken", "after")}
    assert attempts == {"pretrain-1": 1, "pretrain-2": 1, "broken": 2, "after": 0}, slurm.logs()
    assert rows["finetune-1"]["step"] == 2 and rows["score"]["attempts"] == 1

    alone = RunFile("pretrain", {**common, "depth": 1, "seed": 1}).argv()
    assert main([*alone, f"--out={tmp_path}/alone"]) == 0
    model = "models/last/model.safetensors"
    assert (tmp_path / "runs/w1" / model).read_bytes() == (tmp_path / "alone" / model).read_bytes()


def test_experiments_that_share_a_node(
    slurm: Cluster,  # noqa: F811
    tiny_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    profile = tmp_path / "sharing.yaml"
    profile.write_text("whole_nodes: true\ngpus_per_node: 2\ngpu_option: --comment=gpus-{gpus}\n")
    common = {"corpus": str(tiny_corpus), "window": 16, "batch_size": 4, "steps": 2, "threads": 1, "device": "cpu"}
    experiments = [
        {"name": f"p{seed}", "run": {**common, "depth": 1, "seed": seed, "out": f"runs/p{seed}"}} for seed in (1, 2)
    ]
    experiments.append({"name": "broken", "run": {**common, "corpus": "damaged", "out": "runs/broken"}})
    experiments.append(
        {"name": "after", "run": {"command": "finetune", **common, "run": "runs/broken", "out": "runs/after"}}
    )
    name_corpus(tmp_path / "damaged")
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"topology": {"gpus_per_node": 1}, "experiments": experiments}, sort_keys=False))
    assert main(["campaign", "run", str(path), "--profile", str(profile), "--submit", "--wait"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "2 done, 1 failed, 1 not run", said
    assert "p1, p2 on 1 node × 1 GPU" in said.err
    assert main(["campaign", "status", str(path), "--json"]) == 0
    attempts = {row["name"]: row["attempts"] for row in json.loads(capsys.readouterr().out)}
    assert attempts == {"p1": 1, "p2": 1, "broken": 2, "after": 0}, slurm.logs()


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, text in rendered().items():
        (GOLDEN / name).write_text(text, encoding="utf-8")
    sys.exit(0)
