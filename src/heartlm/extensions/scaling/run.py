"""Run a study: measure, check and store each cell; stored measurements are not repeated.

An interrupted study continues where it stopped. The grid may grow: measurements of other cells are ignored.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.cells import Cells, continued
from heartlm.extensions.scaling.cell import Measurement, StudyCell
from heartlm.extensions.scaling.collect import checked, measured, read_ranks
from heartlm.extensions.scaling.grid import grid_of
from heartlm.extensions.scaling.probe import probe
from heartlm.extensions.scaling.study import ScalingStudyConfig, about_study, write_databases
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.atomic import write_json
from heartlm.system.progress import hours_minutes_seconds, say


def run_study(config: ScalingStudyConfig, cells: Cells) -> list[Measurement]:
    """Measure every cell of a study that is not measured yet; return the new measurements, with failed ones.

    Raises:
        HeartlmError: a setting is invalid, the folder has another study, or no cell can be measured here.
    """
    config.check()
    folder = config.folder()
    grid = grid_of(config, cells.resources)
    for cell, reason in grid.skipped:
        say(f"skipped {cell.name}: {reason}")
    if not grid.groups:
        raise HeartlmError(f"{folder}: no cell of the study fits here: {grid.skipped[0][1]}")
    with continued(folder / "study.json", about_study(config)) as before:
        write_databases(config, before)
        write_json(folder / "skipped.json", [[cell.name, reason] for cell, reason in grid.skipped])
        kept = map(Measurement.load, sorted((folder / "measurements").glob("*.json")))
        good = {(each.cell, each.repeat): each for each in kept if each.failed is None}
        all_pairs = list(grid.measurements(config.repeats))
        missing = [pair for pair in all_pairs if pair not in good]
        say(f"{len(all_pairs) - len(missing)} of {len(all_pairs)} measurements are there already")
        measurements = list[Measurement]()
        for index, (cell, repeat) in enumerate(missing, start=1):
            measurement = _measure(config, cells, cell, repeat)
            if measurement.failed is None:
                # Losses are compared with those of one rank alone; the first such training is its own reference.
                one_rank = [each for each in (*good.values(), measurement) if each.cell.ranks == each.cell.copies == 1]
                reference = next((each.losses for each in one_rank if each.cell.work == cell.work), [])
                tolerance = config.tolerance or (1e-4 if cell.precision == "fp32" else 2e-2)
                measurement = checked(measurement, reference, tolerance)
            measurement.save(folder)
            measurements.append(measurement)
            head = f"{index:>{len(str(len(missing)))}}/{len(missing)}  {cell.name}  repeat {repeat + 1}"
            if measurement.failed is not None:
                say(f"{head}  FAILED: {measurement.failed}")
                continue
            good[cell, repeat] = measurement
            left_s = statistics.fmean(each.wall_s for each in good.values()) * (len(missing) - index)
            speed = f"{1000 * measurement.mean_step_s:.1f} ms a step  {measurement.tokens_per_s / 1000:.1f} k tokens/s"
            say(f"{head}  {speed}  left {hours_minutes_seconds(round(left_s))}")
    return measurements


def _measure(config: ScalingStudyConfig, cells: Cells, cell: StudyCell, repeat: int) -> Measurement:
    """Train a cell and return its measurement, which is marked as failed if the training failed."""
    work = config.folder() / "work" / f"{cell.name}.{repeat}"
    shutil.rmtree(work, ignore_errors=True)
    runs = [work / f"run-{copy}" for copy in range(cell.copies)]
    foundation = _foundation(config, cells, cell)
    fields = [training_fields(config, cell, out, foundation) for out in runs]
    cpus = [core.cpus[0] for core in cells.cores[: cell.num_cores]]  # none where a job runs: its speed is unknown
    environment: dict[str, Any] = {"probe_before": probe(cpus) if cpus else None}
    reason, wall_s = cells.run(cell.stage, fields, cell.ranks, cell.nodes, cell.cpus_per_task, work)
    environment["probe_after"] = probe(cpus) if cpus else None
    if reason is not None:
        return Measurement(cell, repeat, wall_s=wall_s, environment=environment, failed=reason)
    environment |= RunFolder(runs[0]).environment
    trainings = [read_ranks(run, cell.ranks) for run in runs]
    measurement = measured(cell, repeat, trainings, warm_up=config.num_warm_up, wall_s=wall_s, environment=environment)
    shutil.rmtree(work)
    return measurement


def _foundation(config: ScalingStudyConfig, cells: Cells, cell: StudyCell) -> Path:
    """Return the pretrained run for fine-tunings of a database; only its size matters, not its weights."""
    path = config.folder() / "foundations" / cell.database
    if cell.stage == "pretrain" or (path / "models" / "best").exists():
        return path
    making = path.with_name(f"{path.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    one = StudyCell("pretrain", cell.database, min(config.windows), global_batch=1)
    fields = training_fields(config, one, making, path) | {"steps": 1, "log_every": 1}
    fields |= {"measure": False, "compile": False}
    reason, _ = cells.run("pretrain", [fields], 1, 1, 1, path.with_name(f"{path.name}.logs"))
    if reason is not None:
        raise HeartlmError(f"{making}: a model to fine-tune cannot be made: {reason}")
    making.rename(path)
    return path


def training_fields(config: ScalingStudyConfig, cell: StudyCell, out: Path, foundation: Path) -> dict[str, Any]:
    """Return the settings of a training of `cell`, by field of its command."""
    steps = config.num_warm_up + config.steps
    fields: dict[str, Any] = {
        "corpus": Path(config.databases[cell.database]),
        "out": out,
        "window": cell.window,
        "batch_size": cell.global_batch,
        "accumulation": cell.accumulation,
        "steps": steps,
        "log_every": steps,
        "seed": config.seed,
        "device": config.device,
        "precision": cell.precision,
        "threads": cell.cpus_per_task,
        "bucket_cap_mb": cell.bucket_cap_mb,
        "parallel": cell.parallel,
        "compile": config.compiles,
        "measure": True,
    }
    if cell.stage == "finetune":
        return fields | {"run": foundation, "task": config.task}
    return fields | {"depth": config.depth, "width": config.width}
