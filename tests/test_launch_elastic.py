"""An elastic training on a real SLURM: it loses a node, continues on one, gets one back; the losses are the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from heartlm.cli.main import main
from heartlm.cluster.submit import state_of
from heartlm.runs.run_folder import RunFolder
from heartlm.training.config import PretrainConfig
from heartlm.training.pretrain import pretrain
from tests.slurm import slurm  # noqa: F401
from tests.test_launch_slurm import Place, assert_same, place  # noqa: F401

pytestmark = pytest.mark.slow

STEPS = 150
SETTINGS: dict[str, Any] = {
    "depth": 2,
    "window": 128,
    "batch_size": 32,
    "steps": STEPS,
    "threads": 1,
    "log_every": 1,
    "validate_every": 50,
    "checkpoint_every": 10,
}
SAME = 1e-4
"""Losses of different layouts differ by rounding alone, which grows with the steps; relative."""


def processes(**variables: str) -> Iterator[int]:
    """Processes of heartlm whose environment has these variables."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            environment = (path / "environ").read_bytes().split(b"\0")
            if (
                b"heartlm" in words[1:]
                and b"srun" not in words
                and all(f"{name}={value}".encode() in environment for name, value in variables.items())
            ):
                yield int(path.name)


def has_pending(process: int, number: signal.Signals) -> bool:
    """Whether a signal waits for a stopped process; one that has ended has nothing to wait for."""
    with suppress(OSError):
        lines = dict(line.partition(":\t")[::2] for line in Path(f"/proc/{process}/status").read_text().splitlines())
        return any(int(lines[name], 16) >> (number - 1) & 1 for name in ("SigPnd", "ShdPnd"))
    return True


class Elastic:
    """A launched run of one node and at most one more."""

    def __init__(self, place: Place, name: str, corpus: Path) -> None:  # noqa: F811
        fields = {"command": "pretrain", "corpus": str(corpus), **SETTINGS}
        Path(f"{name}.yaml").write_text(yaml.safe_dump(fields))
        words = ["--elastic", "1:2", "--cpus-per-task", "2", "--time", "20", "--submit"]
        assert main(["launch", f"{name}.yaml", *words]) == 0, place.capsys.readouterr().err
        self.place, self.name = place, name
        self.job = place.capsys.readouterr().out.strip()
        helpers = place.cluster.command("squeue", "--noheader", "--format=%A", f"--name={name}-helps-{self.job}")
        (self.helper,) = helpers.split()
        self.jobs, self.node = (self.job, self.helper), ""

    def log(self) -> str:
        """What both jobs printed; the node of rank 0 may be either's."""
        return "".join(path.read_text() for job in self.jobs if (path := state_of(job).output).exists())

    def num_rounds(self, nodes: int) -> int:
        """How often ranks were started on this number of nodes."""
        return self.log().count(f"{nodes} node(s) train together")

    def set_node(self, state: str) -> None:
        """Change the state of the node that is lost."""
        self.place.cluster.command("scontrol", "update", f"nodename={self.node}", f"state={state}", "reason=test")

    def steps(self) -> int:
        path = Path("runs", self.name)
        return RunFolder(path).last_step if (path / "metrics.jsonl").exists() else 0

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        def checked() -> bool:
            assert not state_of(self.job).has_ended, f"it has ended before {what}\n{self.log()}"
            return holds()

        self.place.wait(checked, what, every_s=0.01)

    def rank_alone(self) -> int | None:
        """The rank of the main job, where it trains alone."""
        return next(processes(SLURM_JOB_ID=self.job, WORLD_SIZE="1", RANK="0"), None)

    def held_until_joined(self, at_step: int) -> None:
        """Stop the rank that trains alone at a step until another node came, so that it cannot be done before."""
        self.wait(lambda: self.rank_alone() is not None, "one rank alone")
        rank = self.rank_alone()
        assert rank is not None
        self.wait(lambda: self.steps() >= at_step, "progress on one node")
        os.kill(rank, signal.SIGSTOP)
        if self.node:
            self.set_node("resume")
        self.wait(lambda: has_pending(rank, signal.SIGTERM), "another node")  # the launcher wants ranks to stop then
        with suppress(ProcessLookupError):
            os.kill(rank, signal.SIGCONT)

    def meet(self) -> None:
        """Wait until two nodes have trained together for some steps."""
        self.wait(lambda: self.num_rounds(1) + self.num_rounds(2) > 0, "the first ranks")
        if self.num_rounds(1):
            self.held_until_joined(0)
        self.wait(lambda: self.num_rounds(2) == 1, "two nodes")
        before = self.steps()
        self.wait(lambda: self.steps() >= before + 15, "progress on two nodes")


def launcher_killed(run: Elastic) -> None:
    for process in processes(SLURM_JOB_ID=run.helper):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def node_down(run: Elastic) -> None:
    run.set_node("down")


@pytest.fixture(scope="module")
def unbroken(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("elastic") / "unbroken"
    return pretrain(PretrainConfig(corpus=tiny_corpus, out=out, device="cpu", **SETTINGS))


@pytest.mark.parametrize("lose", [launcher_killed, node_down])
def test_a_run_loses_a_node_and_gets_one_back(
    lose: Callable[[Elastic], None],
    place: Place,  # noqa: F811
    tiny_corpus: Path,
    unbroken: Path,
):
    run = Elastic(place, "elastic", tiny_corpus)
    run.meet()
    alone, run.node = run.num_rounds(1), state_of(run.helper).nodes
    run.set_node("drain")  # it does not come back before it may
    lose(run)
    run.wait(lambda: run.num_rounds(1) == alone + 1, "one node")
    run.held_until_joined(run.steps() + 10)
    run.wait(lambda: run.num_rounds(2) == 2, "two nodes again")
    state = place.ended(run.job)
    assert (state.state, state.restarts) == ("COMPLETED", 0), run.log()
    assert run.log().count("resumed after step") >= 2
    place.wait(lambda: state_of(run.helper).has_ended, "the end of the helper")
    assert state_of(run.helper).state == "COMPLETED"
    assert_same(Path("runs/elastic"), unbroken, relative=SAME)


def test_the_first_node_of_the_main_job_is_lost(
    place: Place,  # noqa: F811
    tiny_corpus: Path,
    unbroken: Path,
):
    """It queues again and continues on the node that is left, without a command of the user."""
    run = Elastic(place, "first", tiny_corpus)
    run.meet()
    run.node = state_of(run.job).nodes
    run.set_node("drain")  # its daemon still answers: by itself it would be back before the job has ended there
    run.set_node("down")
    try:
        state = place.ended(run.job)
    finally:
        run.set_node("resume")
    assert (state.state, state.restarts, run.node in state.nodes) == ("COMPLETED", 1, False), run.log()
    assert_same(Path("runs/first"), unbroken, relative=SAME)
