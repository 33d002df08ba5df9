"""Rendered scripts parse, shellcheck finds nothing, they are as they were; bad wishes are refused in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from heartlm.cli.main import main
from heartlm.cli.options import parse
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster import submit
from heartlm.extensions.cluster.profile import SiteProfile, load_profile, profile_names, profile_of
from heartlm.extensions.cluster.run_file import RunFile
from heartlm.extensions.cluster.script import render
from heartlm.extensions.cluster.submit import follow, state_of
from heartlm.extensions.cluster.topology import Topology, seconds_of
from heartlm.system.progress import hours_minutes_seconds
from heartlm.training.config import PretrainConfig
from tests.conftest import Refused
from tests.extensions.cluster.named_corpus import name_corpus

GOLDEN = Path(__file__).parent / "golden" / "launch"
UPDATE = "HEARTLM_UPDATE_GOLDEN"
"""Set this variable to write the golden files again; then look at what git says has changed."""

FOUNDATION = RunFile(
    "pretrain",
    {"corpus": "corpora/many", "out": "runs/foundation", "weights": {"mitdb": 2}, "pin": False, "steps": 5000},
)
BEATS = RunFile(
    "finetune", {"run": "runs/it's mine", "corpus": "corpora/mit bih", "out": "runs/beats", "task": "beats"}
)
ODD = RunFile("finetune", {"run": "a $HOME `b`", "corpus": "it's*", "out": "runs/two  blanks", "task": "beats"})
TOKENS = RunFile("tokenize", {"databases": ["data/mitdb", "data/my own"], "out": "corpora/many", "processes": 64})
SCORES = RunFile("evaluate", {"run": "runs/beats", "on": "corpora/mitdb"})
WAVES = RunFile("delineate", {"path": ["/archive", "/my own"], "out": "waves", "tables": "parquet"})
COPIES = RunFile("data convert", {"source": "/archive", "folder": "my copies", "to": "edf", "anonymize": True})
CHECKS = RunFile("data verify", {"folder": "/archive", "out": "checks"})
SITE = {
    "account": "p1",
    "gpu_option": "--gres=gpu:{gpus}",
    "header": ["--mem=0", "--hint=nomultithread"],
    "modules": ["Apptainer"],
    "container": "apptainer",
    "image": "images/heart lm.sif",
    "environment": {"NCCL_SOCKET_IFNAME": "ib0"},
    "signal_before_s": 300,
}
LOGS = Path("logs")


def profile(name: str) -> SiteProfile:
    account = {"account": "p200000"} if name == "meluxina" else {}
    return replace(load_profile(name), python="python", **account)


SCRIPTS = {
    "meluxina": lambda: render(
        FOUNDATION, Topology(2, 4, 4, 128, 7200), profile("meluxina"), name="foundation", logs=LOGS
    ),
    "generic-cpu": lambda: render(FOUNDATION, Topology(2, 0, 2, 8, 90), profile("generic"), name="cpu", logs=LOGS),
    "own-site": lambda: render(BEATS, Topology(3, 2, 2, 16, 90000), profile_of(SITE, "own"), name="beats", logs=LOGS),
    "tokenize": lambda: render(TOKENS, Topology(1, 0, 1, 32, 3600), profile("generic"), name="tokens", logs=LOGS),
    "evaluate": lambda: render(SCORES, Topology(1, 1, 1, 8, 3600), profile_of(SITE, "own"), name="scores", logs=LOGS),
    "parts": lambda: render(
        WAVES, Topology(1, 0, 1, 16, 3600), profile_of(SITE, "own"), name="waves", logs=LOGS, parts=64
    ),
    "parts-convert": lambda: render(
        COPIES, Topology(1, 0, 1, 16, 3600), profile("generic"), name="copies", logs=LOGS, parts=8
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_as_it_was(name: str):
    path, text = GOLDEN / f"{name}.sh", SCRIPTS[name]()
    if os.environ.get(UPDATE):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"if this is meant: {UPDATE}=1 python -m pytest {__file__}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_parses(name: str):
    done = subprocess.run(["bash", "-n"], input=SCRIPTS[name](), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_finds_nothing(name: str):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck not found: apt-get install shellcheck")
    done = subprocess.run(["shellcheck", "-"], input=SCRIPTS[name](), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.iterdir()} == set(SCRIPTS)


# --- what a script does, in bash itself -------------------------------------------------------------------------------


def words_of(run: RunFile, folder: Path, cpus: int = 4) -> list[str]:
    """The words that the script of a run starts heartlm with, run in `folder` by a stand-in that prints them."""
    address = '[[ $1 == show ]] && echo node1 || echo "NodeName=node1 NodeAddr=10.0.0.1 Port=1"'
    for name, text in (("srun", 'printf "%s\\n" "$@"'), ("scontrol", address)):
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    script = render(run, Topology(1, 0, 1, cpus, 60), profile("generic"), name="x", logs=LOGS)
    slurm = {
        "SLURM_CPUS_PER_TASK": str(cpus),
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_NODELIST": "n",
        "SLURM_JOB_ID": "7",
    }
    environment = os.environ | slurm | {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=folder, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return lines[len(lines) - 1 - lines[::-1].index("heartlm") + 1 :]


@pytest.mark.parametrize("run", [FOUNDATION, BEATS, ODD, SCORES])
def test_words_reach_heartlm_as_they_are(run: RunFile, tmp_path: Path):
    assert words_of(run, tmp_path) == run.argv()


def test_workers_are_never_more_than_cpus(tmp_path: Path):
    assert words_of(TOKENS, tmp_path, cpus=8)[-1] == "--processes=8"
    assert words_of(TOKENS, tmp_path, cpus=96)[-1] == "--processes=64"
    assert words_of(RunFile("tokenize", {"databases": ["a"], "out": "b"}), tmp_path, cpus=3)[-1] == "--processes=3"
    assert words_of(CHECKS, tmp_path) == ["data", "verify", "/archive", "--out=checks", "--processes=4"]


@pytest.mark.parametrize(("finished", "resumed"), [("null", True), ('"2026-01-01"', False)])
def test_a_run_begun_but_not_finished_goes_on(finished: str, resumed: bool, tmp_path: Path):
    folder = tmp_path / "runs" / "foundation"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(f'{{\n  "created": "2026-01-01",\n  "finished": {finished}\n}}\n')
    expected = ["pretrain", "--resume=runs/foundation"] if resumed else FOUNDATION.argv()
    assert words_of(FOUNDATION, tmp_path)[-len(expected) :] == expected


# --- files and options ------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**7))
def test_a_time_limit_is_read_as_it_is_written(seconds: int):
    assert seconds_of(hours_minutes_seconds(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("1:30", 90), ("2:00:00", 7200), ("1-2", 93600), ("1-2:30", 95400), ("1-00:00:01", 86401)],
)
def test_time_limits_as_slurm_writes_them(text: str, seconds: int):
    assert seconds_of(text) == seconds


settings = st.fixed_dictionaries(
    {"corpus": st.just("c d"), "out": st.just("runs/x")},
    optional={
        "pin": st.booleans(),
        "spans": st.booleans(),
        "steps": st.integers(1, 10**6),
        "learning_rate": st.floats(1e-6, 1.0),
        "objective": st.sampled_from(["masked", "causal"]),
        "weights": st.dictionaries(st.sampled_from(["mitdb", "cudb"]), st.floats(0.5, 4.0)),
        "bucket_cap_mb": st.sampled_from([1.5, 10.0]),
    },
)


@given(settings)
def test_words_of_a_run_file_are_read_as_its_fields(fields: dict[str, object]):
    words = RunFile("pretrain", fields).argv()[1:]
    config = parse(PretrainConfig, words, "pretrain")
    expected = {**fields, "corpus": Path("c d"), "out": Path("runs/x")}
    assert {name: getattr(config, name) for name in fields} == expected


def test_every_profile_that_is_shipped_can_be_read():
    assert profile_names() == ["generic", "meluxina"]
    for name in profile_names():
        assert load_profile(name).description
    node = load_profile("meluxina")
    assert (node.gpus_per_node, node.cpus_per_node) == (4, 128)


RUN = {"corpus": "corpora/many", "batch_size": 12}
REFUSED: dict[str, tuple[dict[str, object], list[str], str]] = {
    "bad time": ({}, ["--time", "two hours"], "time: 'two hours' found, HH:MM:SS expected"),
    "no time": ({}, ["--time", "00:00:00"], "time: '00:00:00' found, more than nothing expected"),
    "ranks do not divide": ({}, ["--nodes", "5"], "batch_size: 12 found, a multiple of 5 expected"),
    "default batch": ({"batch_size": None}, ["--nodes", "3"], "batch_size: 16 found, a multiple of 3 expected"),
    "unknown profile": ({}, ["--profile", "mars"], "profile: 'mars' found, one of generic, meluxina"),
    "missing profile": ({}, ["--profile", "./mars.yaml"], "cannot read mars.yaml"),
    "no account": ({}, ["--profile", "meluxina"], "account: nothing found, but meluxina wants one"),
    "too many GPUs": (
        {},
        ["--profile", "meluxina", "--account", "p", "--gpus-per-node", "8"],
        "gpus_per_node: 8 found, at most 4 expected",
    ),
    "GPUs shared": (
        {},
        ["--gpus-per-node", "2", "--ranks-per-node", "4"],
        "ranks_per_node: 4 found, at most 2 expected",
    ),
    "too few CPUs": ({"threads": 4}, ["--cpus-per-task", "2"], "cpus_per_task: 2 found, at least 4 expected"),
    "no ranks": ({}, ["--ranks-per-node", "0"], "ranks_per_node: 0 found, at least 1 expected"),
    "no CPUs": ({}, ["--cpus-per-task", "0"], "cpus_per_task: 0 found, at least 1 expected"),
    "no nodes": ({}, ["--nodes", "0"], "nodes: 0 found, at least 1 expected"),
    "nodes here": ({}, ["--local", "--nodes", "2"], "nodes: 2 found, 1 expected: this machine is one node"),
    "two ways": ({}, ["--local", "--submit"], "local: found together with --submit"),
    "nothing to wait for": ({}, ["--wait"], "wait: there is nothing to wait for"),
    "parts here": ({}, ["--local", "--parts", "2"], "parts: 2 found, at least 1 expected, and jobs of SLURM"),
    "parts of a training": ({}, ["--parts", "2"], "parts: heartlm pretrain has none"),
    "parts of a verification that are kept nowhere": (
        {"command": "data verify", "corpus": None, "batch_size": None, "folder": "/archive"},
        ["--parts", "2"],
        "out: nothing found, the folder in which parts of data verify leave their results",
    ),
    "profile here": ({}, ["--profile", "generic", "--local"], "local: found together with --profile"),
    "unknown field": ({"stepz": 3}, [], "stepz"),
    "impossible field": ({"steps": 0}, [], "steps: 0 found, at least 1 expected"),
    "unknown command": ({"command": "train"}, [], "command: 'train' found, one of pretrain"),
    "resume": ({"resume": "runs/a"}, [], "resume: leave it out"),
    "device": ({"device": "cuda"}, [], "device: cuda found, but 1 node × 1 CPU rank asked for"),
    "impossible processes": (
        {"command": "tokenize", "corpus": None, "batch_size": None, "databases": ["a"], "out": "b", "processes": "all"},
        [],
        "processes",
    ),
    "evaluate what": ({"command": "evaluate", "corpus": None, "batch_size": None}, [], "run"),
    "many evaluate": ({"command": "evaluate"}, ["--nodes", "2"], "heartlm evaluate is one process"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_wish_is_one_line(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused):
    fields, options, expected = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump({**RUN, **fields}))
    assert expected in refused("launch", "run.yaml", *options)


def test_the_state_of_a_job_in_a_folder_with_blanks(monkeypatch: pytest.MonkeyPatch):
    line = (
        "JobId=7 JobName=a b JobState=RUNNING Reason=None Restarts=1 ExitCode=0:0 RunTime=00:01:05 ReqB:S:C:T=0:0:*:* "
        "NodeList=node[1-2] TRES=cpu=2,node=2 "
        "WorkDir=/home/me/my hearts StdErr= StdOut=/home/me/my hearts/a b-7.out Power=\n"
    )
    monkeypatch.setattr("heartlm.extensions.cluster.submit.call", lambda *words: line)
    state = state_of("7")
    assert (state.output, state.run_s) == (Path("/home/me/my hearts/a b-7.out"), 65.0)
    assert state.words == "job 7: RUNNING on node[1-2], queued again 1 time"


class Controller:
    """Stands for the commands of SLURM and for the clock: answers in order, of which an error is a refusal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
        self.answers, self.pauses, self.now_s = list(answers), list[float](), 0.0
        monkeypatch.setattr(submit.subprocess, "run", self.answer)
        monkeypatch.setattr(submit.time, "sleep", self.sleep)
        monkeypatch.setattr(submit.time, "monotonic", lambda: self.now_s)

    def answer(self, words: tuple[str, ...], **_: object) -> subprocess.CompletedProcess[str]:
        text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        failed = "error: " in text
        return subprocess.CompletedProcess(words, int(failed), "" if failed else text, text if failed else "")

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now_s += pause_s


BUSY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
RUNNING, COMPLETED = (f"JobId=7 JobState={state} Reason=None ExitCode=0:0" for state in ("RUNNING", "COMPLETED"))


def test_a_busy_controller_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    Controller(monkeypatch, RUNNING, *[BUSY] * 9, RUNNING, BUSY, COMPLETED)
    assert follow("7", said.append).state == "COMPLETED"
    assert [line.partition(":")[0] for line in said] == ["job 7", *["scontrol refused"] * 2, "job 7"]
    assert said[1].endswith("Unable to contact slurm controller (connect failure); asking again for 5 minutes")


def test_a_controller_that_stays_away_is_given_up_after_minutes(monkeypatch: pytest.MonkeyPatch):
    controller = Controller(monkeypatch, RUNNING, BUSY)
    with pytest.raises(HeartlmError, match="Unable to contact"):
        follow("7", lambda line: None)
    assert submit.BUSY_S <= controller.now_s <= submit.BUSY_S + 2 * submit.LONGEST_POLL_S
    controller = Controller(monkeypatch, "slurm_load_jobs error: Invalid job id specified")
    with pytest.raises(HeartlmError, match="Invalid job id"):
        follow("7", lambda line: None)
    assert controller.pauses == []


def test_a_campaign_asks_as_seldom_as_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "c.yaml"
    path.write_text("experiments: [{name: a, run: {corpus: c, out: a}}]")
    name_corpus(tmp_path / "c")
    controller = Controller(monkeypatch, "7", *["7 PENDING"] * 30, BUSY, *["7 RUNNING"] * 3, "\n")
    assert main(["campaign", "run", str(path), "--profile", "generic", "--submit", "--wait"]) == 1
    assert len(controller.pauses) == 34 and max(controller.pauses) == submit.LONGEST_POLL_S
    assert sum(controller.pauses) > 100


@pytest.mark.parametrize(("state", "code", "status"), [("FAILED", "143:0", 143), ("TIMEOUT", "0:0", 2)])
def test_waiting_ends_with_the_status_of_the_command(
    state: str,
    code: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump(RUN))
    name_corpus(tmp_path / RUN["corpus"])
    Controller(monkeypatch, "7", f"JobId=7 JobState={state} Reason=None ExitCode={code} RunTime=INVALID")
    assert main(["launch", "run.yaml", "--submit", "--wait"]) == status
    assert f"heartlm launch: job 7: {state} with status {code.partition(':')[0]}" in capsys.readouterr().err


def test_jobs_that_cannot_be_cancelled_do_not_hide_why_one_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "c.yaml"
    path.write_text("experiments: [{name: a, run: {corpus: c, out: a}}, {name: b, run: {corpus: c, out: b}}]")
    name_corpus(tmp_path / "c")
    Controller(monkeypatch, "7", "sbatch: error: Job violates a limit", "scancel: error: Socket timed out")
    assert main(["campaign", "run", str(path), "--profile", "generic", "--submit"]) == 2
    assert "sbatch refused: Job violates a limit" in capsys.readouterr().err


def test_without_slurm_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("run.yaml").write_text(yaml.safe_dump(RUN))
    name_corpus(tmp_path / RUN["corpus"])
    assert main(["launch", "run.yaml", "--submit"]) == 2
    assert capsys.readouterr().err == ("heartlm launch: sbatch: no such command, so no SLURM here: use --local\n")


@pytest.mark.parametrize(
    ("run", "profile", "missing"),
    [
        ({"corpus": "nowhere", "out": "a"}, {}, "corpus: nowhere: nothing is there"),
        ({"corpus": ".", "out": "a"}, {}, "corpus: .: no corpus, which heartlm tokenize makes"),
        (
            {"command": "finetune", "run": "runs/none", "corpus": "c", "out": "a"},
            {},
            "run: runs/none: no such run folder",
        ),
        ({"command": "evaluate", "run": "beats", "on": "mitdb"}, {}, "on: mitdb: nothing is there"),
        ({"command": "tokenize", "databases": ["c", "svdb"], "out": "t"}, {}, "databases: svdb: nothing is there"),
        (
            {"corpus": "c", "out": "a"},
            {"container": "apptainer", "image": "heart.sif"},
            "image: heart.sif: no such file",
        ),
    ],
)
def test_what_a_job_needs_is_there_before_it_is_queued(
    run: dict[str, Any],
    profile: dict[str, Any],
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
):
    monkeypatch.chdir(tmp_path)
    name_corpus(tmp_path / "c")
    Path("run.yaml").write_text(yaml.safe_dump(run))
    Path("site.yaml").write_text(yaml.safe_dump(profile))
    Controller(monkeypatch, "sbatch: error: it was asked")
    assert missing in refused("launch", "run.yaml", "--profile", "site.yaml", "--submit")
    campaign = {"topology": {"gpus_per_node": 0}, "experiments": [{"name": "a", "run": run}]}
    Path("c.yaml").write_text(yaml.safe_dump(campaign))
    assert f"heartlm campaign: a: {missing}" in refused(
        "campaign", "run", "c.yaml", "--profile", "site.yaml", "--submit"
    )


@pytest.mark.parametrize(
    "run", [{"command": "data convert", "source": "x", "folder": "y"}, {"command": "data verify", "folder": "x"}]
)
def test_recordings_are_there_before_their_job_is_queued(
    run: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump(run))
    Controller(monkeypatch, "sbatch: error: it was asked")
    assert ": x: nothing is there" in refused("launch", "run.yaml", "--submit")
    Path("x").mkdir()
    assert "it was asked" in refused("launch", "run.yaml", "--submit")


def test_a_campaign_writes_its_scripts_and_submits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    name_corpus(tmp_path / "c")
    runs = [{"corpus": "c", "out": "a"}, {"command": "finetune", "corpus": "c", "run": "a", "out": "b"}]
    experiments = [{"name": run["out"], "run": run} for run in runs]
    Path("c.yaml").write_text(yaml.safe_dump({"name": "two", "experiments": experiments}))
    Controller(monkeypatch, "sbatch: error: it was asked")
    assert main(["campaign", "run", "c.yaml", "--scripts", "jobs"]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert written == sorted(Path("jobs").iterdir()) and len(written) == 2
    assert all("#SBATCH" in path.read_text() for path in written)
    assert main(["campaign", "run", "c.yaml", "--scripts", "jobs", "--submit"]) == 2


BAD_PROFILES = {
    "gpus: found, but there is no such field": {"gpus": 4},
    "gpus_per_node: 'four' found, a whole number expected": {"gpus_per_node": "four"},
    "modules: 'Apptainer' found, a list of text expected": {"modules": "Apptainer"},
    "container: 'docker' found, one of apptainer, none expected": {"container": "docker"},
    "image: nothing found": {"container": "apptainer"},
    "required[0]: 'money' found": {"required": ["money"]},
    "signal_before_s: 0 found": {"signal_before_s": 0},
    "fields with their values expected": ["partition"],
}


@pytest.mark.parametrize("expected", BAD_PROFILES)
def test_a_bad_profile_names_its_field(expected: str):
    with pytest.raises(HeartlmError, match="profile own: ") as error:
        profile_of(BAD_PROFILES[expected], "own").check()
    assert expected in str(error.value)


def test_without_a_way_to_go_it_prints_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump(RUN))
    assert main(["launch", "run.yaml", "--nodes", "2", "--time", "02:00:00"]) == 0
    said = capsys.readouterr()
    assert "#SBATCH --nodes=2\n" in said.out and "#SBATCH --time=02:00:00\n" in said.out
    assert "--out=runs/run" in said.out and "--device=cpu" in said.out
    assert said.err == "printed only: --submit queues it, --local runs it here; logs must exist\n"
