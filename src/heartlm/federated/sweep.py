"""Running a sweep: study after study, each kept when it is finished; what is finished is not run again.

sweep.json         settings that decide the numbers
table.csv          a line for every rank and round
skipped.json       cells that were not run, with the reason
studies/CELL/      the folder of each study
logs/CELL.yaml     its settings, and what it printed
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from heartlm.errors import HeartlmError
from heartlm.federated.sweep_cells import Cell, cells_of, why_not
from heartlm.federated.sweep_file import SweepConfig
from heartlm.federated.sweep_launch import Launcher
from heartlm.federated.sweep_table import rows_of, write_rows
from heartlm.files import atomic_file, read_json, write_json

DECIDES = ("study", "clients_per_rank", "rounds", "slurm", "nodes", "cpus_per_rank")
"""Settings that must not change while a sweep goes on: its numbers would not be comparable."""


@dataclass
class Outcome:
    """How a call of a sweep ended.

    Attributes:
        num_run: studies that this call finished.
        num_before: that were there already.
        failed: cells that failed, with the reason.
        skipped: cells that make no sense here, with the reason.
    """

    num_run: int = 0
    num_before: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def run_sweep(sweep: SweepConfig, launcher: Launcher, say: Callable[[str], object] | None = None) -> Outcome:
    """Run every study of a sweep that is not finished, and write the table.

    Raises:
        HeartlmError: an impossible setting, or a folder that holds another sweep.
    """
    sweep.check()
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    folder, outcome, rows = sweep.folder(), Outcome(), []
    _describe(sweep, folder)
    cells = list(cells_of(sweep))
    for number, cell in enumerate(cells):
        if (reason := why_not(cell, sweep)) is not None:
            outcome.skipped.append((cell.name, reason))
            continue
        if is_finished(folder, cell):
            outcome.num_before += 1
        elif (reason := _run(cell, sweep, folder, launcher)) is not None:
            outcome.failed.append((cell.name, reason))
            say(f"{number + 1}/{len(cells)}  {cell.name}  FAILED: {reason}")
            continue
        else:
            outcome.num_run += 1
            say(f"{number + 1}/{len(cells)}  {cell.name}")
        rows += rows_of(cell, study_folder(folder, cell))
        write_rows(rows, folder / "table.csv")
    write_json(folder / "skipped.json", [*outcome.skipped, *outcome.failed])
    return outcome


def study_folder(folder: Path, cell: Cell) -> Path:
    """Where a cell's study is."""
    return folder / "studies" / cell.name


def is_finished(folder: Path, cell: Cell) -> bool:
    """Whether a cell was run to its end."""
    path = study_folder(folder, cell) / "run.json"
    return path.exists() and bool(read_json(path, dict[str, Any]).get("finished"))


def _run(cell: Cell, sweep: SweepConfig, folder: Path, launcher: Launcher) -> str | None:
    """Run a cell from its beginning; why that failed, if it did."""
    shutil.rmtree(study_folder(folder, cell), ignore_errors=True)
    config = folder / "logs" / f"{cell.name}.yaml"
    settings = cell.study(sweep, folder / "studies").to_yaml()
    with atomic_file(config) as stream:
        yaml.safe_dump(settings, stream, sort_keys=False)
    reason = launcher.run(config, cell.world_size, config.with_suffix(".log"))
    return reason if reason or is_finished(folder, cell) else "it said that it went well, but wrote no scores"


def _describe(sweep: SweepConfig, folder: Path) -> None:
    """Note what decides the numbers, or see that a sweep that goes on has the same."""
    settings: dict[str, Any] = asdict(sweep)
    about = {name: settings[name] for name in DECIDES}
    path = folder / "sweep.json"
    before = read_json(path, dict[str, Any]) if path.exists() else about
    for name, value in about.items():
        if before.get(name) != value:
            raise HeartlmError(
                f"{name}: {value} found, but {folder} was begun with {before.get(name)}: choose another --out"
            )
    write_json(path, about)
