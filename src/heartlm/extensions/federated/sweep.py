"""Running a sweep: study after study, each kept when it is finished; finished studies are not run again.

sweep.json         settings that decide the numbers
table.csv          a line for every rank and round
studies/CELL/      the folder of each study
logs/CELL/         what it printed

The first ten columns of the table are those of the published study, and samples per second are, as there, those of the
rank's local steps over its local time and its communication. The others are what it left out: communication hidden
behind computing, bytes, the repeat, and the accuracy of the study's final model.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from heartlm.extensions.cluster.cells import cells_on, continued
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.extensions.federated.sweep_file import SweepCell, SweepConfig, cells_of
from heartlm.runs.run_folder import ResultFolder
from heartlm.storage.atomic import write_csv, write_json
from heartlm.storage.reading import read_json
from heartlm.storage.typed import typed
from heartlm.system.progress import say

Row = dict[str, Any]

DECIDES = ("study", "clients_per_rank", "rounds", "slurm", "nodes", "cpus_per_rank")
"""Settings that must not change during a sweep, so that results are comparable."""


def run_sweep(sweep: SweepConfig) -> tuple[list[Row], dict[str, str]]:
    """Run every unfinished study of a sweep, and write the table.

    Returns:
        The rows of the table, and why studies failed, by their names.

    Raises:
        HeartlmError: a setting is invalid, or the folder contains another sweep.
    """
    sweep.check()
    runner = cells_on(sweep.slurm, sweep.base().device, sweep.timeout_s)
    assert sweep.out is not None, "it was checked"
    folder, failed, rows, cells = sweep.out, dict[str, str](), list[Row](), cells_of(sweep)
    with continued(folder / "sweep.json", {name: getattr(sweep, name) for name in DECIDES}) as about:
        write_json(folder / "sweep.json", about)
        for number, cell in enumerate(cells):
            out, head = folder / "studies" / cell.name, f"{number + 1}/{len(cells)}  {cell.name}"
            if not ResultFolder(out).is_finished:
                shutil.rmtree(out, ignore_errors=True)
                study, logs = cell.study(sweep, out.parent).to_yaml(), folder / "logs" / cell.name
                nodes = sweep.nodes if sweep.slurm and cell.world_size % sweep.nodes == 0 else 1
                # On this machine the ranks divide all cores; rounded up, so that none is left out.
                cpus = sweep.cpus_per_rank if sweep.slurm else -(-runner.resources.num_cores // cell.world_size)
                reason, _ = runner.run(f"{__name__}:federate", [study], cell.world_size, nodes, cpus, logs)
                if reason is not None:
                    failed[cell.name] = reason
                    say(f"{head}  FAILED: {reason}")
                    continue
                say(head)
            rows += rows_of(cell, out)
            write_csv(rows, folder / "table.csv")
    return rows, failed


def federate(**settings: Any) -> None:
    """Run a study as one of the ranks on this machine; a job runs the command of the same name."""
    from heartlm.extensions.federated.federate import federate as run_study

    run_study(typed(FederatedConfig, settings))


def rows_of(cell: SweepCell, folder: Path) -> list[Row]:
    """Return the table rows of one finished study."""
    study = ResultFolder(folder)
    clients = defaultdict[tuple[int, int], list[Row]](list)
    for line in study.metrics:
        if line["kind"] == "client" and line.get("num_steps"):
            clients[line["round"], line["rank"]].append(line)
    accuracy = read_json(folder / "scores.json", dict[str, Any]).get("accuracy", {}).get("value")  # none without labels
    rows = list[Row]()
    for line in study.metrics:
        if line["kind"] != "round":
            continue
        trained = clients[line["round"], line["rank"]]
        steps, train_s = (sum(client[name] for client in trained) for name in ("num_steps", "train_s"))
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
            "avg_loss": sum(client["loss"] * client["num_steps"] for client in trained) / steps if steps else None,
            "repeat": cell.repeat,
            "hidden_comm_ms": 1000 * line["hidden_s"],
            "comm_bytes": line["bytes"],
            "num_clients": len(trained),
            "round_ms": 1000 * line["round_s"],
            "accuracy": accuracy,
        }
        rows.append({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
    return rows
