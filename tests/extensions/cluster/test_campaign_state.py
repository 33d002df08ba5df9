"""The state of experiments from files alone: attempts, logs, SLURM's queue, and results of the right settings."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from heartlm.cli.main import main
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.campaign.campaign import Campaign, Experiment, campaign_of
from heartlm.extensions.cluster.campaign.state import (
    Attempt,
    attempts_of,
    next_attempt,
    progress_of,
    rows_of,
    steps_of,
    summary,
    words_to_continue,
)
from heartlm.extensions.cluster.submit import last_line
from heartlm.storage.atomic import write_json

CHAIN = """
experiments:
- {name: first, run: {corpus: c, steps: 10, threads: 2, out: runs/first}}
- {name: second, run: {command: finetune, run: runs/first, corpus: c, out: runs/second}}
- {name: third, run: {command: evaluate, run: runs/second, on: c, device: cpu}}
"""


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return campaign_of(yaml.safe_load(CHAIN), default_name="chain", folder=tmp_path)


def attempted(campaign: Campaign, name: str, status: int | None, log: str = "") -> Attempt:
    attempt = next_attempt(campaign, name)
    attempt.begin()
    attempt.log.write_text(log)
    if status is not None:
        attempt.end(status)
    return attempt


def made(campaign: Campaign, experiment: Experiment, finished: str | None = "now", **settings: Any) -> None:
    """A run folder as a training leaves it, as far as a campaign looks into it."""
    from heartlm.training.config import PretrainConfig

    folder = campaign.folder / experiment.result
    corpus = str((campaign.folder / "c").resolve())
    config = {**vars(PretrainConfig()), **experiment.run.fields, "batch_size": 16, "corpus": corpus, **settings}
    config = {name: str(value) if isinstance(value, Path) else value for name, value in config.items()}
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    write_json(folder / "run.json", {"kind": experiment.run.command, "finished": finished, "steps": config["steps"]})


def states(campaign: Campaign, queue: dict[str, str] | None = None) -> list[str]:
    return [row.state for row in rows_of(campaign, queue or {})]


def test_nothing_begun_is_waiting(campaign: Campaign):
    assert states(campaign) == ["waiting"] * 3
    assert [row.note for row in rows_of(campaign, {})] == ["", "for first", "for second"]


def test_a_run_folder_that_cannot_be_read_is_a_failure_of_its_experiment(campaign: Campaign):
    folder = campaign.folder / campaign["first"].result
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{")
    rows = rows_of(campaign, {})
    assert [row.state for row in rows] == ["failed", "not run", "not run"]
    assert "run.json is not valid JSON" in rows[0].note


def test_what_failed_is_listed_with_its_last_line_and_what_needs_it_is_not_run(campaign: Campaign):
    attempted(campaign, "first", 1, "hello\n")
    attempted(
        campaign, "first", 1, "something\nheartlm pretrain: no such corpus\n\nsrun: error: node1: task 0: Exited\n"
    )
    assert states(campaign) == ["failed", "not run", "not run"]
    rows = rows_of(campaign, {})
    assert rows[0].attempts == 2
    assert rows[0].note == "exit status 1: heartlm pretrain: no such corpus"
    assert summary(rows)[0] == "1 failed, 2 not run"
    assert summary(rows)[1].startswith("failed: first: exit status 1: heartlm pretrain: no such corpus  (log: ")
    assert summary(rows)[2:] == [
        "not run: second: needs first, which failed",
        "not run: third: needs second, which did not run",
    ]


def test_a_log_with_nothing_but_words_of_srun_is_told_all_the_same(campaign: Campaign):
    attempt = attempted(campaign, "first", 1, "srun: error: no more nodes\n")
    assert last_line(attempt.log) == "srun: error: no more nodes"
    attempted(campaign, "first", 1)
    assert rows_of(campaign, {})[0].note == "exit status 1: nothing said"


def test_an_attempt_without_an_end_runs_while_its_log_is_locked(campaign: Campaign):
    attempt = attempted(campaign, "first", None)
    assert states(campaign)[0] == "interrupted"
    with attempt.log.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert states(campaign)[0] == "running"
    assert states(campaign)[0] == "interrupted"


@pytest.mark.parametrize(
    ("status", "queued", "state"),
    [
        (None, "RUNNING", "running"),
        (None, "PENDING", "queued"),
        (1, "PENDING", "queued"),
        (143, "PENDING", "queued"),
        (143, None, "interrupted"),
        (-15, None, "interrupted"),
        (-9, None, "failed"),
        (2, None, "failed"),
    ],
)
def test_the_queue_says_whether_an_attempt_goes_on(
    campaign: Campaign, status: int | None, queued: str | None, state: str
):
    attempted(campaign, "first", status)
    assert states(campaign, {"first": queued} if queued else {})[0] == state


def test_the_result_decides_what_is_done(campaign: Campaign):
    made(campaign, campaign["first"])
    attempted(campaign, "first", -9)
    assert states(campaign) == ["done", "waiting", "waiting"]
    assert steps_of(campaign["first"], campaign.folder) == (10, 10)


def test_a_run_that_was_begun_is_resumed_with_its_own_settings(campaign: Campaign):
    made(campaign, campaign["first"], finished=None)
    lines = [json.dumps({"step": step, "split": "train"}) for step in (1, 2, 3)]
    (campaign.folder / "runs/first/metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 4, "sp')
    assert progress_of(campaign["first"], campaign.folder) == "started"
    assert words_to_continue(campaign["first"], "started") == ["pretrain", "--resume=runs/first", "--threads=2"]
    assert words_to_continue(campaign["first"], "absent")[-1] == "--out=runs/first"
    assert steps_of(campaign["first"], campaign.folder) == (3, 10)


@pytest.mark.parametrize(("setting", "found"), [("steps", 11), ("dropout", 0.5), ("weights", {"a": 2.0})])
def test_a_run_of_other_settings_is_in_the_way_even_if_they_were_defaults(
    campaign: Campaign, setting: str, found: object
):
    made(campaign, campaign["first"], **{setting: found})
    with pytest.raises(HeartlmError, match=f"first: .* is there already with {setting} "):
        progress_of(campaign["first"], campaign.folder)
    assert states(campaign) == ["failed", "not run", "not run"]


def test_how_a_run_was_computed_does_not_matter(campaign: Campaign):
    made(campaign, campaign["first"], threads=1, device="cuda", pin=False)
    assert progress_of(campaign["first"], campaign.folder) == "done"


@pytest.mark.parametrize(
    ("command", "is_ours"),
    [
        ("heartlm evaluate runs/second --on=c --name=third --device=cpu", True),
        ("heartlm evaluate runs/second --on=c --name=third --threads=4", True),
        ("heartlm evaluate runs/second --on=c --name=third --split=all", False),
        ("heartlm evaluate runs/other --on=c --name=third", False),
        ("", False),
    ],
)
def test_scores_of_another_command_are_in_the_way(campaign: Campaign, command: str, is_ours: bool):
    scores = campaign.folder / "runs/second/scores/third/scores.json"
    write_json(scores, {"command": command})
    if is_ours:
        assert progress_of(campaign["third"], campaign.folder) == "done"
    else:
        with pytest.raises(HeartlmError, match=r"third: .*scores/third was made by"):
            progress_of(campaign["third"], campaign.folder)


def test_notes_that_are_torn_count_as_absent(campaign: Campaign):
    attempt = attempted(campaign, "first", 0)
    (attempt.folder / "attempt-1.ended").write_text('{"stat')
    (again,) = attempts_of(campaign, "first")
    assert again.status is None


def test_the_table_has_a_line_for_each_experiment(
    campaign: Campaign, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    made(campaign, campaign["first"])
    attempted(campaign, "second", 1, "[Errno 28] disk full\n")
    (tmp_path / "chain.yaml").write_text(CHAIN)
    assert main(["campaign", "status", str(tmp_path / "chain.yaml")]) == 0
    heading, first, second, third, counts = capsys.readouterr().out.splitlines()
    assert heading.split() == ["experiment", "state", "step", "time"]
    assert first.split() == ["first", "done", "10", "of", "10"]
    assert "exit status 1: [Errno 28] disk full" in second
    assert third.endswith("needs second, which failed")
    assert counts == "1 done, 1 failed, 1 not run"
