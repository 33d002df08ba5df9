"""Campaigns as job arrays: who waits for whom, scripts that shells read and people know, and a real SLURM."""

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
from heartlm.cluster.campaign.arrays import TaskArray, arrays_of, places_on_node
from heartlm.cluster.campaign.campaign import Campaign, Experiment, campaign_of, in_order
from heartlm.cluster.campaign.slurm import script_of, tasks_text
from heartlm.cluster.profile import load_profile, profile_of
from heartlm.cluster.run_file import RunFile
from heartlm.cluster.topology import Topology
from tests.slurm import Cluster, slurm  # noqa: F401

PLAIN = profile_of({"partition": "main"}, "plain")
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


def test_arrays_wait_task_for_task_where_they_can_and_else_for_the_very_tasks():
    arrays = {array.name: array for array in arrays_of(grid().experiments, PLAIN)}
    jobs = {name: str(10 + number) for number, name in enumerate(arrays)}
    assert [(name, array.numbers, array.dependency(jobs)) for name, array in arrays.items()] == [
        ("1-pretrain", "1-3", None),
        ("2-finetune", "1-2", "afterok:10_1"),
        ("2-finetune-2", "1-2", "afterok:10_2"),
        ("2-finetune-3", "1-2", "afterok:10_3"),
        ("3-evaluate", "1-2", "aftercorr:11"),
        ("3-evaluate-2", "1-2", "aftercorr:12"),
        ("3-evaluate-3", "1-2", "aftercorr:13"),
        ("4-annotate", "1-2", "aftercorr:14:11"),
        ("4-annotate-2", "1-2", "aftercorr:15:12"),
        ("4-annotate-3", "1-2", "aftercorr:16:13"),
    ]


def test_what_is_done_is_not_waited_for():
    experiments = [each for each in grid().experiments if each.name not in ("pretrain-128", "finetune-svdb-128")]
    arrays = {array.name: array for array in arrays_of(experiments, PLAIN)}
    first = next(array for array in arrays.values() if "finetune-mitdb-128" in named(array))
    assert first.kind is None and named(first) == {"finetune-mitdb-128"}
    free = next(array for array in arrays.values() if "evaluate-svdb-128" in named(array))
    assert free.kind is None and free.needs[1] == ()


def named(array: TaskArray) -> set[str]:
    return {each.name for each in array.experiments}


def test_numbers_are_written_as_slurm_does():
    tasks = dict.fromkeys((1, 2, 3, 7, 9, 10), grid().experiments[:1])
    assert TaskArray("a", tasks).numbers == "1-3,7,9-10"


@given(st.data())
def test_every_task_waits_for_all_that_it_needs_and_is_run_once(data: st.DataObject):
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
    profile = data.draw(st.sampled_from([PLAIN, SHARING]))
    arrays = arrays_of(left, profile)
    place = {
        each.name: (array.name, number) for array in arrays for number in array.tasks for each in array.tasks[number]
    }
    assert len(place) == sum(len(array.experiments) for array in arrays) == len(left)
    seen: set[str] = set()
    for array in arrays:
        assert len({(each.topology, each.stage) for each in array.experiments}) == 1
        for number, task in array.tasks.items():
            assert 1 <= len(task) <= array.places == places_on_node(array.topology, profile)
            left_to_do = {need for each in task for need in each.needs if need in place}
            assert set(array.needs[number]) == left_to_do
            needed = {place[need] for need in left_to_do}
            assert all(name in seen for name, _ in needed)
            if array.kind == "aftercorr":
                assert {name for name, _ in array.waits_for} == {name for name, _ in needed}
                assert all(other == number for _, other in needed)
            elif array.kind == "afterany":
                assert set(array.waits_for) >= needed
            else:
                assert set(array.waits_for) == needed
        seen.add(array.name)


def test_what_wants_a_part_of_a_node_shares_it_where_nodes_are_given_whole():
    arrays = {array.name: array for array in arrays_of(grid().experiments, load_profile("meluxina"))}
    finetune = arrays["2-finetune"]
    assert [name for name, array in arrays.items() if array.places > 1] == ["2-finetune"]
    assert finetune.places == 4
    assert [len(task) for task in finetune.tasks.values()] == [4, 2]
    assert finetune.kind == "afterany"
    line = tasks_text(finetune, replace(grid(), path=Path("/project/work/widths.yaml"))).splitlines()[1]
    assert line == (
        "finetune-svdb-256,finetune-svdb-512\tcampaign run /project/work/widths.yaml --local --parallel=4 "
        "--only=finetune-svdb-256,finetune-svdb-512"
    )


# --- scripts ----------------------------------------------------------------------------------------------------------


def rendered() -> dict[str, str]:
    """What a campaign gives, by the name of the golden file."""
    campaign = replace(grid(), path=Path("/project/work/widths.yaml"))
    by_name = {array.name: array for array in arrays_of(campaign.experiments, PLAIN)}
    meluxina = load_profile("meluxina")
    shared = next(array for array in arrays_of(campaign.experiments, meluxina) if array.places > 1)
    return {
        "meluxina-finetune.sh": script_of(shared, campaign, meluxina, python="python"),
        "finetune.tasks": tasks_text(shared, campaign),
        "meluxina-pretrain.sh": script_of(by_name["1-pretrain"], campaign, meluxina, python="python"),
        "pretrain.tasks": tasks_text(by_name["1-pretrain"], campaign),
        "plain-evaluate.sh": script_of(by_name["3-evaluate-2"], campaign, PLAIN, python="/opt/python", at_most=1),
        "evaluate.tasks": tasks_text(by_name["3-evaluate-2"], campaign),
    }


@pytest.mark.parametrize("name", sorted(rendered()))
def test_scripts_are_the_golden_ones(name: str):
    """`python -m tests.test_campaign_arrays` writes them again, after a look at what changed."""
    assert rendered()[name] == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in sorted(rendered()) if name.endswith(".sh")])
def test_shells_read_the_scripts(name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_text(rendered()[name])
    assert subprocess.run(["bash", "-n", path], capture_output=True).stderr == b""
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here: apt-get install shellcheck")
    checked = subprocess.run(["shellcheck", path], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_names_with_spaces_and_quotes_survive_the_file_of_tasks():
    fields = {"corpus": "my corpora/it's", "weights": {"a b": 2, "c": 1}, "out": "runs/a"}
    experiment = Experiment("a", "p", RunFile("pretrain", fields), Topology())
    (line,) = tasks_text(TaskArray("1-p", {1: (experiment,)}), grid()).splitlines()
    words = line.split("\t")[3]
    done = subprocess.run(
        ["bash", "-c", 'command=(); eval "command=($1)"; printf "%s\\n" "${command[@]}"', "-", words],
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [*RunFile("pretrain", fields).argv(), "--device=cpu"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profile", "local", "--dry-run"], "profile: local found, a profile of a site with SLURM"),
        (["--profile", "meluxina", "--dry-run"], "account: nothing found"),
        (["--profile", "generic"], "profile: found without --submit or --dry-run"),
        (["--profile", "nowhere", "--submit"], "profile: 'nowhere' found"),
    ],
)
def test_profiles_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
):
    path = tmp_path / "c.yaml"
    path.write_text("experiments: [{name: a, run: {corpus: c, out: a}}]")
    assert main(["campaign", "run", str(path), *words]) == 2
    assert said in capsys.readouterr().err


def test_runs_are_checked_before_anything_is_submitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "c.yaml"
    for field, said in (("stepz: 3", "a: "), ("steps: 0", "a: steps: 0 found"), ("resume: x", "a: resume: leave it")):
        path.write_text(f"experiments: [{{name: a, run: {{corpus: c, out: a, {field}}}}}]")
        assert main(["campaign", "run", str(path), "--profile", "generic", "--submit"]) == 2
        assert said in capsys.readouterr().err
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
            {"name": "broken", "stage": "pretrain", "run": {**common, "corpus": "nowhere", "out": "runs/broken"}},
            {
                "name": "after",
                "stage": "finetune",
                "run": {"command": "finetune", **common, "run": "runs/broken", "out": "runs/after"},
            },
        ],
    }
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(campaign, sort_keys=False))
    assert main(["campaign", "run", str(path), "--profile", "generic", "--submit", "--wait"]) == 1
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "5 done, 1 failed, 1 not run", said
    assert lines[1].startswith("failed: broken: exit status 2: heartlm pretrain: nowhere: no manifest.json")
    assert lines[2] == "not run: after: needs broken, which failed"
    assert [line.partition(": ")[2] for line in said.err.splitlines()[:2]] == [
        "1-pretrain, 3 experiments of 1 node × 1 CPU rank",
        "2-finetune, 3 experiments of 1 node × 1 CPU rank",
    ]

    assert main(["campaign", "status", str(path), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    attempts = {name: rows[name]["attempts"] for name in ("pretrain-1", "pretrain-2", "broken", "after")}
    assert attempts == {"pretrain-1": 1, "pretrain-2": 1, "broken": 2, "after": 0}, slurm.logs()
    assert rows["finetune-1"]["step"] == 2 and rows["score"]["attempts"] == 1

    assert (
        main(["pretrain", *RunFile("", {**common, "depth": 1, "seed": 1}).argv()[1:], f"--out={tmp_path}/alone"]) == 0
    )
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
    experiments.append({"name": "broken", "run": {**common, "corpus": "nowhere", "out": "runs/broken"}})
    experiments.append(
        {"name": "after", "run": {"command": "finetune", **common, "run": "runs/broken", "out": "runs/after"}}
    )
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"topology": {"gpus_per_node": 1}, "experiments": experiments}, sort_keys=False))
    assert main(["campaign", "run", str(path), "--profile", str(profile), "--submit", "--wait"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "2 done, 1 failed, 1 not run", said
    assert "1-pretrain, 3 experiments in 2 tasks of 1 node × 1 GPU" in said.err
    assert main(["campaign", "status", str(path), "--json"]) == 0
    attempts = {row["name"]: row["attempts"] for row in json.loads(capsys.readouterr().out)}
    assert attempts == {"p1": 1, "p2": 1, "broken": 2, "after": 0}, slurm.logs()


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, text in rendered().items():
        (GOLDEN / name).write_text(text, encoding="utf-8")
    sys.exit(0)
