"""`heartlm plan`: how many GPUs to give each experiment of a campaign."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heartlm.cli.options import existing, parse

if TYPE_CHECKING:
    from heartlm.scaling.plan.allot import CampaignPlan
    from heartlm.scaling.plan.plan_file import PlanFile
    from heartlm.scaling.plan.schedule import Schedule


@dataclass(frozen=True)
class PlanOptions:
    """What to plan.

    Attributes:
        plan: a plan's YAML file: a campaign, machines, and how long its experiments take (see examples/).
        out: the campaign's file to write, with the GPUs of every experiment; in the folder of the campaign.
        gantt: a picture to write (.svg).
        json: print JSON instead of tables.
    """

    plan: Path
    out: Path | None = None
    gantt: Path | None = None
    json: bool = False


def run(arguments: Sequence[str]) -> int:
    """Share GPUs among the experiments of a campaign so that it ends soonest, or costs least.

    Examples:
        heartlm plan examples/published_campaign.yaml
        heartlm plan PLAN.yaml --out campaign-planned.yaml --gantt plan.svg
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
        write_campaign(options.out, wanted.campaign, made.schedule, wanted.cluster, 3600.0)
    if options.gantt is not None:
        _draw(options.gantt, wanted, made.schedule)
    if options.json:
        print(json.dumps(_content(wanted, made), indent=2))
        return 0
    print("\n".join(plan_lines(wanted, made)))
    if options.out is not None:
        print(f"\n{options.out}: run it with  heartlm campaign run {options.out}")
    return 0


def _content(wanted: PlanFile, made: CampaignPlan) -> dict[str, object]:
    """The plan as plain values."""

    def of(schedule: Schedule) -> dict[str, object]:
        placed = [vars(each) for each in schedule.placed]
        totals = {"end": schedule.end, "node_time": schedule.node_time, "gpu_time": schedule.gpu_time}
        return {**totals, "experiments": placed}

    unit = "hours" if wanted.in_hours else "work of one on one GPU"
    return {"unit": unit, "plan": of(made.schedule), "naive": of(made.naive), "least_end": made.least_end}


def _draw(path: Path, wanted: PlanFile, schedule: Schedule) -> None:
    from heartlm.files import atomic_file
    from heartlm.report.gantt import gantt

    campaign = wanted.campaign
    several = len({each.stage for each in campaign.experiments}) > 1
    kinds = {each.name: each.stage if several else each.name for each in campaign.experiments}
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds.values()))}
    colours = {name: numbers[kind] for name, kind in kinds.items()}
    title = f"{campaign.name}: {len(schedule.placed)} experiments"
    unit = "hours" if wanted.in_hours else "units of work"
    with atomic_file(path) as stream:
        stream.write(gantt(schedule, colours, wanted.cluster, title=title, unit=unit) + "\n")
