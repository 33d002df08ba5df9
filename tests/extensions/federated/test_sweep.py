"""A sweep: every cell once, a tidy table; what failed is said."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heartlm.cli.main import main
from heartlm.errors import HeartlmError
from heartlm.extensions.federated.page import sweep_table
from heartlm.extensions.federated.sweep import run_sweep
from heartlm.extensions.federated.sweep_file import SweepCell, SweepConfig, cells_of

pytestmark = pytest.mark.slow

STUDY_COLUMNS = [
    "config",
    "world_size",
    "rank",
    "round_idx",
    "batch_size",
    "local_steps",
    "local_train_ms",
    "comm_ms",
    "samples_per_s",
    "avg_loss",
]


def sweep_of(database: Path, out: Path, **changed: Any) -> SweepConfig:
    small: dict[str, Any] = {"batch_sizes": [16], "local_steps": [3], "rounds": 2, "repeats": 1, "world_sizes": [1, 2]}
    return SweepConfig(out=out, study={"model": "tiny_ecg", "databases": [str(database)]}, **{**small, **changed})


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def swept(tiny_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two studies, one of them on two ranks, as the command runs it."""
    folder = tmp_path_factory.mktemp("sweep")
    settings = folder / "sweep.yaml"
    settings.write_text(
        f"study: {{model: tiny_ecg, databases: ['{tiny_database}']}}\nbatch_sizes: [16]\nlocal_steps: [3]\n"
        "rounds: 2\nrepeats: 1\nworld_sizes: [1, 2]\n"
    )
    assert main(["federate", "sweep", str(settings), "--out", str(folder / "sweep")]) == 0
    return folder / "sweep"


def test_the_table_has_the_columns_of_the_study_and_a_line_for_every_rank_and_round(swept: Path):
    lines = table(swept)
    assert list(lines[0])[: len(STUDY_COLUMNS)] == STUDY_COLUMNS
    places = [(line["world_size"], line["rank"], line["round_idx"]) for line in lines]
    assert sorted(places) == sorted(
        [("1", "0", round_idx) for round_idx in "01"] + [("2", rank, round_idx) for rank in "01" for round_idx in "01"]
    )
    for line in lines:
        assert line["config"] == "G0"
        assert float(line["local_train_ms"]) > 0
        assert float(line["comm_ms"]) > 0
        assert float(line["avg_loss"]) > 0
        busy_s = (float(line["local_train_ms"]) + float(line["comm_ms"])) / 1000
        assert float(line["samples_per_s"]) == pytest.approx(16 * 3 / busy_s, rel=1e-4)


def test_a_second_call_runs_nothing(swept: Path, tiny_database: Path, capsys: pytest.CaptureFixture[str]):
    before = {path: path.stat().st_mtime_ns for path in swept.glob("studies/*/metrics.jsonl")}
    rows, failed = run_sweep(sweep_of(tiny_database, swept))
    assert len(rows) == len(table(swept))
    assert (capsys.readouterr().err, failed) == ("", {})
    assert before == {path: path.stat().st_mtime_ns for path in swept.glob("studies/*/metrics.jsonl")}


def test_the_command_prints_a_row_for_each_number_of_ranks(swept: Path, capsys: pytest.CaptureFixture[str]):
    settings = str(swept.parent / "sweep.yaml")
    assert main(["federate", "sweep", settings, "--out", str(swept)]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert "samples/s" in heading
    assert [row.split()[:5] for row in rows] == [["G0,", "16", "×", "3", ranks] for ranks in "12"]


def test_a_sweep_with_other_settings_wants_another_folder(swept: Path, tiny_database: Path):
    with pytest.raises(HeartlmError, match=r"rounds: 3 found, but .* was started with 2"):
        run_sweep(sweep_of(tiny_database, swept, rounds=3))


def test_a_study_that_fails_is_told_of_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sweep = sweep_of(tmp_path / "nowhere", tmp_path / "sweep", world_sizes=[1])
    rows, failed = run_sweep(sweep)
    assert rows == []
    assert list(failed) == ["G0-ranks-1-batch-16-steps-3-0"]
    assert "nowhere" in failed["G0-ranks-1-batch-16-steps-3-0"]
    assert "FAILED" in capsys.readouterr().err


def test_the_grid_has_every_cell_once_and_repeats_last():
    sweep = SweepConfig(configs=["G0", "G1"], world_sizes=[1, 2], batch_sizes=[64, 128], local_steps=[5], repeats=3)
    cells = cells_of(sweep)
    assert len(set(cells)) == len(cells) == 2 * 2 * 2 * 3
    assert [cell.repeat for cell in cells] == sorted(cell.repeat for cell in cells)
    assert len({cell.name for cell in cells}) == len(cells)


def test_amp_is_bf16():
    sweep = SweepConfig(study={"model": "tiny_ecg", "databases": ["x"]})
    assert SweepCell(0, "G1", 64, 5, 1).study(sweep, Path("y")).precision == "bf16"


def test_a_rank_has_its_own_clients():
    sweep = SweepConfig(study={"model": "tiny_ecg", "databases": ["x"], "partition": "patient"}, clients_per_rank=2)
    study = SweepCell(0, "G0", 64, 5, 4).study(sweep, Path("y"))
    assert (study.partition, study.clients) == ("iid", 8)
    assert SweepCell(0, "G0", 64, 5, 4).study(replace(sweep, clients_per_rank=0), Path("y")).partition == "patient"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"world_sizes": []}, r"world_sizes: \[\] found"),
        ({"batch_sizes": [64, 64]}, r"batch_sizes: \[64, 64\] found, different"),
        ({"local_steps": [0]}, r"local_steps: \[0\] found, at least 1"),
        ({"repeats": 0}, "repeats: 0 found"),
        ({"study": {"rounds": 7}}, "study: rounds found, which the sweep sets"),
        ({"study": {}}, "study: corpus: nothing found"),
        ({"study": {"model": "tiny_ecg"}}, "study: databases: nothing found"),
        ({"study": {"database": ["x"]}}, "study: database: found, but there is no such field"),
        ({"out": None}, "out: nothing found"),
    ],
)
def test_impossible_settings_are_refused(changed: dict[str, Any], words: str):
    with pytest.raises(HeartlmError, match=f"^{words}"):
        replace(SweepConfig(out=Path("x"), study={"model": "tiny_ecg", "databases": ["x"]}), **changed).check()


def line(ranks: int, rank: int, round_idx: int, repeat: int, local: float, comm: float, rate: float) -> dict[str, str]:
    names = ("world_size", "rank", "round_idx", "repeat", "local_train_ms", "comm_ms", "samples_per_s")
    values = (ranks, rank, round_idx, repeat, local, comm, rate)
    return {"config": "G0", "batch_size": "8", "local_steps": "5", **dict(zip(names, map(str, values), strict=True))}


def test_the_table_leaves_the_first_round_out_and_adds_up_ranks():
    lines = [line(2, rank, 0, 0, 999.0, 999.0, 1.0) for rank in (0, 1)]
    lines += [line(2, rank, idx, 0, 30.0, 10.0, 100.0 + rank) for rank in (0, 1) for idx in (1, 2)]
    (heading, row) = sweep_table(lines)
    assert len(heading) == len(row)
    assert row == ["G0, 8 × 5", "2", "1", "201", "30.0", "10.0", "25.0"]
