"""`heartlm campaign`: run many experiments from one file, on SLURM or on this machine."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heartlm.cli.options import existing, parse
from heartlm.cli.run_check import checked_options
from heartlm.cli.subcommands import run_subcommand
from heartlm.cluster.profile import SiteOptions, load_slurm_profile
from heartlm.cores import usable_cores
from heartlm.errors import HeartlmError
from heartlm.progress import say
from heartlm.training.config import TrainingConfig

if TYPE_CHECKING:
    from heartlm.cluster.campaign.campaign import Campaign

STOPPED_STATUS = 143
WAIT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class RunOptions(SiteOptions):
    """Options of `heartlm campaign run`.

    Attributes:
        campaign: the campaign file; see heartlm campaign --help.
        local: run on the cores of this machine.
        parallel: number of experiments that run at the same time. Locally, each has its own cores and the default is 1.
            On SLURM, the limit applies to each job array and the default is no limit.
        profile: site profile for the job arrays: a name or a YAML file.
        only: comma-separated names of the experiments to start; by default all.
        submit: submit the job arrays to SLURM.
        wait: wait until none of the submitted jobs is in the queue.
        dry_run: print the planned actions and the scripts of the job arrays; change nothing.
    """

    campaign: Path
    local: bool = False
    parallel: int | None = None
    only: str | None = None
    profile: str | None = None
    submit: bool = False
    wait: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class StatusOptions:
    """Options of `heartlm campaign status`.

    Attributes:
        campaign: the campaign file.
        json: print the status as JSON.
    """

    campaign: Path
    json: bool = False


def run(argv: Sequence[str]) -> int:
    """Run one subcommand of `heartlm campaign` and return the exit status."""
    from heartlm.cluster.campaign import campaign

    return run_subcommand("campaign", SUBCOMMANDS, argv, (campaign.__doc__ or "").strip())


def run_run(argv: Sequence[str]) -> int:
    """Run the unfinished experiments of a campaign. A failed experiment is retried once; run again to continue.

    Examples:
        heartlm campaign run widths.yaml --dry-run
        heartlm campaign run widths.yaml --local --parallel 4
        heartlm campaign run widths.yaml --profile meluxina --account p200000 --submit
    """
    options = parse(RunOptions, argv, "campaign run", run_run, positionals=["campaign"])
    from heartlm.cluster.campaign.campaign import load_campaign

    _check(options)
    campaign = load_campaign(existing(options.campaign, "campaign"))
    names = None if options.only is None else options.only.split(",")
    only = None if names is None else frozenset(campaign[name.strip()].name for name in names)
    for experiment in campaign.experiments:
        if only is None or experiment.name in only:
            try:
                config = checked_options(experiment.run)
                if isinstance(config, TrainingConfig):
                    config.check_split(experiment.topology.world_size)
            except HeartlmError as error:
                raise HeartlmError(f"{experiment.name}: {str(error).partition('  (see ')[0]}") from error
    if options.profile is not None:
        return _run_on_slurm(campaign, options, options.profile)
    return _show_plan(campaign) if options.dry_run else _run_here(campaign, options, only)


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
    """Print the experiments in order, with those that are already done."""
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
    """Print a summary of all experiments, or of those in `only`; return 0 if all of them are done."""
    from heartlm.cluster.campaign.state import rows_of
    from heartlm.cluster.campaign.table import summary

    rows = [row for row in rows_of(campaign, {}) if only is None or row.name in only]
    print("\n".join(summary(rows)))
    return 0 if all(row.state == "done" for row in rows) else 1


def _run_on_slurm(campaign: Campaign, options: RunOptions, site: str) -> int:
    from heartlm.cluster.campaign.slurm import arrays_left, queue_of, script_of, submit_campaign, tasks_text

    profile = load_slurm_profile(site, options, "profile")
    if options.dry_run:
        for array in arrays_left(campaign, profile):
            dependency = array.dependency({name: f"<{name}>" for name, _ in array.waits_for})
            print(f"### sbatch{f' --dependency={dependency}' if dependency else ''} {array.name}.sh")
            print(script_of(array, campaign, profile, python=profile.python, at_most=options.parallel))
            print(f"### {array.name}.tasks\n{tasks_text(array, campaign)}")
        return 0
    submit_campaign(campaign, profile, python=profile.python, at_most=options.parallel, say=say)
    if not options.wait:
        say(f"see how far it is with:  heartlm campaign status {shlex.quote(str(options.campaign))}")
        return 0
    while queue_of(campaign):
        time.sleep(WAIT_S)
    return _summed_up(campaign)


def run_status(argv: Sequence[str]) -> int:
    """Show the progress of a campaign: each stage, running experiments, and the last log line of failed ones.

    Examples:
        heartlm campaign status widths.yaml
        heartlm campaign status widths.yaml --json
        watch heartlm campaign status widths.yaml
    """
    options = parse(StatusOptions, argv, "campaign status", run_status, positionals=["campaign"])
    from heartlm.cluster.campaign.campaign import load_campaign
    from heartlm.cluster.campaign.slurm import queue_of
    from heartlm.cluster.campaign.state import rows_of

    campaign = load_campaign(existing(options.campaign, "campaign"))
    rows = rows_of(campaign, queue_of(campaign))
    if options.json:
        print(json.dumps([vars(row) for row in rows], indent=2))
        return 0
    from heartlm.cli.score_table import aligned
    from heartlm.cluster.campaign.table import tables

    for table in tables(rows):
        print("\n".join(aligned(table, str.ljust)))
    return 0


SUBCOMMANDS = {
    "run": ("heartlm.cli.campaign:run_run", "run the unfinished experiments, on SLURM or on this machine"),
    "status": ("heartlm.cli.campaign:run_status", "show the progress of the experiments"),
}
