"""`heartlm campaign`: run many experiments from one file, on SLURM or on this machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heartlm.cli.options import existing, parse
from heartlm.cli.subcommands import run_subcommand
from heartlm.distributed.ranks import STOPPED_STATUS
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.commands.run_check import check_inputs, checked_options
from heartlm.extensions.cluster.profile import SiteOptions, SiteProfile, load_site
from heartlm.system.cores import usable_cores
from heartlm.system.progress import say

if TYPE_CHECKING:
    from heartlm.extensions.cluster.campaign.campaign import Campaign


@dataclass(frozen=True, kw_only=True)
class RunOptions(SiteOptions):
    """Options of `heartlm campaign run`.

    Attributes:
        campaign: the campaign file; see heartlm campaign --help.
        local: run on the cores of this machine.
        parallel: number of experiments that run here at the same time, each on its own cores.
        only: names of the experiments to run here, separated by commas or blanks; by default all.
        profile: site profile for the jobs: a name or a YAML file; by default generic.
        submit: submit a job for each experiment to SLURM.
        wait: wait until none of the submitted jobs is in the queue.
        scripts: folder to which the job scripts are written, without submitting them.
    """

    campaign: Path
    local: bool = False
    parallel: int = 1
    only: str | None = None
    profile: str | None = None
    submit: bool = False
    wait: bool = False
    scripts: Path | None = None


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
    from heartlm.extensions.cluster.campaign import campaign

    return run_subcommand("campaign", SUBCOMMANDS, argv, (campaign.__doc__ or "").strip())


def run_run(argv: Sequence[str]) -> int:
    """Run the unfinished experiments of a campaign; without --local and --submit, print what would run.

    A failed experiment is retried once; run again to continue.

    Examples:
        heartlm campaign run widths.yaml
        heartlm campaign run widths.yaml --local --parallel 4
        heartlm campaign run widths.yaml --profile meluxina --account p200000 --scripts jobs
        heartlm campaign run widths.yaml --profile meluxina --account p200000 --submit
    """
    options = parse(RunOptions, argv, "campaign run", run_run, positionals=["campaign"])
    from heartlm.extensions.cluster.campaign.campaign import load_campaign

    if options.local and options.submit:
        raise HeartlmError("local: found together with --submit: a campaign runs here or on SLURM")
    if options.scripts is not None and (options.local or options.submit):
        raise HeartlmError("scripts: found together with --local or --submit: scripts are written instead")
    needed = {"only": ("local",), "parallel": ("local",), "profile": ("submit", "scripts"), "wait": ("submit",)}
    for name, where in needed.items():
        if getattr(options, name) != getattr(RunOptions, name) and not any(getattr(options, each) for each in where):
            raise HeartlmError(f"{name}: found without {' or '.join(f'--{each}' for each in where)}")
    campaign = load_campaign(existing(options.campaign, "campaign"))
    experiments = list(campaign.experiments)
    if options.only is not None:
        experiments = [campaign[name] for name in options.only.replace(",", " ").split()]
    if not experiments:
        raise HeartlmError(f"only: {options.only!r} found, names of experiments expected")
    profile = load_site(options.profile or "generic", options) if options.submit or options.scripts else None
    later = [each.run.out for each in campaign.experiments if each.run.out is not None]
    for experiment in experiments:
        try:
            of_command = checked_options(experiment.run, experiment.topology)
            if profile is not None:
                with chdir(campaign.folder):  # where the jobs run
                    check_inputs(of_command, profile.image, later)
        except HeartlmError as error:
            raise HeartlmError(f"{experiment.name}: {str(error).partition('  (see ')[0]}") from error
    if options.local:
        return _run_here(campaign, options.parallel, [each.name for each in experiments])
    if profile is None:
        return _show_plan(campaign)
    if options.scripts is None:
        return _run_on_slurm(campaign, options, profile)
    from heartlm.extensions.cluster.campaign.slurm import write_scripts

    for script in write_scripts(campaign, profile, options.scripts):
        print(script)
    return 0


def _show_plan(campaign: Campaign) -> int:
    """Print the experiments in order, with those that are already done."""
    from heartlm.extensions.cluster.campaign.state import progress_of, words_to_continue

    for experiment in campaign.experiments:
        progress = progress_of(experiment, campaign.folder)
        needs = f"  needs {', '.join(experiment.needs)}" if experiment.needs else ""
        print(f"{experiment.name}: {experiment.topology.words}{needs}")
        done = progress == "done"
        print("  done" if done else f"  $ {shlex.join(['heartlm', *words_to_continue(experiment, progress)])}")
    return 0


def _run_here(campaign: Campaign, parallel: int, names: Sequence[str]) -> int:
    from heartlm.extensions.cluster.campaign.local import LocalRunner

    if LocalRunner(campaign, names, parallel, usable_cores(), say).run():
        say("stopped; the same command continues from here")
        return STOPPED_STATUS
    return _summed_up(campaign, names)


def _run_on_slurm(campaign: Campaign, options: RunOptions, profile: SiteProfile) -> int:
    from heartlm.extensions.cluster.campaign.slurm import queue_of, submit_campaign
    from heartlm.extensions.cluster.submit import poll

    submit_campaign(campaign, profile, say)
    if not options.wait:
        say(f"see how far it is with:  heartlm campaign status {shlex.quote(str(options.campaign))}")
        return 0
    next(queue for queue in poll(lambda: queue_of(campaign), say) if not queue)
    return _summed_up(campaign, [each.name for each in campaign.experiments])


def _summed_up(campaign: Campaign, names: Sequence[str]) -> int:
    """Print a summary of the experiments `names`; return 0 if all of them are done."""
    from heartlm.extensions.cluster.campaign.state import rows_of, summary

    rows = [row for row in rows_of(campaign, {}) if row.name in names]
    print("\n".join(summary(rows)))
    return 0 if all(row.state == "done" for row in rows) else 1


def run_status(argv: Sequence[str]) -> int:
    """Show the state of each experiment of a campaign, with the last log line of failed ones.

    Examples:
        heartlm campaign status widths.yaml
        heartlm campaign status widths.yaml --json
        watch heartlm campaign status widths.yaml
    """
    options = parse(StatusOptions, argv, "campaign status", run_status, positionals=["campaign"])
    from heartlm.extensions.cluster.campaign.campaign import load_campaign
    from heartlm.extensions.cluster.campaign.slurm import queue_of
    from heartlm.extensions.cluster.campaign.state import rows_of, summary

    campaign = load_campaign(existing(options.campaign, "campaign"))
    rows = rows_of(campaign, queue_of(campaign))
    if options.json:
        print(json.dumps([vars(row) for row in rows], indent=2))
        return 0
    from heartlm.cli.score_table import aligned
    from heartlm.report.numbers import duration

    table = [["experiment", "state", "step", "time", ""]]
    for row in rows:
        step = "" if row.steps is None else f"{row.step} of {row.steps}"
        table.append([row.name, row.state, step, "" if row.seconds is None else duration(row.seconds), row.note])
    print("\n".join([*aligned(table, str.ljust), summary(rows)[0]]))
    return 0


SUBCOMMANDS = {
    "run": (
        f"{__name__}:run_run",
        "run the unfinished experiments, on SLURM or on this machine",
    ),
    "status": (f"{__name__}:run_status", "show the progress of the experiments"),
}
