"""`heartlm plan`: assign GPUs to the experiments of a campaign."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import existing, parse


@dataclass(frozen=True)
class PlanOptions:
    """Options of `heartlm plan`.

    Attributes:
        plan: a YAML file with a campaign, machines and the durations of experiments (see examples/).
        out: campaign file to write, with the number of GPUs of each experiment; it must be in the campaign's folder.
        json: print JSON instead of tables.
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
    from heartlm.cli.plan_table import plan_lines
    from heartlm.scaling.plan.allot import plan
    from heartlm.scaling.plan.plan_file import load_plan, write_campaign

    wanted = load_plan(existing(options.plan, "plan's file"))
    made = plan(
        wanted.jobs,
        wanted.cluster,
        cheapest=wanted.settings.goal == "cheapest",
        most_node_time=wanted.settings.node_hours,
        deadline=wanted.settings.deadline_h,
        whole=wanted.whole,
    )
    if options.out is not None:
        write_campaign(options.out, wanted.campaign, made.schedule, wanted.cluster)
    if options.json:
        content: dict[str, object] = {"unit": "hours", "least_end": made.least_end}
        for name, each in {"plan": made.schedule, "naive": made.naive}.items():
            content[name] = {**each.totals, "experiments": [vars(placed) for placed in each.placed]}
        print(json.dumps(content, indent=2))
        return 0
    print("\n".join(plan_lines(wanted, made)))
    if options.out is not None:
        print(f"\n{options.out}: run it with  heartlm campaign run {options.out}")
    return 0
