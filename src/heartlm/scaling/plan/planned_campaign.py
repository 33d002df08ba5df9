"""A plan as a campaign's file: every experiment with the GPUs it was given, in the order in which they begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from heartlm.cluster.campaign.campaign import Campaign, Experiment
from heartlm.cluster.topology import Topology, time_limit
from heartlm.errors import HeartlmError
from heartlm.files import atomic_file
from heartlm.scaling.plan.schedule import Cluster, Placed, Schedule


def write_campaign(path: Path, campaign: Campaign, schedule: Schedule, cluster: Cluster, unit_s: float) -> None:
    """Write the campaign with the topologies and starts of a plan.

    Args:
        path: in the folder of the campaign, which its paths are relative to.
        campaign: what was planned.
        schedule: the plan.
        cluster: its machines.
        unit_s: seconds of the unit of its times.

    Raises:
        HeartlmError: another folder, or it cannot be written.
    """
    if Path(path).resolve().parent != campaign.folder:
        raise HeartlmError(
            f"--out {path}: the paths of a campaign are relative to its folder: write to {campaign.folder}"
        )
    placed = {each.name: each for each in schedule.placed}
    experiments = [_entry(each, placed[each.name], cluster, unit_s) for each in campaign.experiments]
    content = {"name": campaign.name, "experiments": sorted(experiments, key=lambda entry: float(entry["start_s"]))}
    with atomic_file(path) as stream:
        stream.write(
            "# Made by heartlm plan: GPUs and order of every experiment; start_s is an order, not a time to wait.\n"
        )
        yaml.safe_dump(content, stream, sort_keys=False, allow_unicode=True, width=120)


def _entry(experiment: Experiment, placed: Placed, cluster: Cluster, unit_s: float) -> dict[str, Any]:
    run = {"command": experiment.run.command, **_plain(experiment.run.fields)}
    entry: dict[str, Any] = {"name": experiment.name, "stage": experiment.stage, "run": run}
    if experiment.needs:
        entry["needs"] = list(experiment.needs)
    topology = planned_topology(experiment.topology, len(placed.gpus), cluster)
    entry["topology"] = {
        "nodes": topology.nodes,
        "gpus_per_node": topology.gpus_per_node,
        "ranks_per_node": topology.ranks_per_node,
        "cpus_per_task": topology.cpus_per_task,
        "time": time_limit(topology.time_s),
    }
    entry["start_s"] = round(placed.start * unit_s, 3)
    return entry


def planned_topology(topology: Topology, num_gpus: int, cluster: Cluster) -> Topology:
    """The topology for so many GPUs, or CPU ranks where the experiment has no GPU, with as many CPUs for each."""
    nodes = max(1, num_gpus // cluster.gpus_per_node)
    ranks = num_gpus // nodes
    gpus = ranks if topology.gpus_per_node else 0
    cpus = max(1, topology.cpus_per_task // topology.ranks_per_node) * ranks
    return replace(topology, nodes=nodes, gpus_per_node=gpus, ranks_per_node=ranks, cpus_per_task=cpus)


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as YAML holds them."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
