"""A study: its grid, what its measurements are made of, and what they must pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.cells import Resources
from heartlm.extensions.scaling.cell import PARTS, Measurement, StudyCell, load_measurements
from heartlm.extensions.scaling.collect import checked, measured
from heartlm.extensions.scaling.grid import grid_of
from heartlm.extensions.scaling.run import run_study, training_fields
from heartlm.extensions.scaling.study import ScalingStudyConfig
from heartlm.extensions.scaling.table import table_of
from heartlm.storage.atomic import write_json
from heartlm.training.feed import TOGETHER

CELL = StudyCell("pretrain", "mitdb", 128, global_batch=8)


# --- the grid ---------------------------------------------------------------------------------------------------------


def config_of(**settings: Any) -> ScalingStudyConfig:
    return ScalingStudyConfig(databases={"mitdb": "corpora/mitdb"}, **settings)


def test_the_grid_of_the_issue_fits_two_cores_but_for_two_ranks_of_two() -> None:
    widths = [128, 256, 384, 512, 640, 768, 896, 1024]
    config = config_of(stages=["pretrain", "finetune"], windows=widths, ranks=[1, 2], cpus_per_task=[1, 2])
    grid = grid_of(config, Resources(2))
    assert len(grid.groups) == 16
    layouts = [(cell.ranks, cell.cpus_per_task, cell.copies) for cell in grid.groups[0]]
    assert layouts == [(1, 1, 1), (2, 1, 1), (1, 1, 2), (1, 2, 1)]
    assert [reason for _, reason in grid.skipped] == ["2 ranks of 2 CPUs on a node of 2"] * 16
    assert len(list(grid.measurements(3))) == 192
    assert all(cell.global_batch % 2 == 0 for group in grid.groups for cell in group)


def test_repeats_of_a_cell_lie_far_apart_and_what_is_compared_close_together() -> None:
    grid = grid_of(config_of(windows=[128, 256], ranks=[1, 2], ceiling=False), Resources(2))
    order = [(cell.window, cell.ranks, repeat) for cell, repeat in grid.measurements(2)]
    assert order == [(w, r, repeat) for repeat in (0, 1) for w in (128, 256) for r in (1, 2)]


def test_weak_scaling_is_checked_against_one_rank_with_the_whole_batch() -> None:
    grid = grid_of(config_of(scalings=["weak"], ranks=[1, 2], batch_tokens=1024, ceiling=False), Resources(2))
    ((one, two),) = grid.groups
    assert (one.global_batch, two.global_batch) == (8, 16)
    (reference,) = grid.references
    assert (reference.ranks, reference.global_batch, reference.accumulation) == (1, 16, 2)
    assert next(iter(grid.measurements(3))) == (reference, 0)
    assert two.base == one


def test_no_copies_are_measured_as_jobs() -> None:
    """`SlurmCells` runs one training at a time."""
    config = config_of(ranks=[1, 2], prediction=True, slurm="generic")
    assert {cell.copies for group in grid_of(config, Resources(8)).groups for cell in group} == {1}


def test_buckets_mean_nothing_to_one_rank() -> None:
    grid = grid_of(config_of(ranks=[1, 2], buckets_mb=[1.0, 4.0], ceiling=False), Resources(2))
    assert [(cell.ranks, cell.bucket_cap_mb) for cell in grid.groups[0]] == [(1, 25.0), (2, 1.0), (2, 4.0)]


def test_nodes_and_gpus_that_are_not_there_are_skipped_with_the_reason() -> None:
    config = config_of(ranks=[1, 2, 3, 4], nodes=[1, 2], device="cuda", ceiling=False)
    skipped = {(cell.ranks, cell.nodes): reason for cell, reason in grid_of(config, Resources(8, 2)).skipped}
    assert skipped[3, 2] == "3 ranks do not divide among 2 nodes"
    assert skipped[2, 2] == "2 nodes asked for, 1 here"
    assert skipped[4, 1] == "4 ranks on a node of 2 GPUs"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"windows": []}, "windows"),
        ({"ranks": [0]}, "ranks"),
        ({"warm_up": 1}, "warm_up"),
        ({"warm_up": 8, "device": "cuda"}, "warm_up"),
        ({"buckets_mb": [0.0]}, "buckets_mb"),
        ({"out": None}, "out"),
    ],
)
def test_an_impossible_setting_is_named(settings: dict[str, Any], field: str) -> None:
    config = config_of(**settings)
    with pytest.raises(HeartlmError, match=f"^{field}: "):
        config.check()
        config.folder()


@pytest.mark.parametrize(
    ("settings", "compiles", "warm_up"),
    [
        ({}, False, 3),
        ({"compile": True, "warm_up": 5}, True, 5),
        ({"device": "cuda"}, True, 16),
        ({"device": "cuda", "compile": False}, False, 16),
    ],
)
def test_the_model_is_compiled_by_default_where_training_does(
    settings: dict[str, Any], compiles: bool, warm_up: int, tmp_path: Path
) -> None:
    config = config_of(**settings)
    config.check()
    fields = training_fields(config, CELL, tmp_path / "out", tmp_path / "foundation")
    assert fields["compile"] is compiles and fields["steps"] == warm_up + config.steps


# --- a measurement ----------------------------------------------------------------------------------------------------


def kept(steps: Sequence[dict[str, Any]], rank: int = 0, num_ranks: int = 1) -> dict[str, Any]:
    """What a rank keeps: steps of seconds by part, waiting included."""
    about = {"rank": rank, "world_size": num_ranks, "num_parameters": 10}
    memory = {"peak_memory_bytes": 100 + rank, "peak_device_memory_bytes": None, "energy_j": None}
    return {**about, **memory, "steps": steps}


def step(compute: float, wait: float, data: float = 0.0, optimizer: float = 0.0, other: float = 0.0) -> dict[str, Any]:
    seconds = {"data_s": data, "forward_backward_s": compute, "communication_s": wait, "optimizer_s": optimizer}
    whole = {"step_s": data + compute + wait + optimizer + other, "other_s": other}
    return {"num_tokens": 100, "loss": 2.0, **seconds, **whole}


def of(*trainings: Sequence[dict[str, Any]], cell: StudyCell = CELL, warm_up: int = 1) -> Measurement:
    return measured(cell, 0, trainings, warm_up=warm_up, wall_s=9.0, environment={})


def test_waiting_for_a_slower_rank_is_the_stragglers() -> None:
    """Rank 1 computes 3 s longer; of the 4 s that rank 0 waits, 3 are rank 1's, and 1 is communication."""
    fast = kept([step(1, 0), step(2, 4)], 0, 2)
    slow = kept([step(1, 0), step(5, 1)], 1, 2)
    found = of([fast, slow], cell=replace(CELL, ranks=2))
    assert (found.part_s["straggler"], found.part_s["exposed_communication"]) == (1.5, 1.0)
    assert found.part_s["compute"] == 3.5
    assert found.step_s == [6.0]
    assert found.tokens_per_s == pytest.approx(100 / 6)
    assert found.peak_memory_bytes == 101


def test_a_slow_optimiser_makes_others_wait_in_the_next_step() -> None:
    fast = kept([step(1, 0, optimizer=1), step(1, 2, optimizer=1), step(1, 0, optimizer=1)], 0, 2)
    slow = kept([step(1, 0, optimizer=3), step(1, 0, optimizer=1), step(1, 0, optimizer=1)], 1, 2)
    found = of([fast, slow], cell=replace(CELL, ranks=2))
    assert (found.part_s["straggler"], found.part_s["exposed_communication"]) == (0.5, 0.0)


seconds = st.floats(0, 5)


@given(st.lists(st.lists(st.tuples(*[seconds] * 5), min_size=4, max_size=4), min_size=1, max_size=3))
def test_the_parts_add_up_to_the_step(ranks: list[list[tuple[float, ...]]]) -> None:
    every = [kept([step(*parts) for parts in steps], number, len(ranks)) for number, steps in enumerate(ranks)]
    if not sum(each["step_s"] for each in every[0]["steps"][2:]):
        return
    found = of(every, cell=replace(CELL, ranks=len(ranks)), warm_up=2)
    assert sum(found.part_s.values()) == pytest.approx(found.mean_step_s, abs=1e-9)
    assert all(value >= 0 for value in found.part_s.values())
    assert set(found.part_s) == set(PARTS)


def test_copies_are_counted_together() -> None:
    one, other = kept([step(1, 0), step(2, 0)]), kept([step(1, 0), step(4, 0)])
    found = of([one], [other], cell=replace(CELL, copies=2))
    assert found.step_s == [3.0]
    assert found.tokens_per_s == pytest.approx(200 / 3)


def test_a_measurement_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = of([kept([step(1, 0), step(2, 0.5)])])
    found.save(tmp_path)
    assert load_measurements(tmp_path) == [found]


def test_what_is_no_measurement_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeartlmError, match="no measurements found"):
        load_measurements(tmp_path)
    path = of([kept([step(1, 0), step(2, 0.5)])]).path(tmp_path)
    path.parent.mkdir()
    path.write_text('{"schema": 3, "cell": {}, "repeat": 0}')
    with pytest.raises(HeartlmError, match=r"cell\.stage: nothing found, one of pretrain, finetune expected"):
        load_measurements(tmp_path)


# --- the check --------------------------------------------------------------------------------------------------------


def test_a_wrong_loss_is_caught() -> None:
    good = replace(of([kept([step(1, 0), step(2, 0)])]), losses=[3.0, 2.0, 1.0])
    assert checked(good, [3.0, 2.0001, 1.0], 1e-4).failed is None
    wrong = checked(good, [3.0, 2.001, 1.0], 1e-4)
    assert wrong.failed is not None
    assert wrong.failed.startswith("loss 2 in step 2, 2.001 expected as of one rank: 5.0e-04 apart")
    missing = checked(good, [3.0, 2.0], 1e-4)
    assert missing.failed == "3 losses found, 2 expected as of one rank"
    nothing = checked(replace(good, losses=[3.0, float("nan"), 1.0]), [3.0, 2.0, 1.0], 1e-4)
    assert nothing.failed is not None


def test_what_failed_counts_nowhere() -> None:
    base = of([kept([step(1, 0), step(2, 0)])])
    two = of([kept([step(1, 0), step(1, 0)], rank, 2) for rank in (0, 1)], cell=replace(CELL, ranks=2))
    broken = replace(two, repeat=1, step_s=[1e-9], failed="another loss")
    table = table_of([base, replace(base, repeat=1), two, broken])
    (of_two,) = (row for row in table.rows if row.cell.ranks == 2)
    assert of_two.speedup is not None and of_two.speedup.value == pytest.approx(2.0)
    assert of_two.repeats == 1
    assert table.failed == [broken]


def test_the_ceiling_is_what_copies_reach_together() -> None:
    base, two = CELL, replace(CELL, ranks=2)
    times = {base: 10.0, two: 6.25, base.base: 10.0, two.ceiling: 12.5}
    every = [of(*[[kept([step(1, 0), step(time, 0)])]] * cell.copies, cell=cell) for cell, time in times.items()]
    (row,) = (row for row in table_of(every).rows if row.cell == two)
    assert row.speedup is not None and row.ceiling is not None and row.efficiency_of_ceiling is not None
    assert row.speedup.value == pytest.approx(1.6)
    assert row.ceiling.value == pytest.approx(1.6)
    assert row.efficiency_of_ceiling.value == pytest.approx(1.0)
    assert row.overhead_s is not None and row.overhead_s.value == pytest.approx(1.25)


def test_a_cell_without_a_repeat_in_common_with_its_copies_has_no_share_of_the_ceiling() -> None:
    base, two = CELL, replace(CELL, ranks=2)
    alone, pair, copies = (
        of(*[[kept([step(1, 0), step(10, 0)])]] * cell.copies, cell=cell) for cell in (base, two, two.ceiling)
    )
    every = [alone, replace(alone, repeat=1), replace(pair, repeat=1), copies]  # repeat 0 of the pair failed
    (row,) = (row for row in table_of(every).rows if row.cell == two)
    assert row.ceiling is not None and row.efficiency_of_ceiling is None


def test_weak_scaling_compares_the_same_work_of_a_rank() -> None:
    one = replace(CELL, scaling="weak")
    two = replace(one, ranks=2, global_batch=16)
    every = [of([kept([step(1, 0), step(time, 0)])], cell=cell) for cell, time in ((one, 10.0), (two, 12.5))]
    (row,) = (row for row in table_of(every).rows if row.cell == two)
    assert row.speedup is not None and row.efficiency is not None and row.overhead_s is not None
    assert (row.speedup.value, row.efficiency.value, row.overhead_s.value) == pytest.approx((1.6, 0.8, 2.5))


def test_cells_for_checks_and_predictions_are_no_rows() -> None:
    two, prediction = replace(CELL, ranks=2), replace(CELL, global_batch=4)
    weak = replace(CELL, scaling="weak")
    wide, reference = replace(weak, ranks=2, global_batch=16), replace(weak, global_batch=16, accumulation=2)
    cells = [CELL, two, prediction, weak, wide, reference]
    rows = table_of(of([kept([step(1, 0), step(2, 0)])], cell=cell) for cell in cells).rows
    assert {row.cell for row in rows} == {CELL, two, weak, wide}


# --- a run ------------------------------------------------------------------------------------------------------------


class Wrong:
    """Trains nothing; two ranks come to another loss than one, in one step."""

    resources, cores = Resources(2), ()

    def run(self, stage: str, fields: Any, ranks: int, *_: Any) -> tuple[str | None, float]:
        steps = [step(1, 0) for _ in range(11)]
        if ranks == 2:
            steps[5]["loss"] = 2.001
        for copy in fields:
            write_json(copy["out"] / "environment.json", {})
            for rank in range(ranks):
                write_json(copy["out"] / "measured" / f"rank-{rank}.json", kept(steps, rank, ranks))
        return None, 90_000.0


def test_ranks_that_learn_something_else_are_not_compared(
    tmp_path: Path, tiny_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ScalingStudyConfig(
        databases={"tiny": str(tiny_corpus)}, ranks=[1, 2], repeats=1, out=tmp_path, windows=[32]
    )
    (failed,) = (each for each in run_study(config, Wrong()) if each.failed)
    assert "left 50:00:00" in capsys.readouterr().err, "two trainings of 25 hours"
    assert failed.cell.ranks == 2
    assert failed.failed == "loss 2.001 in step 6, 2 expected as of one rank: 5.0e-04 apart, 0.0001 allowed"
    table = table_of(load_measurements(tmp_path))
    assert [row.cell.ranks for row in table.rows] == [1]
    assert table.failed == [failed]
    tolerant = replace(config, tolerance=1e-3)
    assert [each.failed for each in run_study(tolerant, Wrong())] == [None]


class Unable:
    """Trains nothing, and says so."""

    def __init__(self) -> None:
        self.resources, self.cores, self.num_trained = Resources(2), (), 0

    def run(self, *_: Any) -> tuple[str | None, float]:
        self.num_trained += 1
        return "the training was not even started", 0.0


def test_a_training_that_fails_is_kept_as_failed_and_the_study_goes_on(tmp_path: Path, tiny_corpus: Path) -> None:
    config = ScalingStudyConfig(
        databases={"tiny": str(tiny_corpus)}, ranks=[1, 2], repeats=1, out=tmp_path, windows=[32]
    )
    trainer = Unable()
    made = run_study(config, trainer)
    assert [each.failed for each in made] == ["the training was not even started"] * 3
    assert trainer.num_trained == len(load_measurements(tmp_path)) == 3
    assert len(run_study(config, Unable())) == 3, "failed ones are tried again"


def test_a_study_does_not_go_on_with_other_settings(tmp_path: Path, tiny_corpus: Path) -> None:
    config = ScalingStudyConfig(databases={"tiny": str(tiny_corpus)}, repeats=1, out=tmp_path, windows=[32])
    run_study(config, Unable())
    with pytest.raises(HeartlmError, match=f"^depth: 2 found, but {tmp_path} was started with 4: choose another --out"):
        run_study(replace(config, depth=2), Unable())


def test_two_studies_do_not_share_a_folder(tmp_path: Path, tiny_corpus: Path) -> None:
    config = ScalingStudyConfig(databases={"tiny": str(tiny_corpus)}, ranks=[1], repeats=1, out=tmp_path, windows=[32])

    class Impatient(Unable):
        """Starts the same study again while it trains."""

        def run(self, *cell: Any) -> tuple[str | None, float]:
            with pytest.raises(HeartlmError, match="another study is being measured there"):
                run_study(config, Unable())
            return super().run(*cell)

    trainer = Impatient()
    run_study(config, trainer)
    assert trainer.num_trained == 1


def test_the_data_of_all_steps_is_prepared_together() -> None:
    """So that it counts in each step alike: `tests/test_training_measured.py`."""
    assert ScalingStudyConfig().num_warm_up + ScalingStudyConfig.steps <= TOGETHER
