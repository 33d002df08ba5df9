"""A real study of two cells, on two ranks, killed in the middle and gone on with; its page in a real browser."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heartlm.extensions.cluster.cells import LocalCells
from heartlm.extensions.scaling.cell import Measurement, load_measurements
from heartlm.extensions.scaling.study import ScalingStudyConfig

pytestmark = pytest.mark.slow

CORES = len(os.sched_getaffinity(0))
TOO_MANY = 1 << CORES.bit_length()


def study_file(folder: Path, corpus: Path) -> Path:
    path = folder / "study.yaml"
    path.write_text(
        f"databases: {{tiny: {corpus}}}\n"
        f"out: {folder / 'study'}\n"
        "stages: [pretrain, finetune]\nwindows: [32]\n"
        f"ranks: [1, 2, {TOO_MANY}]\n"
        "repeats: 1\ndepth: 1\nbatch_tokens: 256\n"
    )
    return path


def start(study: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "heartlm", "scale", "run", str(study)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def descendants(number: int) -> set[int]:
    """Processes that `number` began, and those that they began."""
    children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    return {int(child) for child in children}.union(*(descendants(int(child)) for child in children))


@pytest.fixture(scope="module")
def study(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was killed when a few of its measurements were there, and then gone on with."""
    if CORES < 2:
        pytest.skip("two ranks want two cores, this process has one")
    folder = tmp_path_factory.mktemp("scaling")
    path = study_file(folder, tiny_corpus)
    process = start(path)
    while len(list((folder / "study" / "measurements").glob("*.json"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    begun = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while any(Path(f"/proc/{number}/exe").exists() for number in begun):
        time.sleep(0.02)
    before = {each: each.stat().st_mtime_ns for each in (folder / "study" / "measurements").glob("*.json")}
    process = start(path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert f"{6 - len(before)} measured" in out and f"{len(before)} of 6 measurements are there already" in err
    assert f"skipped finetune-tiny-w32-r{TOO_MANY}-n1-c1" in err
    assert f"{TOO_MANY} ranks of 1 CPUs on a node of {CORES}" in err
    assert all(path.stat().st_mtime_ns == changed for path, changed in before.items())
    return folder / "study"


def test_every_cell_is_there_and_passed_its_check(study: Path) -> None:
    every = load_measurements(study)
    assert [each.failed for each in every] == [None] * 6
    assert {(each.cell.ranks, each.cell.copies) for each in every} == {(1, 1), (1, 2), (2, 1)}
    assert {each.cell.stage for each in every} == {"pretrain", "finetune"}
    assert all(each.part_s["data"] > 0 for each in every), (
        "batches of all steps are prepared before the first, and count"
    )
    assert not list((study / "work").iterdir()), "what is kept leaves nothing else"


def test_the_parts_of_real_steps_add_up(study: Path) -> None:
    for each in load_measurements(study):
        assert sum(each.part_s.values()) == pytest.approx(each.mean_step_s, rel=1e-6)
        assert all(value >= 0 for value in each.part_s.values())
        assert each.part_s["compute"] > 0 and each.part_s["optimizer"] > 0
        assert len(each.step_s) == ScalingStudyConfig.steps
        assert len(each.losses) == ScalingStudyConfig().num_warm_up + ScalingStudyConfig.steps
        assert each.training_s < each.wall_s


def test_two_ranks_tell_of_their_communication_and_one_of_none(study: Path) -> None:
    together, alone = list[Measurement](), list[Measurement]()
    for each in load_measurements(study):
        (together if each.cell.ranks == 2 else alone).append(each)
    assert all(each.part_s["exposed_communication"] > 0 for each in together)
    assert all(each.part_s["straggler"] == 0 for each in alone)


def test_a_measurement_carries_its_environment(study: Path) -> None:
    environment = load_measurements(study)[0].environment
    assert {"torch", "heartlm", "cpu", "git_revision", "num_threads"} <= environment.keys()
    assert environment["probe_before"] > 0 and environment["probe_after"] > 0


def test_a_training_that_fails_says_why(tmp_path: Path) -> None:
    fields = {"corpus": tmp_path / "nowhere", "out": tmp_path / "run", "device": "cpu"}
    reason, wall_s = LocalCells("cpu", 60.0).run("pretrain", [fields], 2, 1, 1, tmp_path / "logs")
    assert reason is not None and wall_s > 0
    assert reason.startswith(f"the training ended with status 2: {tmp_path / 'nowhere'}")


def test_a_training_that_hangs_is_ended(tiny_corpus: Path, tmp_path: Path) -> None:
    fields = {"corpus": tiny_corpus, "out": tmp_path / "run", "device": "cpu", "steps": 10**6, "threads": 1}
    reason, _ = LocalCells("cpu", 2.0).run("pretrain", [fields], 1, 1, 1, tmp_path / "logs")
    assert reason is not None and reason.startswith("the training did not end within 2 s: ")


def test_the_study_has_a_report(study: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "heartlm", "scale", "report", str(study)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    written = {Path(line.removeprefix("wrote ")).name for line in done.stdout.splitlines()}
    assert {"report.html", "table.csv", "figure-4-time-speedup.svg"} <= written
    with (study / "report" / "table.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 4
    assert {row["ranks"] for row in rows if row["karp_flatt"]} == {"2"}
    assert len(json.loads((study / "skipped.json").read_text())) == 2
