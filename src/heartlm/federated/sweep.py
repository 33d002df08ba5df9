"""Running a sweep: study after study, each kept when it is finished; finished studies are not run again.

sweep.json         settings that decide the numbers
table.csv          a line for every rank and round
skipped.json       cells that were not run, with the reason
studies/CELL/      the folder of each study
logs/CELL.yaml     its settings, and what it printed

The first ten columns of the table are those of the published study, and samples per second are, as there, those of the
rank's local steps over its local time and its communication. The others are what it left out: communication hidden
behind computing, bytes, the repeat, and the accuracy of the study's final model.
"""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from heartlm.errors import HeartlmError
from heartlm.federated.sweep_file import SweepCell, SweepConfig, cells_of
from heartlm.files import atomic_file, read_json, write_json
from heartlm.runs.run_folder import ResultFolder
from heartlm.scaling.study import started_with
from heartlm.scaling.table import write_csv

Row = dict[str, Any]

Launch = Callable[[Path, int, Path, SweepConfig], str | None]
"""Runs the study of a file on a number of ranks, its output to a log; returns the reason if it failed."""

DECIDES = ("study", "clients_per_rank", "rounds", "slurm", "nodes", "cpus_per_rank")
"""Settings that must not change during a sweep: its numbers would not be comparable."""


@dataclass
class SweepOutcome:
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


def run_sweep(sweep: SweepConfig, launch: Launch, say: Callable[[str], object] | None = None) -> SweepOutcome:
    """Run every study of a sweep that is not finished, and write the table.

    Raises:
        HeartlmError: an impossible setting, or a folder that holds another sweep.
    """
    sweep.check()
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    folder, outcome, rows, cells = sweep.folder(), SweepOutcome(), list[Row](), list(cells_of(sweep))
    write_json(
        folder / "sweep.json", started_with(folder / "sweep.json", {name: asdict(sweep)[name] for name in DECIDES})
    )
    for number, cell in enumerate(cells):
        if cell.config == "G1" and sweep.computes_on_cpu():
            outcome.skipped.append((cell.name, "not run: bf16 gains nothing on a CPU"))
            continue
        study = folder / "studies" / cell.name
        if ResultFolder(study).is_finished:
            outcome.num_before += 1
        elif (reason := _run(cell, sweep, study, launch)) is not None:
            outcome.failed.append((cell.name, reason))
            say(f"{number + 1}/{len(cells)}  {cell.name}  FAILED: {reason}")
            continue
        else:
            outcome.num_run += 1
            say(f"{number + 1}/{len(cells)}  {cell.name}")
        rows += rows_of(cell, study)
        write_csv(rows, folder / "table.csv")
    write_json(folder / "skipped.json", [*outcome.skipped, *outcome.failed])
    return outcome


def _run(cell: SweepCell, sweep: SweepConfig, study: Path, launch: Launch) -> str | None:
    """Run a cell from its beginning; the reason if it failed."""
    shutil.rmtree(study, ignore_errors=True)
    config = sweep.folder() / "logs" / f"{cell.name}.yaml"
    with atomic_file(config) as stream:
        yaml.safe_dump(cell.study(sweep, study.parent).to_yaml(), stream, sort_keys=False)
    reason = launch(config, cell.world_size, config.with_suffix(".log"), sweep)
    return reason if reason or ResultFolder(study).is_finished else "ended with status 0, but wrote no scores"


def rows_of(cell: SweepCell, folder: Path) -> list[Row]:
    """The lines of one finished study."""
    study = ResultFolder(folder)
    if num_torn := study.num_torn_lines:
        raise HeartlmError(f"{study.metrics_file}: {num_torn} lines are no JSON: remove {folder}, run the sweep again")
    clients = defaultdict[tuple[int, int], list[Row]](list)
    for line in study.metrics:
        if line["kind"] == "client" and line.get("num_steps"):
            clients[line["round"], line["rank"]].append(line)
    accuracy: Any = read_json(folder / "scores.json", dict[str, Any]).get("accuracy")  # none if nothing was labelled
    accuracy = accuracy.get("value") if isinstance(accuracy, dict) else accuracy
    rows = list[Row]()
    for line in study.metrics:
        if line["kind"] != "round":
            continue
        own = clients[line["round"], line["rank"]]
        steps, train_s = (sum(client[name] for client in own) for name in ("num_steps", "train_s"))
        busy_s = train_s + line["exposed_s"]
        row = {
            "config": cell.config,
            "world_size": cell.world_size,
            "rank": line["rank"],
            "round_idx": line["round"],
            "batch_size": cell.batch_size,
            "local_steps": cell.local_steps,
            "local_train_ms": 1000 * train_s,
            "comm_ms": 1000 * line["exposed_s"],
            "samples_per_s": steps * cell.batch_size / busy_s if busy_s else None,
            "avg_loss": sum(client["loss"] * client["num_steps"] for client in own) / steps if steps else None,
            "repeat": cell.repeat,
            "hidden_comm_ms": 1000 * line["hidden_s"],
            "comm_bytes": line["bytes"],
            "num_clients": len(own),
            "round_ms": 1000 * line["round_s"],
            "accuracy": accuracy,
        }
        rows.append({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
    return rows
