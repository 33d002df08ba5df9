"""Campaigns on the cores of this machine: real runs, one that fails, one that is killed, what is done left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from heartlm.cli.main import main
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.campaign.campaign import Experiment, load_campaign
from heartlm.extensions.cluster.campaign.local import LocalRunner, command_line
from heartlm.extensions.cluster.campaign.state import attempts_of
from heartlm.extensions.cluster.run_file import RunFile
from heartlm.extensions.cluster.topology import Topology
from heartlm.system.cores import Core

pytestmark = pytest.mark.slow

TRAINING = {"window": 16, "batch_size": 4, "threads": 1, "device": "cpu", "log_every": 1, "checkpoint_every": 5}


def start(path: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "heartlm", "campaign", "run", str(path), "--local", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(path: Path, *words: str) -> tuple[int, str, str]:
    process = start(path, *words)
    said, complained = process.communicate(timeout=240)
    return process.returncode, said, complained


def status(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert main(["campaign", "status", str(path), "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def write(path: Path, corpus: Path, *, steps: int = 4, broken: bool = False) -> Path:
    """A campaign of one model that is pretrained, fine-tuned and scored, and of one that cannot be pretrained."""
    common = {**TRAINING, "corpus": str(corpus), "steps": steps}
    score = {"run": "{finetune.out}", "on": str(corpus), "split": "train", "bootstrap": 5, "baselines": False}
    campaign: dict[str, Any] = {
        "grid": {"seed": [7]},
        "stages": {
            "pretrain": {"run": {**common, "depth": 1, "seed": "{seed}", "out": "runs/w{seed}"}},
            "finetune": {"run": {"command": "finetune", **common, "run": "{pretrain.out}", "out": "runs/beats"}},
            "evaluate": {"run": {"command": "evaluate", **score, "threads": 1}},
        },
    }
    if broken:
        nowhere = {"corpus": "nowhere", "out": "runs/broken"}
        campaign["experiments"] = [
            {"name": "broken", "run": nowhere},
            {"name": "after", "run": {"command": "finetune", **common, "run": "runs/broken", "out": "runs/after"}},
        ]
    path.write_text(yaml.safe_dump(campaign, sort_keys=False))
    return path


def test_a_campaign_is_run_what_fails_is_tried_again_and_what_is_done_is_left_alone(
    tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = write(tmp_path / "c.yaml", tiny_corpus, broken=True)
    code, said, complained = run(path, "--parallel", str(min(2, len(os.sched_getaffinity(0)))))
    assert code == 1, complained
    lines = said.splitlines()
    assert lines[0] == "3 done, 1 failed, 1 not run"
    assert lines[1].startswith("failed: broken: exit status 2: heartlm pretrain: nowhere: no manifest.json")
    assert lines[2] == "not run: after: needs broken, which failed"

    rows = status(path, capsys)
    assert [rows[name]["attempts"] for name in ("pretrain-7", "finetune-7", "evaluate-7", "broken", "after")] == [
        1,
        1,
        1,
        2,
        0,
    ]
    assert (rows["pretrain-7"]["step"], rows["pretrain-7"]["steps"]) == (4, 4)
    assert (tmp_path / "runs/beats/scores/evaluate-7/scores.json").is_file()
    num_cores = json.loads((tmp_path / "runs/w7/environment.json").read_text())["num_cores"]
    assert num_cores == max(1, len(os.sched_getaffinity(0)) // 2)

    write(path, tiny_corpus)
    code, said, complained = run(path)
    assert (code, said, complained) == (0, "3 done\n", "")
    assert all(row["attempts"] == 1 for row in status(path, capsys).values())

    write(path, tiny_corpus, steps=5)
    code, said, complained = run(path)
    assert code == 2
    assert "pretrain-7" in complained and "is there already with steps 4, 5 expected" in complained


def test_killed_and_begun_again_a_campaign_resumes_and_ends_the_same(tiny_corpus: Path, tmp_path: Path):
    steps = 120
    whole = {
        **TRAINING,
        "corpus": str(tiny_corpus),
        "depth": 1,
        "steps": steps,
        "validate_every": 1000,
        "checkpoint_every": 20,
    }
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"experiments": [{"name": "only", "run": {**whole, "out": "runs/only"}}]}))
    metrics = tmp_path / "runs/only/metrics.jsonl"
    process = start(path)
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 22):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL

    code, said, complained = run(path)
    assert (code, said) == (0, "1 done\n"), complained
    assert "only: resumed" in complained
    attempts = attempts_of(load_campaign(path), "only")
    assert [attempt.status for attempt in attempts] == [None, 0]
    assert "resumed after step" in attempts[1].log.read_text()

    words = [f"--{name.replace('_', '-')}={value}" for name, value in whole.items()]
    assert main(["pretrain", *words, f"--out={tmp_path / 'straight'}"]) == 0
    model = "models/last/model.safetensors"
    assert (tmp_path / "runs/only" / model).read_bytes() == (tmp_path / "straight" / model).read_bytes()


def test_a_campaign_asked_to_stop_leaves_a_checkpoint(
    tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "c.yaml"
    fields = {**TRAINING, "corpus": str(tiny_corpus), "depth": 1, "steps": 100_000, "out": "runs/long"}
    path.write_text(yaml.safe_dump({"experiments": [{"name": "long", "run": fields}]}))
    metrics = tmp_path / "runs/long/metrics.jsonl"
    process = start(path)
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        time.sleep(0.005)
    assert status(path, capsys)["long"]["state"] == "running"
    process.send_signal(signal.SIGTERM)
    _, complained = process.communicate(timeout=120)
    assert process.returncode == 143
    assert complained.splitlines()[-1] == "stopped; the same command continues from here"
    row = status(path, capsys)["long"]
    assert row["state"] == "interrupted" and 2 < row["step"] < 100_000
    assert list((tmp_path / "runs/long/checkpoints").glob("step-*"))


def test_a_corpus_without_some_recordings_is_done(
    tiny_database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "db"
    shutil.copytree(tiny_database, folder)
    (folder / "RECORDS").unlink(missing_ok=True)
    (folder / "torn.hea").write_text("torn 1 250 1000\ntorn.dat 212 200 11 1024 0 0 0 MLII\n")
    tokenize = {"command": "tokenize", "databases": [str(folder)], "out": "corpus", "skip_unreadable": True}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"experiments": [{"name": "corpus", "run": {**tokenize, "processes": 1}}]}))
    code, said, complained = run(path)
    assert (code, said) == (0, "1 done\n"), complained
    assert status(path, capsys)["corpus"]["attempts"] == 1
    assert json.loads((tmp_path / "corpus" / "manifest.json").read_text())["num_left_out"] == 1


@pytest.mark.parametrize("only", ["a", "b", "c"])
def test_an_experiment_is_run_by_one_process_at_a_time(tmp_path: Path, only: str):
    path = tmp_path / "c.yaml"
    experiments = ", ".join(f"{{name: {name}, run: {{corpus: none, out: {name}}}}}" for name in "abc")
    path.write_text(f"experiments: [{experiments}]")
    holds = (
        "import sys; from heartlm.extensions.cluster.campaign import local; from heartlm.system.cores import Core\n"
        "from heartlm.extensions.cluster.campaign.campaign import load_campaign\n"
        "local.LocalRunner._wait_for_orphans = lambda runner: print(flush=True) or sys.stdin.read()\n"
        f"local.LocalRunner(load_campaign({str(path)!r}), ['a', 'b'], 1, [Core(0, 0, 0, (0, 2))], print).run()"
    )
    with subprocess.Popen([sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()  # it holds a and b
        said = run(path, "--only", only)[2]
        assert (f"another process runs {only} already" in said) == (only != "c")
        assert ("c: failed again, given up" in said) == (only == "c")
        other.kill()


def test_more_at_a_time_than_cpus_is_refused(tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_text("experiments: [{name: a, run: {corpus: c, out: a}}]")
    with pytest.raises(HeartlmError, match="parallel: 3 found, 1 to 2 expected"):
        LocalRunner(load_campaign(path), ["a"], 3, [Core(0, 0, 0, (0, 2))], print).run()


@pytest.mark.parametrize(
    ("topology", "command", "cores", "devices", "num_ranks"),
    [
        (Topology(ranks_per_node=1), "pretrain", 2, 0, 1),
        (Topology(ranks_per_node=2), "pretrain", 2, 0, 2),
        (Topology(ranks_per_node=4), "pretrain", 2, 0, 2),
        (Topology(ranks_per_node=4), "evaluate", 2, 0, 1),
        (Topology(gpus_per_node=4, ranks_per_node=4), "finetune", 2, 0, 1),
        (Topology(gpus_per_node=4, ranks_per_node=4), "finetune", 2, 2, 2),
        (Topology(nodes=4, gpus_per_node=4, ranks_per_node=4), "finetune", 1, 8, 4),
    ],
)
def test_ranks_are_as_many_as_there_are_places_for(
    topology: Topology, command: str, cores: int, devices: int, num_ranks: int
):
    experiment = Experiment("a", "s", RunFile(command, {"out": "a"}), topology)
    words = command_line(experiment, ["x"], cores, devices)
    assert words[-2:] == ["heartlm", "x"]
    assert (f"--nproc-per-node={num_ranks}" in words) == (num_ranks > 1)
