"""A plan as lines: what it saves, who gets how many GPUs, and when each GPU does what."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from heartlm.cli.score_table import aligned

if TYPE_CHECKING:
    from heartlm.scaling.plan.allot import CampaignPlan
    from heartlm.scaling.plan.plan_file import PlanFile
    from heartlm.scaling.plan.schedule import Cluster, Schedule

CHART_WIDTH = 88
MOST_ROWS = 24
"""Experiments that a table lists one by one; of more, it counts those alike."""

MOST_GPUS = 64


def plan_lines(wanted: PlanFile, made: CampaignPlan) -> list[str]:
    """All that `heartlm plan` prints."""
    cluster, unit = wanted.cluster, "h" if wanted.in_hours else "units"
    goal = "costs least" if wanted.settings.goal == "cheapest" else "ends soonest"
    machines = f"{cluster.nodes} nodes of {cluster.gpus_per_node // cluster.runs_per_gpu} GPUs"
    machines += f", {cluster.runs_per_gpu} on each" if cluster.runs_per_gpu > 1 else ""
    note = "" if wanted.in_hours else "; a unit is the work given as 1, on one GPU"
    return [
        f"{wanted.campaign.name}: {len(wanted.jobs)} experiments on {machines}, so that the campaign {goal} "
        f"(times in {unit}{note})",
        "",
        *_comparison(wanted, made, unit),
        "",
        *_widths(wanted, made.schedule),
        "",
        *text_chart(made.schedule, cluster, unit),
    ]


def _comparison(wanted: PlanFile, made: CampaignPlan, unit: str) -> list[str]:
    node_time = "node-hours" if wanted.in_hours else "node-units"
    gpu_time = "GPU-hours" if wanted.in_hours else "GPU-units"
    rows = [["", f"ends after ({unit})", node_time, gpu_time]]
    plan, naive = made.schedule, made.naive
    naive_costs = [naive.end, naive.node_time, naive.gpu_time]
    costs = [plan.end, plan.node_time, plan.gpu_time / wanted.cluster.runs_per_gpu]
    for name, each in {"naive: all the GPUs it can have for each": naive_costs, "this plan": costs}.items():
        rows.append([name, *(f"{cost:.2f}" for cost in each)])
    rows.append(["saved", *map(_saved, costs, naive_costs)])
    bound = f"  no plan ends before {made.least_end:.2f}"
    node_hours, deadline_h = wanted.settings.node_hours, wanted.settings.deadline_h
    budget = [f"  budget: {plan.node_time:.2f} of {node_hours:g} node-hours"] if node_hours else []
    late = [f"  deadline: {plan.end:.2f} of {deadline_h:g} h"] if deadline_h else []
    slow = (
        "as given under beside" if wanted.settings.beside else "not to slow each other down: give beside where they do"
    )
    shared = f"  experiments that share a node are taken {slow}"
    less = naive.end / plan.end if plan.end else 1.0
    even = [f"  this plan pays while those that share a node slow each other down less than {less:.2f} times"]
    return [*aligned(rows), bound, *budget, *late, shared, *(even if less > 1 + 1e-9 else [])]


def _saved(here: float, there: float) -> str:
    return f"{100 * (1 - here / there):.1f} %" if there else ""


def _widths(wanted: PlanFile, schedule: Schedule) -> list[str]:
    """Every experiment with its GPUs, start and end; of many, how many of each stage got how many GPUs."""
    placed = {each.name: each for each in schedule.placed}
    if len(placed) <= MOST_ROWS:
        rows = [["experiment", "GPUs", "node", "begins", "ends"]]
        for each in sorted(schedule.placed, key=lambda one: one.start):
            nodes = sorted({node + 1 for node, _ in each.gpus})
            where = "+".join(map(str, nodes))
            rows.append([each.name, str(len(each.gpus)), where, f"{each.start:.2f}", f"{each.end:.2f}"])
        return aligned(rows)
    counts = Counter((each.stage, len(placed[each.name].gpus)) for each in wanted.campaign.experiments)
    rows = [["stage", "GPUs each", "experiments"]]
    return aligned([*rows, *([stage, str(gpus), str(number)] for (stage, gpus), number in sorted(counts.items()))])


def text_chart(schedule: Schedule, cluster: Cluster, unit: str) -> list[str]:
    """A row for each GPU: `|name` from where an experiment begins, `·` where nothing is done."""
    scale = CHART_WIDTH / schedule.end if schedule.end else 0.0
    rows = {(node, gpu): ["·"] * CHART_WIDTH for node in range(cluster.nodes) for gpu in range(cluster.gpus_per_node)}
    for each in schedule.placed:
        first, last = round(each.start * scale), max(round(each.start * scale) + 1, round(each.end * scale))
        label = f"|{each.name}".ljust(last - first, "─")[: last - first]
        for place in each.gpus:
            rows[place][first:last] = label
    shown = list(rows.items())[:MOST_GPUS]
    lines = [f"  {node + 1}.{gpu + 1}  {''.join(row[:CHART_WIDTH])}" for (node, gpu), row in shown]
    more = [f"  … and {len(rows) - len(shown)} GPUs more: see --gantt"] if len(rows) > len(shown) else []
    foot = f"{schedule.end:.2f} {unit}"
    return ["  node.GPU", *lines, *more, f"       0{foot:>{CHART_WIDTH - 1}}"]
