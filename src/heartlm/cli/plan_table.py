"""A plan as text: savings, GPUs of each experiment, and a chart of the schedule."""

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
"""Maximum number of experiments that a table lists one by one; above it, like experiments are counted."""

MOST_GPUS = 64


def plan_lines(wanted: PlanFile, made: CampaignPlan) -> list[str]:
    """Return the output of `heartlm plan`."""
    cluster, plan, naive, settings = wanted.cluster, made.schedule, made.naive, wanted.settings
    machines = f"{cluster.nodes} nodes of {cluster.gpus_per_node // cluster.runs_per_gpu} GPUs"
    machines += f", {cluster.runs_per_gpu} on each" if cluster.runs_per_gpu > 1 else ""
    goal = "costs least" if settings.goal == "cheapest" else "ends soonest"
    naive_costs = [naive.end, naive.node_time, naive.gpu_time]
    costs = [plan.end, plan.node_time, plan.gpu_time / cluster.runs_per_gpu]
    fractions = [1 - here / there if there else 0.0 for here, there in zip(costs, naive_costs, strict=True)]
    lines = [
        f"{wanted.campaign.name}: {len(wanted.jobs)} experiments on {machines}, so that the campaign {goal}",
        "",
        *aligned(
            [
                ["", "ends after (h)", "node-hours", "GPU-hours"],
                ["naive: all the GPUs it can have for each", *(f"{cost:.2f}" for cost in naive_costs)],
                ["this plan", *(f"{cost:.2f}" for cost in costs)],
                ["saved", *(f"{100 * fraction:.1f} %" for fraction in fractions)],
            ]
        ),
        f"  no plan ends before {made.least_end:.2f}",
    ]
    if settings.node_hours:
        lines.append(f"  budget: {plan.node_time:.2f} of {settings.node_hours:g} node-hours")
    if settings.deadline_h:
        lines.append(f"  deadline: {plan.end:.2f} of {settings.deadline_h:g} h")
    slow = "as given under beside" if settings.beside else "not to slow each other down: give beside where they do"
    lines.append(f"  experiments that share a node are taken {slow}")
    if plan.end and naive.end / plan.end > 1 + 1e-9:
        less = naive.end / plan.end
        lines.append(f"  this plan pays while those that share a node slow each other down less than {less:.2f} times")
    return [*lines, "", *_widths(wanted, plan), "", *text_chart(plan, cluster)]


def _widths(wanted: PlanFile, schedule: Schedule) -> list[str]:
    """List each experiment with its GPUs, start and end; for many, count the experiments of each stage by GPUs."""
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


def text_chart(schedule: Schedule, cluster: Cluster) -> list[str]:
    """Draw one row per GPU: `|name` marks the start of an experiment, `·` marks idle time."""
    scale = CHART_WIDTH / schedule.end if schedule.end else 0.0
    rows = {(node, gpu): ["·"] * CHART_WIDTH for node in range(cluster.nodes) for gpu in range(cluster.gpus_per_node)}
    for each in schedule.placed:
        first, last = round(each.start * scale), max(round(each.start * scale) + 1, round(each.end * scale))
        label = f"|{each.name}".ljust(last - first, "─")[: last - first]
        for place in each.gpus:
            rows[place][first:last] = label
    shown = list(rows.items())[:MOST_GPUS]
    lines = [f"  {node + 1}.{gpu + 1}  {''.join(row[:CHART_WIDTH])}" for (node, gpu), row in shown]
    more = [f"  … and {len(rows) - len(shown)} GPUs more: see --json"] if len(rows) > len(shown) else []
    foot = f"{schedule.end:.2f} h"
    return ["  node.GPU", *lines, *more, f"       0{foot:>{CHART_WIDTH - 1}}"]
