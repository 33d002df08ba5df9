"""Run a study: measure, check and store each cell; stored measurements are not repeated.

An interrupted study continues where it stopped. The grid may grow: measurements of other cells are ignored.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heartlm.errors import HeartlmError
from heartlm.files import sole_holder, write_json
from heartlm.progress import say
from heartlm.runs.run_folder import RunFolder
from heartlm.scaling.cell import Measurement, StudyCell
from heartlm.scaling.collect import checked, failure, measured, read_ranks
from heartlm.scaling.grid import Grid, grid_of
from heartlm.scaling.probe import UNUSUAL, unusual, usual_probe
from heartlm.scaling.study import ScalingStudyConfig, describe

if TYPE_CHECKING:
    from heartlm.scaling.local import LocalTrainer
    from heartlm.scaling.slurm import SlurmTrainer

    CellTrainer = LocalTrainer | SlurmTrainer


@dataclass
class ScalingOutcome:
    """Result of a run of a study.

    Attributes:
        num_measured: number of measurements of this call.
        num_before: number of measurements that existed before.
        num_left: number of measurements not made because of the cost limit.
        failed: measurements that must not be used.
        skipped: cells that do not fit, with the reason.
        stopped: limit that ended the study.
    """

    num_measured: int = 0
    num_before: int = 0
    num_left: int = 0
    failed: list[Measurement] = field(default_factory=list)
    skipped: list[tuple[StudyCell, str]] = field(default_factory=list)
    stopped: str | None = None


def run_study(config: ScalingStudyConfig, trainer: CellTrainer) -> ScalingOutcome:
    """Measure every cell of a study that is not measured yet.

    Raises:
        HeartlmError: a setting is invalid, the folder has another study, or no cell can be measured here.
    """
    config.check()
    folder = config.folder()
    grid = grid_of(config, trainer.place)
    for cell, reason in grid.skipped:
        say(f"skipped {cell.name}: {reason}")
    if not grid.groups:
        raise HeartlmError(f"{folder}: no cell of the study fits here: {grid.skipped[0][1]}")
    with sole_holder(folder / ".lock", f"{folder}: another study is being measured there: wait for its end"):
        describe(config, folder)
        write_json(folder / "skipped.json", [[cell.name, reason] for cell, reason in grid.skipped])
        return _Conductor(config, folder, grid, trainer).run()


def core_hours_of(cell: StudyCell, wall_s: float) -> float:
    """Return the cost in core-hours of a training of `cell` that takes `wall_s`."""
    return cell.num_cores * wall_s / 3600


def expected_wall_s(cell: StudyCell, done: Sequence[Measurement]) -> float:
    """Return the expected duration of a training of `cell` from finished ones, or 0 without any.

    The estimate is from the same cell; otherwise from the longest training of the same stage and window, usually with
    fewer ranks; otherwise from the longest of all.
    """
    alike: tuple[list[Measurement], ...] = (
        [each for each in done if each.cell == cell],
        [each for each in done if (each.cell.stage, each.cell.window) == (cell.stage, cell.window)],
        list(done),
    )
    return next((max(each.wall_s for each in some) for some in alike if some), 0.0)


class _Conductor:
    """State of a running study: finished measurements and cost so far."""

    def __init__(self, config: ScalingStudyConfig, folder: Path, grid: Grid, trainer: CellTrainer) -> None:
        self.config, self.folder, self.grid, self.trainer = config, folder, grid, trainer
        kept = [Measurement.load(path) for path in sorted((folder / "measurements").glob("*.json"))]
        self.core_hours = sum(core_hours_of(each.cell, each.wall_s) for each in kept)
        self.done = [each for each in kept if each.failed is None]
        self.outcome = ScalingOutcome(skipped=grid.skipped)

    def run(self) -> ScalingOutcome:
        every = list(self.grid.measurements(self.config.repeats))
        good = {(each.cell, each.repeat) for each in self.done}
        wanted = [pair for pair in every if pair not in good]
        self.outcome.num_before = len(every) - len(wanted)
        for index, (cell, repeat) in enumerate(wanted):
            expected = self.core_hours + core_hours_of(cell, expected_wall_s(cell, self.done))
            if (most := self.config.max_core_hours) is not None and expected > most:
                found = f"max_core_hours: {expected:.3g} expected with the next measurement"
                self.outcome.stopped, self.outcome.num_left = f"{found}, {most:g} allowed", len(wanted) - index
                break
            measurement = self._measured(cell, repeat)
            measurement.save(self.folder)
            self.outcome.num_measured += 1
            head = f"{index + 1:>{len(str(len(wanted)))}}/{len(wanted)}  {cell.name}  repeat {repeat + 1}"
            if measurement.failed is not None:
                self.outcome.failed.append(measurement)
                say(f"{head}  FAILED: {measurement.failed}")
                continue
            self.done.append(measurement)
            left_s = sum(expected_wall_s(cell, self.done) for cell, _ in wanted[index + 1 :])
            left, rate = time.strftime("%H:%M:%S", time.gmtime(left_s)), measurement.tokens_per_s / 1000
            say(f"{head}  {1000 * measurement.mean_step_s:.1f} ms a step  {rate:.1f} k tokens/s  left {left}")
        return self.outcome

    def _measured(self, cell: StudyCell, repeat: int) -> Measurement:
        """Measure a cell; repeat it if the machine's speed was unusual, and keep the most usual measurement."""
        usual = usual_probe(self.done)
        tried = list[Measurement]()
        for _ in range(1 + self.config.again):
            tried.append(self._measure(cell, repeat))
            self.core_hours += core_hours_of(cell, tried[-1].wall_s)
            if tried[-1].failed is not None or unusual(tried[-1], usual) <= UNUSUAL:
                return tried[-1]
        return min(tried, key=lambda each: unusual(each, usual))

    def _measure(self, cell: StudyCell, repeat: int) -> Measurement:
        work = self.folder / "work" / f"{cell.name}.{repeat}"
        shutil.rmtree(work, ignore_errors=True)
        runs = [work / f"run-{copy}" for copy in range(cell.copies)]
        foundation = self._foundation(cell)
        fields = [training_fields(self.config, cell, out, foundation) for out in runs]
        environment: dict[str, Any] = {"probe_before": self.trainer.probe(cell)}
        reason, wall_s = self.trainer.train(cell, fields, work)
        environment["probe_after"] = self.trainer.probe(cell)
        if reason is not None:
            return failure(cell, repeat, reason, wall_s, environment)
        environment |= RunFolder(runs[0]).environment
        trainings = [read_ranks(run, cell.ranks) for run in runs]
        warm_up = self.config.warm_up
        found = measured(cell, repeat, trainings, warm_up=warm_up, wall_s=wall_s, environment=environment)
        shutil.rmtree(work)
        # Losses are compared with those of one rank alone; the first such training is its own reference.
        one = [each for each in (*self.done, found) if each.cell.ranks == each.cell.copies == 1]
        reference = next((each.losses for each in one if each.cell.work == cell.work), [])
        tolerance = self.config.tolerance or (1e-4 if cell.precision == "fp32" else 2e-2)
        return checked(found, reference, tolerance)

    def _foundation(self, cell: StudyCell) -> Path:
        """Return the pretrained run for fine-tunings of a database; only its size matters, not its weights."""
        path = self.folder / "foundations" / cell.database
        if cell.stage == "pretrain" or (path / "models" / "best").exists():
            return path
        making = path.with_name(f"{path.name}.making")
        shutil.rmtree(making, ignore_errors=True)
        one = StudyCell("pretrain", cell.database, min(self.config.windows), global_batch=1)
        fields = training_fields(self.config, one, making, path) | {"steps": 1, "log_every": 1, "measure": False}
        reason, _ = self.trainer.train(one, [fields], path.with_name(f"{path.name}.logs"))
        if reason is not None:
            raise HeartlmError(f"{making}: a model to fine-tune cannot be made: {reason}")
        making.rename(path)
        return path


def training_fields(config: ScalingStudyConfig, cell: StudyCell, out: Path, foundation: Path) -> dict[str, Any]:
    """Return the settings of a training of `cell`, by field of its command."""
    steps = config.warm_up + config.steps
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
        "compile": config.compile,
        "measure": True,
    }
    if cell.stage == "finetune":
        return fields | {"run": foundation, "task": config.task}
    return fields | {"depth": config.depth, "width": config.width}
