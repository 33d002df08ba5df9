"""Elastic trainings without SLURM: what the script of a main job and of a helper does, and which ranks start again."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from heartlm.cli.main import main
from heartlm.cluster.elastic import continued, nodes_of, starts_again
from heartlm.cluster.profile import load_profile
from heartlm.cluster.run_file import RunFile
from heartlm.cluster.script import render
from heartlm.cluster.topology import Topology
from heartlm.cluster.torchrun import is_elastic, placed
from heartlm.distributed.ranks import LOST_STATUS, PeerLost, ReportedByPeer, status_of
from heartlm.errors import HeartlmError

STAND_INS = {
    "scontrol": """
case "$*" in
    "--oneliner show job 70") echo "JobId=70 JobState=$STATE Restarts=2 NodeList=node[1-2] BatchHost=node1" ;;
    "show hostnames node[1-2]") printf 'node1\\nnode2\\n' ;;
    "--oneliner show node node1") echo "NodeName=node1 NodeAddr=10.0.0.1 Port=1" ;;
    *) echo "scontrol $*" >>"$RECORD" ;;
esac
""",
    "scancel": 'echo "scancel $*" >>"$RECORD"\n',
    "srun": 'printf "%s " "$@" >"$RECORD.srun"; exit "$STATUS"\n',
}


def run_script(
    folder: Path, *arguments: str, job: str, state: str = "RUNNING", status: int = 0
) -> tuple[int, str, str]:
    """Run the script of an elastic run as `job`; its status, what it asked of SLURM, and what it started."""
    for name, text in STAND_INS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o755)
    run = RunFile("pretrain", {"corpus": "corpora/many", "out": str(folder / "run")})
    script = render(run, Topology(1, 0, 1, 1, 60, max_nodes=2), load_profile("generic"), name="r", logs=folder)
    (folder / "script").write_text(script)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "RECORD": str(folder / "record"), "STATE": state}
    environment |= {"STATUS": str(status), "SLURM_JOB_ID": job, "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NAME": "r"}
    environment["SLURM_CPUS_PER_TASK"] = "1"
    done = subprocess.run(
        ["bash", folder / "script", *arguments], env=environment, capture_output=True, text=True, timeout=60
    )
    record, started = (
        path.read_text() if path.exists() else "" for path in (folder / "record", folder / "record.srun")
    )
    return done.returncode, record, started


@pytest.mark.parametrize(("job", "arguments"), [("70", ()), ("71", ("70",))])
def test_main_job_and_helper_meet_at_the_same_place(job: str, arguments: tuple[str, ...], tmp_path: Path):
    status, _, started = run_script(tmp_path, *arguments, job=job)
    assert status == 0
    assert "--nnodes=1:2 --nproc-per-node=1" in started
    assert "--rdzv-endpoint=10.0.0.1:10070 --rdzv-id=70-2 " in started


@pytest.mark.parametrize(
    ("state", "asked_of_slurm"), [("PENDING", "scontrol requeue 71\n"), ("COMPLETED", ""), ("CANCELLED", "")]
)
def test_a_helper_starts_nothing_unless_the_main_job_runs(state: str, asked_of_slurm: str, tmp_path: Path):
    assert run_script(tmp_path, "70", job="71", state=state) == (0, asked_of_slurm, "")


@pytest.mark.parametrize(
    ("job", "arguments", "status", "asked_of_slurm"),
    [
        ("70", (), 0, "scancel --state=PENDING --name=r-helps-70\n"),
        ("70", (), 2, "scancel --state=PENDING --name=r-helps-70\n"),
        ("70", (), 143, "scontrol requeue 70\n"),
        ("71", ("70",), 0, ""),
        ("71", ("70",), 137, "scontrol requeue 71\n"),
        ("71", ("70",), 143, "scontrol requeue 71\n"),
    ],
)
def test_what_comes_after_the_ranks(
    job: str, arguments: tuple[str, ...], status: int, asked_of_slurm: str, tmp_path: Path
):
    found, record, _ = run_script(tmp_path, *arguments, job=job, status=status)
    assert (found, record) == (status, asked_of_slurm)


# --- torchrun ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "was_asked", "expected"),
    [
        ([LOST_STATUS], False, "free"),
        ([143, LOST_STATUS], False, "free"),
        ([-9, LOST_STATUS], False, "counted"),
        ([1], False, "counted"),
        ([2], False, "never"),
        ([143], True, "never"),
    ],
)
def test_ranks_start_again_where_that_helps(statuses: list[int], was_asked: bool, expected: str):
    assert starts_again(statuses, was_asked) == expected


def test_the_status_of_a_rank_that_lost_another_tells_an_elastic_launcher():
    elastic, fixed = {"TORCHELASTIC_MAX_RESTARTS": "3"}, {"TORCHELASTIC_MAX_RESTARTS": "0"}
    reported = ReportedByPeer("rank 1 is gone")
    reported.__cause__ = lost = PeerLost("rank 1 is gone")
    assert [status_of(error, elastic) for error in (lost, reported, HeartlmError("x"))] == [75, 75, 2]
    assert [status_of(error, fixed) for error in (lost, reported)] == [status_of(lost, {}), 2] == [2, 2]


@pytest.mark.parametrize(("finished", "resumed"), [(None, True), ("2026-01-01", False)])
def test_words_of_a_rank_resume_what_was_started(finished: str | None, resumed: bool, tmp_path: Path):
    words = ["-m", "heartlm", "pretrain", "--corpus=c", f"--out={tmp_path}", "--steps=3"]
    assert continued(words) == words
    (tmp_path / "run.json").write_text(json.dumps({"finished": finished}))
    assert continued(words) == ([*words[:3], f"--resume={tmp_path}"] if resumed else words)


@pytest.mark.parametrize(("job", "node", "is_host"), [("70", "0", True), ("70", "1", False), ("71", "0", False)])
def test_the_first_node_of_the_main_job_holds_the_meeting_point(job: str, node: str, is_host: bool):
    words = ["--nnodes=1:2", "--rdzv-endpoint=127.0.0.1:10070", "--rdzv-id=70-0", "-m", "heartlm"]
    assert is_elastic(words) and not is_elastic(["--nnodes=2", "-m", "heartlm", "--nnodes=1:2"])
    conf, _ = placed(words, {"SLURM_JOB_ID": job, "SLURM_NODEID": node})
    assert conf.startswith(f"--rdzv-conf=is_host={is_host},last_call_timeout=")


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["2", "0:2", "3:2", "2:2", "1:x", "1:2:3"])
def test_numbers_of_nodes_that_mean_nothing_are_refused(text: str):
    with pytest.raises(HeartlmError, match="the fewest and the most nodes expected"):
        nodes_of(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--elastic", "1:3"], "batch_size: 4 found, a multiple of 3 expected"),
        (["--elastic", "1:2", "--nodes", "2"], "elastic: 1:2 found, but it is for trainings on SLURM, without nodes"),
        (["--elastic", "1:2", "--local"], "elastic: 1:2 found, but it is for trainings on SLURM"),
    ],
)
def test_runs_that_cannot_be_elastic_are_refused(
    words: list[str],
    said: str,
    tiny_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump({"corpus": str(tiny_corpus), "batch_size": 4, "steps": 2, "window": 16}))
    assert main(["launch", "run.yaml", *words]) == 2
    assert said in capsys.readouterr().err
