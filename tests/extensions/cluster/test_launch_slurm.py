"""Training on a real SLURM of two nodes, compared with a training that never met SLURM."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from heartlm.cli.main import main
from heartlm.corpus.build import build_corpus
from heartlm.extensions.cluster.submit import JobState, state_of
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.training.checkpoint import Checkpoints
from heartlm.training.config import PretrainConfig
from heartlm.training.pretrain import pretrain
from tests.conftest import shared_data
from tests.extensions.cluster.slurm import Cluster, wait_for
from tests.synthetic_run import losses

pytestmark = pytest.mark.slow

SAME = 1e-5
"""Losses of different layouts differ by rounding alone; relative."""

STEPS = 120
SETTINGS: dict[str, Any] = {"depth": 1, "window": 32, "batch_size": 8, "steps": STEPS, "threads": 1, "log_every": 1}
OFTEN = {"validate_every": 30, "checkpoint_every": 10}
MITDB_RECORDS = ("101", "106", "118", "200")
JOB_TIMEOUT_S = 600.0


class Place:
    """A folder to launch from, with the cluster in the environment."""

    def __init__(self, folder: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.cluster, self.capsys = folder, cluster, capsys

    def launch(self, name: str, corpus: Path, *options: str, nodes: int = 2, **settings: Any) -> tuple[int, str, str]:
        """Launch a run; its status and what it says."""
        fields = {"command": "pretrain", "corpus": str(corpus), **SETTINGS, **OFTEN, **settings}
        Path(f"{name}.yaml").write_text(yaml.safe_dump(fields))
        words = [f"{name}.yaml", "--nodes", str(nodes), "--cpus-per-task", "1", "--time", "10"]
        status = main(["launch", *words, "--submit", *options])
        said = self.capsys.readouterr()
        return status, said.out, said.err

    def queued(self, name: str, corpus: Path, nodes: int = 2, **settings: Any) -> str:
        """Queue a run; the number of its job."""
        status, out, err = self.launch(name, corpus, nodes=nodes, **settings)
        assert status == 0, err
        return out.strip()

    def wait(self, holds: Callable[[], bool], what: str, every_s: float = 0.1) -> None:
        wait_for(holds, what, self.cluster, JOB_TIMEOUT_S, every_s)

    def ended(self, job: str) -> JobState:
        """The job when it has ended."""
        self.wait(lambda: state_of(job).has_ended, f"the end of job {job}")
        return state_of(job)

    def start_again(self, job: str, *changes: str) -> None:
        """Let a job that was queued again start now, and not when its first credential has expired.

        In a later second than it ended, because nodes refuse credentials up to that second.
        """
        self.wait(lambda: state_of(job).state == "PENDING", "the job in the queue again")
        self.cluster.command("scontrol", "update", f"JobId={job}", *changes, "StartTime=now+2")

    def log(self, job: str) -> str:
        """All that the job printed."""
        return state_of(job).output.read_text()

    @staticmethod
    def has_begun(name: str) -> bool:
        """Whether the ranks of a run are there; they need some time yet until their first step."""
        return Path("runs", name, "run.json").exists()


@pytest.fixture
def place(slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    return Place(tmp_path, slurm, capsys)


@pytest.fixture(scope="session")
def unbroken(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process that never met SLURM."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    return pretrain(PretrainConfig(corpus=tiny_corpus, out=out, device="cpu", **SETTINGS, **OFTEN))


def assert_same(run: Path, expected: Path, relative: float = SAME) -> None:
    """The same losses at every step, and the same weights in the end."""
    found, reference = losses(run), losses(expected)
    assert found.keys() == reference.keys()
    for key, loss in reference.items():
        assert found[key] == pytest.approx(loss, rel=relative), key
    weights, others = (load_file(folder / "models" / "last" / "model.safetensors") for folder in (run, expected))
    assert weights.keys() == others.keys()
    for name, tensor in others.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


# --- two nodes are one process ----------------------------------------------------------------------------------------


def test_two_nodes_train_on_mitdb_as_one_process_does(place: Place, tmp_path: Path):
    """Two ranks on each; the runs below have one."""
    mitdb = tmp_path / "mitdb"
    mitdb.mkdir()
    for path in shared_data("mitdb").iterdir():
        if path.name.partition(".")[0] in MITDB_RECORDS:
            shutil.copy(path, mitdb)
    corpus = tmp_path / "corpus"
    build_corpus([mitdb], BeatTokenizer(num_levels=2, num_deviation_levels=1, num_codes=32), corpus)
    settings = {"window": 128, "precision": "fp32"}
    ranks = "--ranks-per-node", "2", "--cpus-per-task", "2"
    status, out, err = place.launch("mitdb-run", corpus, "--wait", *ranks, **settings)
    assert status == 0, err
    assert "COMPLETED" in err
    assert "nodes: 2, ranks on each: 2" in place.log(out.split()[0])
    alone = pretrain(
        PretrainConfig(corpus=corpus, out=tmp_path / "alone", device="cpu", **{**SETTINGS, **OFTEN, **settings})
    )
    assert_same(Path("runs/mitdb-run"), alone, relative=1e-4)


# --- stopped, cancelled, killed ---------------------------------------------------------------------------------------


def test_a_job_told_to_stop_queues_again_and_goes_on_with_one_node(place: Place, tiny_corpus: Path, unbroken: Path):
    job = place.queued("stopped", tiny_corpus)
    place.wait(lambda: place.has_begun("stopped"), "the ranks")
    place.cluster.command("scancel", "--signal=USR1", "--batch", job)  # as SLURM does before the time is up
    place.start_again(job, "NumNodes=1-1", "NumTasks=1")
    state, log = place.ended(job), place.log(job)
    assert (state.state, state.restarts) == ("COMPLETED", 1), log
    assert "stopped after step" in log and "resumed after step" in log
    assert log.index("nodes: 2, ranks on each: 1") < log.index("nodes: 1, ranks on each: 1")
    assert_same(Path("runs/stopped"), unbroken)


def test_a_cancelled_job_does_not_queue_again(place: Place, tiny_corpus: Path):
    job = place.queued("cancelled", tiny_corpus, nodes=1, steps=100_000)
    place.wait(lambda: place.has_begun("cancelled"), "the ranks")
    place.cluster.command("scancel", job)
    state = place.ended(job)
    place.wait(place.cluster.nodes_are_idle, "idle nodes")
    assert (state.state, state_of(job).restarts) == ("CANCELLED", 0), place.log(job)


def rank_of(run: str, rank: int) -> int:
    """The process that is this rank of a run."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            variables = (path / "environ").read_bytes().split(b"\0")
            if f"--out=runs/{run}".encode() in words and f"RANK={rank}".encode() in variables:
                return int(path.name)
    raise AssertionError(f"rank {rank} of {run} is not running")


def test_a_job_that_dies_says_so_and_the_next_goes_on(place: Place, tiny_corpus: Path, unbroken: Path):
    job = place.queued("killed", tiny_corpus)
    place.wait(lambda: place.has_begun("killed"), "the ranks")
    victim, checkpoints = rank_of("killed", 1), Checkpoints(Path("runs/killed/checkpoints"))
    place.wait(lambda: bool(checkpoints.complete()), "a checkpoint", every_s=0.01)
    os.kill(victim, signal.SIGKILL)
    state, log = place.ended(job), place.log(job)
    assert (state.state, state.status) == ("FAILED", 128 + signal.SIGKILL), log
    assert "rank 1 on" in log and "SIGKILL" in log
    assert "rank 0 lost another rank" in log and "is good, continue with --resume" in log
    status, out, err = place.launch("killed", tiny_corpus, "--wait", nodes=1)
    assert status == 0, err
    assert "was started and is not finished" in place.log(out.split()[0])
    assert_same(Path("runs/killed"), unbroken)


def test_a_job_whose_node_fails_queues_again_and_goes_on_with_another(place: Place, tiny_corpus: Path, unbroken: Path):
    job = place.queued("lost", tiny_corpus, nodes=1)
    checkpoints = Checkpoints(Path("runs/lost/checkpoints"))
    place.wait(lambda: place.has_begun("lost") and bool(checkpoints.complete()), "a checkpoint", every_s=0.01)
    node = state_of(job).nodes
    try:
        for state in ("drain", "down"):  # its daemon still answers: by itself the node would be back at once
            place.cluster.command("scontrol", "update", f"nodename={node}", f"state={state}", "reason=test")
        place.start_again(job)
        ended = place.ended(job)
    finally:
        place.cluster.command("scontrol", "update", f"nodename={node}", "state=resume")
    assert (ended.state, ended.restarts, node in ended.nodes) == ("COMPLETED", 1, False), place.log(job)
    assert "resumed after step" in place.log(job)
    assert_same(Path("runs/lost"), unbroken)


def test_a_job_that_fails_hands_on_its_own_words(place: Place, tiny_corpus: Path):
    status, _, err = place.launch("wrong", tiny_corpus, "--wait", nodes=1, weights={"nodb": 1})
    assert status == 2
    assert err.splitlines()[-1].startswith("heartlm launch: job ") and "FAILED with status 2" in err
    assert "nodb" in err.splitlines()[-1]
