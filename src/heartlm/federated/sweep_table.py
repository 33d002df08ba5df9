"""The table of a sweep: a line for every rank and round of every study that was finished.

Beside the columns of the published study there are what it could not tell: communication that passes while a rank
computes, bytes, and which repeat it was. Samples per second are those of the rank's local steps over its local time and
its communication, as there.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.federated.sweep_cells import Cell
from heartlm.files import atomic_file, read_json, read_json_lines

Row = dict[str, Any]

COLUMNS = (
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
    "repeat",
    "hidden_comm_ms",
    "comm_bytes",
    "num_clients",
    "round_ms",
    "accuracy",
)
"""The first ten are the published study's; accuracy is that of the study's final model."""


def rows_of(cell: Cell, folder: Path) -> list[Row]:
    """The lines of one finished study."""
    lines, num_torn = read_json_lines(folder / "metrics.jsonl")
    if num_torn:
        raise HeartlmError(
            f"{folder}/metrics.jsonl: {num_torn} lines are no JSON: remove {folder}, run the sweep again"
        )
    clients = defaultdict[tuple[int, int], list[Row]](list)
    for line in lines:
        if line["kind"] == "client" and line.get("num_steps"):
            clients[line["round"], line["rank"]].append(line)
    accuracy = accuracy_of(folder)
    rounds = [line for line in lines if line["kind"] == "round"]
    return [_row(cell, line, clients[line["round"], line["rank"]], accuracy) for line in rounds]


def _row(cell: Cell, line: Mapping[str, Any], clients: list[Row], accuracy: float | None) -> Row:
    steps = sum(client["num_steps"] for client in clients)
    train_s = sum(client["train_s"] for client in clients)
    busy_s = train_s + line["exposed_s"]
    return {
        "config": cell.config,
        "world_size": cell.world_size,
        "rank": line["rank"],
        "round_idx": line["round"],
        "batch_size": cell.batch_size,
        "local_steps": cell.local_steps,
        "local_train_ms": 1000 * train_s,
        "comm_ms": 1000 * line["exposed_s"],
        "samples_per_s": steps * cell.batch_size / busy_s if busy_s else None,
        "avg_loss": sum(client["loss"] * client["num_steps"] for client in clients) / steps if steps else None,
        "repeat": cell.repeat,
        "hidden_comm_ms": 1000 * line["hidden_s"],
        "comm_bytes": line["bytes"],
        "num_clients": len(clients),
        "round_ms": 1000 * line["round_s"],
        "accuracy": accuracy,
    }


def accuracy_of(folder: Path) -> float | None:
    """Accuracy of the final model of a study; None where nothing was labelled."""
    accuracy = read_json(folder / "scores.json", dict[str, Any]).get("accuracy")
    value = accuracy.get("value") if isinstance(accuracy, dict) else accuracy
    return float(value) if isinstance(value, int | float) else None


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Write lines as CSV; what is not known is empty."""
    with atomic_file(path) as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _written(row[name]) for name in COLUMNS})


def _written(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else value
