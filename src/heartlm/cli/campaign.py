"""`heartlm campaign`: many experiments from one file, on SLURM or on the cores of this machine."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from heartlm.cli.options import existing, parse
from heartlm.cli.subcommands import run_subcommand
from heartlm.cores import usable_cores
from heartlm.errors import HeartlmError
from heartlm.progress import say

if TYPE_CHECKING:
    from heartlm.cluster.campaign.campaign import Campaign
    from heartlm.cluster.profile import SiteProfile

STOPPED_STATUS = 143
WAIT_S = 1.0


@dataclass(frozen=True)
class RunOptions:
    """What to run, and where.

    Attributes:
        campaign: the campaign's file; heartlm campaign --help explains it.
        local: run on the cores of this machine.
        parallel: how many experiments run at a time; here each on cores of its own and by default one, on SLURM, of
            each job array, and by default as many as there is room for.
        profile: the site to make job arrays for: the name of a profile or a YAML file.
        only: names of experiments with commas between; no others are started here.
        submit: submit the job arrays to SLURM.
        wait: stay until nothing of what was submitted is in the queue any more.
        dry_run: say what would be done, and the scripts of the job arrays; change nothing.
        account: what is charged, for the profile.
        partition: of the cluster, for the profile.
        qos: quality of service, for the profile.
        image: of the container, for the profile.
    """

    campaign: Path
    local: bool = False
    parallel: int | None = None
    only: str | None = None
    profile: str | None = None
    submit: bool = False
    wait: bool = False
    dry_run: bool = False
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    image: str | None = None


@dataclass(frozen=True)
class StatusOptions:
    """What to look at.

    Attributes:
        campaign: the campaign's file.
        once: print the table once instead of keeping it up to date.
        json: print everything as JSON, once.
        every_s: seconds between looks.
    """

    campaign: Path
    once: bool = False
    json: bool = False
    every_s: float = 2.0


def run(argv: Sequence[str]) -> int:
    """Run one subcommand of `heartlm campaign`; returns the exit status."""
    from heartlm.cluster.campaign import campaign

    return run_subcommand("campaign", SUBCOMMANDS, argv, (campaign.__doc__ or "").strip())


def run_run(argv: Sequence[str]) -> int:
    """Run what is not done of a campaign; what failed is tried once more. Given again, it continues.

    Examples:
        heartlm campaign run widths.yaml --dry-run
        heartlm campaign run widths.yaml --local --parallel 4
        heartlm campaign run widths.yaml --profile meluxina --account p200000 --submit
    """
    options = parse(RunOptions, argv, "campaign run", run_run, positionals=["campaign"])
    from heartlm.cli.campaign_check import check_runs
    from heartlm.cluster.campaign.campaign import load_campaign

    _check(options)
    campaign = load_campaign(existing(options.campaign, "campaign"))
    only = _only(campaign, options)
    check_runs(each for each in campaign.experiments if only is None or each.name in only)
    if options.profile is not None:
        return _run_on_slurm(campaign, options)
    return _show_plan(campaign) if options.dry_run else _run_here(campaign, options, only)


def _only(campaign: Campaign, options: RunOptions) -> frozenset[str] | None:
    """Names of the experiments to run; None for all."""
    if options.only is None:
        return None
    return frozenset(campaign[name.strip()].name for name in options.only.split(","))


def _check(options: RunOptions) -> None:
    if options.local and (options.submit or options.profile is not None):
        raise HeartlmError("local: found together with --profile or --submit: a campaign runs here or on SLURM")
    if options.submit and options.profile is None:
        raise HeartlmError("submit: found without --profile: name the site, for example --profile generic")
    if options.profile is not None and not (options.submit or options.dry_run):
        raise HeartlmError("profile: found without --submit or --dry-run: say whether to submit the job arrays")
    if not (options.local or options.submit or options.dry_run):
        raise HeartlmError("neither --local nor --submit found: say where to run, or --dry-run to see what would be")
    if options.parallel is not None and options.parallel < 1:
        raise HeartlmError(f"parallel: {options.parallel} found, at least 1 expected")
    if options.only is not None and not options.local:
        raise HeartlmError("only: found without --local")
    if options.wait and not options.submit:
        raise HeartlmError("wait: found without --submit")


def _show_plan(campaign: Campaign) -> int:
    """Print what would be run, in order, and what is done already."""
    from heartlm.cluster.campaign.done import progress_of, words_to_continue

    for experiment in campaign.experiments:
        progress = progress_of(experiment, campaign.folder)
        needs = f"  needs {', '.join(experiment.needs)}" if experiment.needs else ""
        print(f"{experiment.name}: {experiment.topology.words}{needs}")
        done = progress == "done"
        print("  done" if done else f"  $ {shlex.join(['heartlm', *words_to_continue(experiment, progress)])}")
    return 0


def _run_here(campaign: Campaign, options: RunOptions, only: frozenset[str] | None) -> int:
    from heartlm.cluster.campaign.local import CampaignStopped, LocalRunner

    try:
        LocalRunner(campaign, options.parallel or 1, usable_cores(), say, only).run()
    except CampaignStopped as stopped:
        say(str(stopped))
        return STOPPED_STATUS
    return _summed_up(campaign, only)


def _summed_up(campaign: Campaign, only: frozenset[str] | None = None) -> int:
    """Print what became of all, or of `only` some; 0 if they are done."""
    from heartlm.cluster.campaign.state import rows_of
    from heartlm.cluster.campaign.table import summary

    rows = [row for row in rows_of(campaign, {}) if only is None or row.name in only]
    print("\n".join(summary(rows)))
    return 0 if all(row.state == "done" for row in rows) else 1


def _run_on_slurm(campaign: Campaign, options: RunOptions) -> int:
    from heartlm.cluster.campaign.slurm import queue_of, submit_campaign

    profile = _profile(options)
    python = "python" if profile.container != "none" else sys.executable
    if options.dry_run:
        return _show_scripts(campaign, profile, python, options.parallel)
    submit_campaign(campaign, profile, python=python, at_most=options.parallel, say=say)
    if not options.wait:
        say(f"see how far it is with:  heartlm campaign status {shlex.quote(str(options.campaign))}")
        return 0
    while queue_of(campaign):
        time.sleep(WAIT_S)
    return _summed_up(campaign)


def _profile(options: RunOptions) -> SiteProfile:
    from heartlm.cluster.profile import load_profile

    profile = load_profile(options.profile or "generic")
    given = {name: getattr(options, name) for name in ("account", "partition", "qos", "image")}
    profile = replace(profile, **{name: value for name, value in given.items() if value is not None})
    if profile.scheduler == "none":
        raise HeartlmError(f"profile: {profile.name} has no SLURM: run the campaign with --local")
    profile.check()
    return profile


def _show_scripts(campaign: Campaign, profile: SiteProfile, python: str, at_most: int | None) -> int:
    from heartlm.cluster.campaign.slurm import arrays_left, script_of, tasks_text

    for array in arrays_left(campaign, profile):
        dependency = array.dependency({name: f"<{name}>" for name, _ in array.waits_for})
        options = f" --dependency={dependency}" if dependency else ""
        print(f"### sbatch{options} {array.name}.sh")
        print(script_of(array, campaign, profile, python=python, at_most=at_most))
        print(f"### {array.name}.tasks\n{tasks_text(array, campaign)}")
    return 0


def run_status(argv: Sequence[str]) -> int:
    """How far a campaign is: every stage, what runs, and what failed with the last line of its log.

    Examples:
        heartlm campaign status widths.yaml
        heartlm campaign status widths.yaml --once --json
    """
    options = parse(StatusOptions, argv, "campaign status", run_status, positionals=["campaign"])
    from rich.console import Console
    from rich.live import Live

    from heartlm.cluster.campaign.campaign import load_campaign
    from heartlm.cluster.campaign.slurm import queue_of
    from heartlm.cluster.campaign.state import rows_of
    from heartlm.cluster.campaign.table import view

    campaign = load_campaign(existing(options.campaign, "campaign"))
    if options.every_s <= 0:
        raise HeartlmError(f"every_s: {options.every_s} found, more than 0 expected")
    if options.json:
        import json

        print(json.dumps([vars(row) for row in rows_of(campaign, queue_of(campaign))], indent=2))
        return 0
    console = Console()
    if options.once or not console.is_terminal:
        console.print(view(rows_of(campaign, queue_of(campaign))))
        return 0
    with Live(console=console, auto_refresh=False) as live:
        while True:
            rows = rows_of(campaign, queue_of(campaign))
            live.update(view(rows), refresh=True)
            if all(row.state in ("done", "failed", "not run") for row in rows):
                return 0
            time.sleep(options.every_s)


SUBCOMMANDS = {
    "run": ("heartlm.cli.campaign:run_run", "run what is not done, on SLURM or on this machine"),
    "status": ("heartlm.cli.campaign:run_status", "show how far it is"),
}
