"""`heartlm launch`: run a command on a cluster or on this machine, without writing a script."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.commands.run_check import check_inputs, checked_options
from heartlm.extensions.cluster.profile import SiteOptions, SiteProfile, load_site
from heartlm.extensions.cluster.run_file import IN_PARTS, RunFile
from heartlm.extensions.cluster.topology import Topology, seconds_of
from heartlm.runs.run_folder import RunFolder
from heartlm.system.cores import usable_cpus
from heartlm.system.progress import plural
from heartlm.training.config import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(SiteOptions):
    """Options of `heartlm launch`.

    Attributes:
        run: a YAML file with the options of one command, and  command: pretrain, finetune, evaluate, tokenize, analyze,
            delineate, embed, data convert or data verify.
        profile: site profile: a name (generic or meluxina) or a YAML file; by default generic.
        nodes: number of nodes.
        gpus_per_node: number of GPUs per node; by default all in the profile; 0 trains on CPUs.
        ranks_per_node: number of processes per node; by default one per GPU, or 1 without GPUs.
        cpus_per_task: CPUs shared by the ranks of a node; by default in proportion to the GPUs of the node.
        parts: of a command on recordings, number of jobs of an array, each of which does a part; one more job joins
            them.
        time: time limit, as HH:MM:SS or D-HH:MM:SS.
        name: job name; by default the name of the file.
        logs: folder for the script and the output of the job.
        submit: write the script to the log folder and submit it; without --submit and --local it is printed.
        wait: after submitting, wait until the job has ended; the exit status is that of the command.
        local: run on this machine, without SLURM.
    """

    run: Path
    profile: str | None = None
    nodes: int = 1
    gpus_per_node: int | None = None
    ranks_per_node: int | None = None
    cpus_per_task: int | None = None
    parts: int | None = None
    time: str = "01:00:00"
    name: str | None = None
    logs: Path = Path("logs")
    submit: bool = False
    wait: bool = False
    local: bool = False


def run(arguments: Sequence[str]) -> int:
    """Run a command on a cluster or on this machine, without writing a script.

    Examples:
        heartlm launch foundation.yaml --nodes 2 --gpus-per-node 4 --time 02:00:00
        heartlm launch foundation.yaml --profile meluxina --account p200000 --nodes 2 --submit
        heartlm launch foundation.yaml --profile mysite.yaml --nodes 4 --submit --wait
        heartlm launch foundation.yaml --ranks-per-node 2 --local
        heartlm launch archive.yaml --profile mysite.yaml --parts 64 --submit
    """
    options = parse(LaunchOptions, arguments, "launch", run, positionals=["run"])
    if options.submit and options.local:
        raise HeartlmError("local: found together with --submit: a run runs here or on SLURM")
    if options.wait and not options.submit:
        raise HeartlmError("wait: there is nothing to wait for: give it with --submit")
    if options.local and options.profile is not None:
        raise HeartlmError("local: found together with --profile, which describes a site with SLURM")
    if options.local and options.nodes > 1:
        raise HeartlmError(f"nodes: {options.nodes} found, 1 expected: this machine is one node; use --ranks-per-node")
    if options.parts is not None and (options.local or options.parts < 1):
        raise HeartlmError(f"parts: {options.parts} found, at least 1 expected, and jobs of SLURM: leave --local out")
    num_cpus = len(usable_cpus())
    this_machine = SiteProfile(name="this machine", cpus_per_node=num_cpus, whole_nodes=True)
    profile = this_machine if options.local else load_site(options.profile or "generic", options)
    topology = _topology(options, profile)
    work, of_command = _work(options.run, topology)
    if options.submit:
        check_inputs(of_command, profile.image)
    if options.local:
        return _run_here(work, topology)
    from heartlm.extensions.cluster.script import render

    name = options.name or options.run.stem
    jobs = [(name, render(work, topology, profile, name=name, logs=options.logs, parts=options.parts))]
    if options.parts is not None:
        if work.command not in IN_PARTS:
            raise HeartlmError(f"parts: heartlm {work.command} has none, {', '.join(IN_PARTS)} have: leave --parts out")
        if work.command == "data verify" and work.out is None:
            raise HeartlmError(
                "out: nothing found, the folder in which parts of data verify leave their results expected"
            )
        whole = work.having(shards=options.parts) if work.command == "tokenize" else work
        jobs.append((f"{name}-join", render(whole, topology, profile, name=f"{name}-join", logs=options.logs)))
    if not options.submit:
        print("\n".join(script for _, script in jobs), end="")
        print(f"printed only: --submit queues it, --local runs it here; {options.logs} must exist", file=sys.stderr)
        return 0
    from heartlm.extensions.cluster.submit import follow, submit
    from heartlm.storage.atomic import write_text

    job, after = "", list[str]()
    for name, script in jobs:
        job = submit(write_text(options.logs / f"{name}.sh", script), *after)
        output = options.logs / f"{name}-{job}{'_*' if options.parts and not after else ''}.out"
        after = [f"--dependency=afterany:{job}"]  # the last job also does what a failed one left
        print(job)
        print(f"queued as job {job}; it will print to {output}", file=sys.stderr)
    if options.wait and (state := follow(job, lambda line: print(line, file=sys.stderr))).state != "COMPLETED":
        last_line = f": {line}" if (line := state.last_line()) else ""
        error = HeartlmError(
            f"job {job}: {state.state} with status {state.status}{last_line}  (all it printed is in {state.output})"
        )
        error.status = state.status or 2  # a job that was cancelled or ran out of time has status 0
        raise error
    return 0


def _run_here(run: RunFile, topology: Topology) -> int:
    """Replace this process by the command, or by the launcher of its ranks; a started training continues."""
    launcher = list[str]()
    if run.is_training:
        per_node = f"--nproc-per-node={topology.ranks_per_node}"
        launcher = ["heartlm.extensions.cluster.torchrun", "--standalone", per_node, "-m"]
        assert run.out is not None
        if (run.out / "run.json").exists() and not RunFolder(run.out).is_finished:
            print(f"{run.out} was started and is not finished: it continues", file=sys.stderr)
            run = run.resumed()
    os.environ["OMP_NUM_THREADS"] = str(max(1, topology.cpus_per_task // topology.ranks_per_node))
    os.execv(sys.executable, [sys.executable, "-m", *launcher, "heartlm", *run.argv()])


# --- what was asked for -----------------------------------------------------------------------------------------------


def _topology(options: LaunchOptions, profile: SiteProfile) -> Topology:
    """Return the resources; by default all GPUs of a node, and CPUs in proportion, or one per rank if unknown."""
    for name, most in (("gpus_per_node", profile.gpus_per_node), ("cpus_per_task", profile.cpus_per_node)):
        asked = getattr(options, name)
        if most and asked is not None and asked > most:
            raise HeartlmError(f"{name}: {asked} found, at most {most} expected: a node of {profile.name} has no more")
    gpus = profile.gpus_per_node if options.gpus_per_node is None else options.gpus_per_node
    ranks = (gpus or 1) if options.ranks_per_node is None else options.ranks_per_node
    share = 1.0 if profile.whole_nodes or not (gpus and profile.gpus_per_node) else gpus / profile.gpus_per_node
    cpus = max(ranks, int((profile.cpus_per_node or 0) * share))
    cpus = cpus if options.cpus_per_task is None else options.cpus_per_task
    return Topology(options.nodes, gpus, ranks, cpus, seconds_of(options.time))


def _work(path: Path, topology: Topology) -> tuple[RunFile, Any]:
    """Return the run of a file, with an output folder and a device, and its checked options."""
    work = RunFile.load(path)
    if not work.is_training:
        return work, checked_options(work, topology)
    work = work.having(out=work.out or f"runs/{path.stem}").with_device(topology.device)
    config: TrainingConfig = checked_options(work, topology)
    if config.device != topology.device:
        raise HeartlmError(f"device: {config.device} found, but {topology.words} asked for: leave device out")
    threads = (config.threads or 1) * topology.ranks_per_node
    if threads > topology.cpus_per_task:
        raise HeartlmError(
            f"cpus_per_task: {topology.cpus_per_task} found, at least {threads} expected: "
            f"{plural(topology.ranks_per_node, 'rank')} of {plural(config.threads or 1, 'thread')} share them"
        )
    return work, config
