"""Pretraining and fine-tuning as their user meets them: killed, stopped, resumed, refused."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heartlm.cli.main import main
from heartlm.corpus.corpus import open_corpus
from heartlm.errors import HeartlmError
from heartlm.runs.run_folder import RunFolder, environment
from heartlm.storage.atomic import sha256_of
from heartlm.tasks.finetune import finetune, rows_of_patients
from heartlm.tasks.task import FinetuneConfig
from heartlm.training.checkpoint import Checkpoints
from tests.conftest import Refused, edit_json
from tests.forked import Forked

STEPS = 60
SMALL = ["--window", "16", "--batch-size", "4", "--threads", "1", "--device", "cpu", "--log-every", "1"]
OFTEN = ["--steps", str(STEPS), "--validate-every", "20", "--checkpoint-every", "7"]


def command(*words: str | Path, environment: dict[str, object] | None = None) -> Forked:
    """Start `heartlm` on one CPU thread."""
    return Forked(*words, environment={name: str(value) for name, value in (environment or {}).items()})


def steps_of(run: Path) -> list[int]:
    """The steps of the whole training lines of a run's metrics."""
    if not (run / "metrics.jsonl").exists():
        return []
    whole = (run / "metrics.jsonl").read_text().rpartition("\n")[0].splitlines()
    return [line["step"] for line in map(json.loads, whole) if line["split"] == "train"]


def interrupt(process: Forked, run: Path, step: int, number: signal.Signals) -> tuple[int, str]:
    """Send a signal when `run` shows `step`; return the exit status and the last line of standard error."""
    while process.poll() is None and max(steps_of(run), default=0) < step:
        time.sleep(0.005)
    process.send_signal(number)
    _, said = process.communicate(timeout=240)
    return process.returncode, said.splitlines()[-1] if said else ""


def finish(process: Forked) -> None:
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said


def weights(run: Path) -> list[bytes]:
    return [(run / "models" / which / "model.safetensors").read_bytes() for which in ("last", "best")]


def numbers(run: Path) -> list[dict[str, float]]:
    """All metrics that do not depend on time or memory."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    lasting = ("step", "split", "loss", "learning_rate", "grad_norm")
    return [{key: line[key] for key in line if key in lasting or key.startswith("loss/")} for line in lines]


def assert_same_losses(run: Path, expected: Path) -> None:
    """Ranks add up in another order, so losses differ by rounding."""
    for ours, other in zip(numbers(run), numbers(expected), strict=True):
        assert (ours["step"], ours["split"]) == (other["step"], other["split"])
        assert ours["loss"] == pytest.approx(other["loss"], rel=1e-4)


@pytest.fixture(scope="module")
def straight(tiny_corpus: Path, tiny_pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A pretraining and a fine-tuning run that were never interrupted."""
    folder = tmp_path_factory.mktemp("straight")
    runs = {kind: folder / kind for kind in ("pretrain", "finetune")}
    for kind, run in runs.items():
        assert main(begin(kind, tiny_corpus, tiny_pretrained, run)) == 0
    return runs


def begin(kind: str, corpus: Path, foundation: Path, out: Path) -> list[str]:
    """The words that begin a run with everything random in it: masks, dropout, hidden facets."""
    if kind == "pretrain":
        first = ["pretrain", "--depth", "1", "--dropout", "0.2"]
    else:
        first = ["finetune", str(foundation), "--task", "beats", "--dropout", "0.2", "--facet-dropout", "0.2"]
    return [*first, "--corpus", str(corpus), "--out", str(out), "--seed", "5", *SMALL, *OFTEN]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pretrain", "finetune"])
def test_killed_and_stopped_and_resumed_a_run_ends_bit_for_bit_the_same(
    straight: dict[str, Path], tiny_corpus: Path, tiny_pretrained: Path, tmp_path: Path, kind: str
) -> None:
    run, moment = tmp_path / "run", random.Random(kind)
    process = command(*begin(kind, tiny_corpus, tiny_pretrained, run))
    status, _ = interrupt(process, run, moment.randrange(8, STEPS // 3), signal.SIGKILL)
    assert status == -signal.SIGKILL

    (run / "checkpoints" / ".step-000000099.torn" / "state").mkdir(parents=True)
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 9')
    process = command(kind, "--resume", run)
    status, said = interrupt(process, run, moment.randrange(STEPS // 2, 2 * STEPS // 3), signal.SIGTERM)
    stopped = Checkpoints(run / "checkpoints").complete()[-1]
    assert status == 143
    assert said == f"stopped after step {int(stopped.name[5:])}; continue with --resume {run}"
    assert steps_of(run)[-1] == int(stopped.name[5:])

    finish(command(kind, "--resume", run))
    assert weights(run) == weights(straight[kind])
    assert numbers(run) == numbers(straight[kind])
    assert steps_of(run) == list(range(1, STEPS + 1))


def test_how_a_resumed_run_computes_may_change(straight: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(straight["pretrain"], run)
    shutil.rmtree(run / "checkpoints")
    edit_json(run / "run.json", finished=None)
    changed = ["--accumulation", "2", "--no-pin", "--spans", "--timeout-s=60", "--activation-checkpointing"]
    assert main(["pretrain", "--resume", str(run), *changed]) == 0
    assert_same_losses(run, straight["pretrain"])
    assert (run / "spans" / "rank-0.jsonl").exists()


def test_killed_before_its_first_checkpoint_a_run_resumes_from_the_beginning(
    straight: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(straight["pretrain"], run)
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree(run / "models")
    edit_json(run / "run.json", finished=None)
    assert main(["pretrain", "--resume", str(run)]) == 0
    assert "resumed after step 0" in capfd.readouterr().err
    assert weights(run) == weights(straight["pretrain"])
    assert steps_of(run) == list(range(1, STEPS + 1))


def test_a_run_is_a_folder_with_everything_about_it(straight: dict[str, Path], tiny_pretrained: Path) -> None:
    for kind, run in straight.items():
        about = json.loads((run / "run.json").read_text())
        assert about["kind"] == kind and about["finished"] and about["steps"] == STEPS
        environment = json.loads((run / "environment.json").read_text())
        assert {"torch", "python", "cpu", "git_revision"} <= environment.keys()
        assert json.loads((run / "data.json").read_text())[0]["manifest"]["num_tokens"] > 0
        assert "seed: 5" in (run / "config.yaml").read_text()
        assert (run / "tokenizer" / "tokenizer.json").is_file()
    assert json.loads((straight["finetune"] / "run.json").read_text())["parent"] == str(tiny_pretrained)


# --- many ranks -------------------------------------------------------------------------------------------------------


def ranks(num_ranks: int, *words: str | Path) -> list[Forked]:
    """Start `heartlm` as the ranks of one process group."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    return [command(*words, environment={**shared, "RANK": rank, "LOCAL_RANK": rank}) for rank in range(num_ranks)]


def test_torchrun_trains_as_one_process_does(straight: dict[str, Path], tiny_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = begin("pretrain", tiny_corpus, tmp_path, run)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "-m",
            "heartlm",
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{run}\n"
    assert done.stderr.count(f"step {STEPS}/{STEPS}  train") == 1
    assert_same_losses(run, straight["pretrain"])
    assert json.loads((run / "environment.json").read_text())["num_ranks"] == 2


@pytest.mark.slow
def test_a_killed_rank_is_noticed_and_the_last_checkpoint_is_good(
    straight: dict[str, Path], tiny_corpus: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    first, second = ranks(2, *begin("pretrain", tiny_corpus, tmp_path, run))
    while first.poll() is None and max(steps_of(run), default=0) < 30:
        time.sleep(0.005)
    second.kill()
    _, said = first.communicate(timeout=240)
    second.communicate()
    good = Checkpoints(run / "checkpoints").complete()[-1].name
    assert first.returncode == 2
    lost = rf"rank 0 lost another rank in step \d+ \(.*\): {good} is good, continue with --resume {run}"
    in_checkpoint = r"\S+ was not finished: .*; the newest complete checkpoint is good"
    assert re.fullmatch(f"heartlm pretrain: ({lost}|{in_checkpoint})", said.splitlines()[-1])
    finish(command("pretrain", "--resume", run))
    assert_same_losses(run, straight["pretrain"])


@pytest.mark.slow
def test_two_ranks_killed_and_resumed_end_bit_for_bit_the_same(tiny_corpus: Path, tmp_path: Path) -> None:
    whole, run, moment = tmp_path / "whole", tmp_path / "run", random.Random(7)
    for process in ranks(2, *begin("pretrain", tiny_corpus, tmp_path, whole)):
        finish(process)
    words: list[str | Path] = [*begin("pretrain", tiny_corpus, tmp_path, run)]
    for victims, first, last in (((0, 1), 8, STEPS // 3), ((1,), STEPS // 2, 2 * STEPS // 3)):
        both, step = ranks(2, *words), moment.randrange(first, last)
        while both[0].poll() is None and max(steps_of(run), default=0) < step:
            time.sleep(0.005)
        good = [path.name for path in Checkpoints(run / "checkpoints").complete()]
        for victim in victims:
            both[victim].kill()
        for process in both:
            process.communicate(timeout=240)
        expected = [-signal.SIGKILL if rank in victims else 2 for rank in (0, 1)]
        assert [process.returncode for process in both] == expected
        assert Checkpoints(run / "checkpoints").complete()[-1].name >= good[-1]
        words = ["pretrain", "--resume", run]
    for process in ranks(2, *words):
        finish(process)
    assert weights(run) == weights(whole)
    assert numbers(run) == numbers(whole)
    assert steps_of(run) == list(range(1, STEPS + 1))
    names = [{str(path.relative_to(each)) for path in each.rglob("*")} for each in (run, whole)]
    assert names[0] == names[1]


def test_ranks_stop_together_and_one_speaks(tiny_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, second = ranks(2, *begin("pretrain", tiny_corpus, tmp_path, run))
    status, said = interrupt(second, run, 10, signal.SIGTERM)
    _, of_first = first.communicate(timeout=240)
    stopped = steps_of(run)[-1]
    assert (status, first.returncode) == (143, 143)
    assert said == ""
    assert of_first.splitlines()[-1] == f"stopped after step {stopped}; continue with --resume {run}"
    assert Checkpoints(run / "checkpoints").complete()[-1].name == f"step-{stopped:09d}"


@pytest.mark.parametrize(
    ("words", "field"),
    [
        pytest.param(["--depth", "0"], "depth", id="typed"),
        pytest.param(["--batch-size", "3"], "batch_size", id="split", marks=pytest.mark.slow),
        pytest.param(["--weights", "{nowhere: 1}"], "weights", id="corpus"),
    ],
)
def test_a_mistake_is_told_once_by_all_ranks(tiny_corpus: Path, tmp_path: Path, words: list[str], field: str) -> None:
    run = tmp_path / "run"
    processes = ranks(2, *begin("pretrain", tiny_corpus, tmp_path, run), *words)
    said = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert "".join(said).count("\n") == 1 and field in "".join(said)
    assert not run.exists()


# --- settings ---------------------------------------------------------------------------------------------------------


def test_a_settings_file_and_options_beside_it(tiny_corpus: Path, tmp_path: Path) -> None:
    lines = [f"corpus: {tiny_corpus}", "depth: 1", "steps: 9", "window: 16", "batch_size: 4", "learning_rate: 1e-3"]
    (tmp_path / "a.yaml").write_text("\n".join([*lines, "objective: causal", "weights: {tinydb: 2}", "threads: 1"]))
    run = tmp_path / "run"
    assert main(["pretrain", str(tmp_path / "a.yaml"), "--steps", "2", "--out", str(run), "--device", "cpu"]) == 0
    resolved = (run / "config.yaml").read_text()
    assert "steps: 2\n" in resolved and "objective: causal\n" in resolved and "learning_rate: 0.001\n" in resolved
    again = tmp_path / "again"
    assert main(["pretrain", str(run / "config.yaml"), "--out", str(again)]) == 0
    assert weights(again) == weights(run)


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--steps", "0"], "steps"),
        (["--stepz", "3"], "--stepz"),
        (["--depth", "few"], "depth"),
        (["--batch-size", "6", "--accumulation", "4"], "accumulation"),
        (["--batch_size", "6", "--accumulation=4"], "accumulation"),
        (["--width", "33"], "heads"),
        (["--objective", "guess"], "objective"),
        (["--weights", "{nowhere: 1}"], "weights"),
        (["--weights", "{tinydb: -1}"], "weights"),
        (["--no-dropout"], "--no-dropout"),
        (["--precision", "fp7"], "precision"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_an_impossible_setting_is_named_and_nothing_is_begun(
    tiny_corpus: Path, tmp_path: Path, refused: Refused, words: list[str], field: str
) -> None:
    out = tmp_path / "run"
    assert field in refused("pretrain", "--corpus", tiny_corpus, "--out", out, "--depth", "1", *words)
    assert not out.exists()


def test_finetuning_settings_that_cannot_be(
    tiny_corpus: Path, tiny_pretrained: Path, tiny_finetuned: Path, tmp_path: Path, refused: Refused
) -> None:
    beats = ["finetune", tiny_pretrained, "--corpus", tiny_corpus, "--out", tmp_path / "run"]
    assert "rhythm: 'JAZZ' found" in refused(*beats, "--rhythm", "JAZZ")
    assert "head: 'window' found" in refused(*beats, "--head", "window")
    assert "dropout: 1.0 found" in refused(*beats, "--dropout", "1")
    assert "run: nothing found" in refused("finetune", "--corpus", tiny_corpus)
    assert "patients: 'mitdb/999' found" in refused(*beats, "--patients", "mitdb/999")
    assert "no run.json" in refused("finetune", tiny_corpus, *beats[2:])
    assert "corpus: nothing found" in refused("finetune", tiny_pretrained)
    assert not (tmp_path / "run").exists()


def test_finetuning_some_patients_alone_from_a_fine_tuned_run(
    tiny_corpus: Path, tiny_finetuned: Path, tmp_path: Path
) -> None:
    corpus = open_corpus(tiny_corpus)
    rows = corpus.records.select("train")
    one, *others = sorted(set(corpus.records.patient_id[rows].tolist()))
    assert others
    config = FinetuneConfig(tiny_corpus, tmp_path / "run", window=32, steps=2, run=tiny_finetuned, patients=one)
    assert finetune(config) == tmp_path / "run"
    chosen = rows_of_patients(corpus, rows, config.patient_ids)
    assert set(corpus.records.patient_id[chosen].tolist()) == {one}
    assert RunFolder(tmp_path / "run").about["parent"] == str(tiny_finetuned)


def test_patients_of_a_corpus_without_labels_are_not_the_reason(
    tiny_corpus: Path, tiny_finetuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heartlm.tasks.finetune.labelled_rows", lambda *_: np.empty(0, np.int64))
    config = FinetuneConfig(tiny_corpus, tmp_path / "run", window=32, steps=2, run=tiny_finetuned, patients="a/1")
    with pytest.raises(HeartlmError, match="no token of the training split has a label"):
        finetune(config)


class Command:
    """Unpickled, it makes the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("kind", ["index", "torch's index", "value", "tensor", "file outside"])
def test_a_replaced_checkpoint_runs_nothing(
    straight: dict[str, Path], tmp_path: Path, kind: str, refused: Refused
) -> None:
    """Every file is replaced together with its checksum, so only what reads it can refuse."""
    run, made = tmp_path / "run", tmp_path / "made"
    shutil.copytree(straight["pretrain"], run)
    edit_json(run / "run.json", finished=None)
    *older, newest = Checkpoints(run / "checkpoints").complete()
    for path in older:
        shutil.rmtree(path)
    state, command = newest / "state", pickle.dumps(Command(made))
    index = json.loads((state / "index.json").read_text())
    if kind == "index":
        (state / "index.json").write_bytes(command)
    elif kind == "torch's index":
        (state / ".metadata").write_bytes(command)
        (state / "index.json").unlink()
    else:
        torch.save(Command(made), state / "__9_0.distcp")
        name = (
            "optimizer.param_groups.0.lr"
            if kind == "value"
            else next(name for name in index if "chunks" in index[name])
        )
        entry = index[name] if kind == "value" else index[name]["chunks"][0]
        file = "../state/__9_0.distcp" if kind == "file outside" else "__9_0.distcp"
        entry.update(file=file, start=0, length=(state / "__9_0.distcp").stat().st_size)
        (state / "index.json").write_text(json.dumps(index))
    files = {str(path.relative_to(newest)): sha256_of(path) for path in [*state.iterdir(), newest / "progress.json"]}
    (newest / "files.json").write_text(json.dumps(files))

    assert f"{newest} does not fit this run (" in refused("pretrain", "--resume", run)
    assert not made.exists()


def test_what_cannot_be_resumed(straight: dict[str, Path], tiny_corpus: Path, tmp_path: Path, refused: Refused) -> None:
    run = straight["pretrain"]
    before = weights(run)
    assert "seed: cannot change when a run is resumed" in refused("pretrain", "--resume", run, "--seed", "1")
    assert "finished on" in refused("pretrain", "--resume", run)
    assert "a pretrain run found, one of heartlm finetune expected" in refused("finetune", "--resume", run)
    assert "no such run folder" in refused("pretrain", "--resume", tmp_path / "none")
    said = refused("pretrain", "--resume", tiny_corpus)
    assert f"cannot read {tiny_corpus}/config.yaml: No such file" in said and "the settings of a run expected" in said
    assert weights(run) == before
    older = tmp_path / "older"
    shutil.copytree(run, older)
    config = (older / "config.yaml").read_text()
    (older / "config.yaml").write_text(config.replace("resident: null\n", ""))
    said = refused("pretrain", "--resume", older)
    assert "started by another version of heartlm, with other settings (resident)" in said and "start it again" in said


def test_a_run_folder_is_never_overwritten(
    straight: dict[str, Path], tiny_corpus: Path, tiny_database: Path, refused: Refused
) -> None:
    run, again = straight["pretrain"], ["pretrain", "--corpus", tiny_corpus, "--depth", "1", "--out"]
    before = (run / "run.json").read_bytes()
    assert "holds a run already: choose another --out" in refused(*again, run)
    assert "exists and is no run" in refused(*again, tiny_database)
    assert "exists and is no run" in refused(*again, tiny_corpus / "manifest.json")
    assert (run / "run.json").read_bytes() == before


def test_a_run_starts_without_a_revision_if_git_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def hang(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[0] == "git":
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", hang)
    assert environment("cpu")["git_revision"] is None
