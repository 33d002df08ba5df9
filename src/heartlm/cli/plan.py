"""`heartlm plan`: assign GPUs to the experiments of a campaign."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import check_out, existing, parse
from heartlm.cli.score_table import aligned


@dataclass(frozen=True)
class PlanOptions:
    """Options of `heartlm plan`.

    Attributes:
        plan: a YAML file with a campaign, machines and the durations of experiments (see examples/).
        out: campaign file to write, with the number of GPUs of each experiment; it must be in the campaign's folder.
        json: print JSON, with the place and time of each experiment, instead of tables.
    """

    plan: Path
    out: Path | None = None
    json: bool = False


def run(arguments: Sequence[str]) -> int:
    """Assign GPUs to the experiments of a campaign, to minimise its duration or its cost.

    Examples:
        heartlm plan examples/published_campaign.yaml
        heartlm plan PLAN.yaml --out campaign-planned.yaml
        heartlm plan memory --help       # the memory of a rank in a training step
    """
    if arguments and arguments[0] == "memory":
        from heartlm.cli import plan_memory

        return plan_memory.run(arguments[1:])
    options = parse(PlanOptions, arguments, "plan", run, positionals=["plan"])
    from heartlm.extensions.scaling.plan_file import load_plan, write_campaign
    from heartlm.extensions.scaling.schedule import Cluster, least_end, naive, plan

    settings, campaign, jobs = load_plan(existing(options.plan, "plan's file"))
    cluster = Cluster(settings.nodes, settings.gpus_per_node)
    schedule, reference = plan(jobs, cluster, settings.goal == "cheapest"), naive(jobs, cluster)
    named = (options.plan.parent / name for name in (settings.campaign, settings.rates) if isinstance(name, str))
    check_out(options.out, options.plan, *named)
    if options.out is not None:
        write_campaign(options.out, campaign, schedule, settings.gpus_per_node)
    plans = {"plan": schedule, "naive": reference}
    costs = {
        name: {"end": each.end, "node_time": each.node_time, "gpu_time": each.gpu_time} for name, each in plans.items()
    }
    if options.json:
        content = {name: {**costs[name], "experiments": [vars(one) for one in plans[name].placed]} for name in plans}
        print(json.dumps({"unit": "hours", "least_end": least_end(jobs, cluster)} | content, indent=2))
        return 0
    machines = f"{settings.nodes} nodes of {settings.gpus_per_node} GPUs"
    goal = "costs least" if settings.goal == "cheapest" else "ends soonest"
    saved = [1 - costs["plan"][cost] / most if most else 0.0 for cost, most in costs["naive"].items()]
    rows = [
        ["", "ends after (h)", "node-hours", "GPU-hours"],
        ["naive: all the GPUs it can have for each", *(f"{cost:.2f}" for cost in costs["naive"].values())],
        ["this plan", *(f"{cost:.2f}" for cost in costs["plan"].values())],
        ["saved", *(f"{100 * fraction:.1f} %" for fraction in saved)],
    ]
    print(f"{campaign.name}: {len(jobs)} experiments on {machines}, so that the campaign {goal}\n")
    print("\n".join(aligned(rows)))
    if settings.rates is not None:
        hours = [sum(min(job.times.values()) for job in load_plan(options.plan, passes)[2]) for passes in (1, 10)]
        print(f"  GPU-hours at the rates of {settings.rates}: one pass {hours[0]:.2f}, ten passes {hours[1]:.2f}")
    print(f"  no plan ends before {least_end(jobs, cluster):.2f}")
    print("  experiments that share a node are taken not to slow each other down: give hours that were measured so\n")
    widths = {each.name: len(each.gpus) for each in schedule.placed}
    counts = Counter((each.stage, widths[each.name]) for each in campaign.experiments)
    rows = [[stage, str(gpus), str(number)] for (stage, gpus), number in sorted(counts.items())]
    print("\n".join(aligned([["stage", "GPUs each", "experiments"], *rows])))
    if options.out is not None:
        print(f"\n{options.out}: run it with  heartlm campaign run {options.out}")
    return 0
