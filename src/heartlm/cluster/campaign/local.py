"""Run a campaign on this machine: several experiments in parallel, each on its own cores.

    waiting ─► started when its needs are done and cores are free ─► done
                  ▲                                            └─► failed: retried once, then given up
                  └────────────────────────────────────────────────┘        its dependents do not run

A restarted campaign keeps finished results and resumes interrupted runs. Child processes end with this process, and
no experiment is started twice: the log of an attempt stays locked while any of its processes runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO

from heartlm.cluster.campaign.campaign import Campaign, Experiment
from heartlm.cluster.campaign.done import progress_of, words_to_continue
from heartlm.cluster.campaign.state import Attempt, attempts_of, failure, next_attempt
from heartlm.cluster.gpus import MASK, visible_gpus
from heartlm.cluster.local import answered
from heartlm.cores import Core, cpus_of, format_cpus, share_of, share_of_cores
from heartlm.errors import HeartlmError
from heartlm.files import sole_holder
from heartlm.parent import end_with_parent

TRIES = 2
POLL_S = 0.05


class CampaignStopped(Exception):  # noqa: N818
    """The campaign was stopped by a signal; running trainings have written checkpoints."""


@dataclass
class _Running:
    experiment: Experiment
    attempt: Attempt
    process: subprocess.Popen[bytes]
    slot: int


@dataclass
class LocalRunner:
    """Runner of the unfinished experiments of a campaign.

    Attributes:
        campaign: campaign to run.
        parallel: number of experiments that run at the same time.
        cores: cores of this machine that the experiments share.
        say: function called with a line of text for every event.
        only: names of the experiments to run; None for all.
    """

    campaign: Campaign
    parallel: int
    cores: Sequence[Core]
    say: Callable[[str], None]
    only: frozenset[str] | None = None
    done: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    tries: dict[str, int] = field(default_factory=dict)
    running: list[_Running] = field(default_factory=list)
    stop_asked: bool = False

    def run(self) -> None:
        """Run all unfinished experiments.

        Raises:
            HeartlmError: a result folder contains a result of other settings, or the campaign is already running.
            CampaignStopped: a signal stopped the campaign.
        """
        if not 1 <= self.parallel <= (num_cpus := len(cpus_of(self.cores))):
            raise HeartlmError(f"parallel: {self.parallel} found, 1 to {num_cpus} expected, the CPUs there are")
        of_these = "all" if self.only is None else hashlib.sha256(",".join(sorted(self.only)).encode()).hexdigest()[:12]
        taken = f"{self.campaign.name}: another process runs this campaign already"
        with sole_holder(self.campaign.state_folder / f"local-{of_these}.lock", taken), answered(self._ask_to_stop):
            progress = {each.name: progress_of(each, self.campaign.folder) for each in self.campaign.experiments}
            self.done = {name for name in progress if progress[name] == "done"}
            for name in self.only or progress:
                self._wait_for_orphans(name)
            while not self.stop_asked and (self.running or self._ready() is not None):
                while len(self.running) < self.parallel and (experiment := self._ready()) is not None:
                    self._begin(experiment, min(set(range(self.parallel)) - {each.slot for each in self.running}))
                time.sleep(POLL_S)
                self._end_finished()
            self._stop_running()
        if self.stop_asked:
            raise CampaignStopped("stopped; the same command continues from here")

    def _ask_to_stop(self, number: int) -> None:
        self.stop_asked = True

    # --- start ------------------------------------------------------------------------------------------------------

    def _ready(self) -> Experiment | None:
        """Return the first experiment that could start if cores were free."""
        busy = {each.experiment.name for each in self.running} | self.done | self.given_up
        mine = [each for each in self.campaign.experiments if self.only is None or each.name in self.only]
        waiting = (each for each in mine if each.name not in busy)
        return next((each for each in waiting if all(need in self.done for need in each.needs)), None)

    def _begin(self, experiment: Experiment, slot: int) -> None:
        progress = progress_of(experiment, self.campaign.folder)
        words = words_to_continue(experiment, progress)
        attempt = next_attempt(self.campaign, experiment.name)
        cores = share_of_cores(self.cores, slot, self.parallel)
        with attempt.log.open("wb") as log:
            fcntl.flock(log, fcntl.LOCK_EX)  # the process and its children inherit the lock
            attempt.begin()
            there = visible_gpus()
            devices = share_of(there, slot, self.parallel) if there else []
            words = command_line(experiment, words, len(cores), len(devices))
            process = _start(words, self.campaign, cores, devices, log)
        self.running.append(_Running(experiment, attempt, process, slot))
        self.tries[experiment.name] = self.tries.get(experiment.name, 0) + 1
        how = "resumed" if progress == "started" else "started"
        self.say(f"{experiment.name}: {how} on CPU {format_cpus(cpus_of(cores))}")

    # --- end --------------------------------------------------------------------------------------------------------

    def _end_finished(self) -> None:
        for each in [each for each in self.running if each.process.poll() is not None]:
            self.running.remove(each)
            each.attempt.end(each.process.returncode)
            name = each.experiment.name
            if self.stop_asked:
                continue
            if each.attempt.status == 0 and progress_of(each.experiment, self.campaign.folder) == "done":
                self.done.add(name)
                self.say(f"{name}: done in {each.attempt.seconds:.0f} s")
            elif self.tries[name] < TRIES:
                self.say(f"{name}: failed ({failure(each.attempt)}), tried again")
            else:
                self.given_up.add(name)
                self.say(f"{name}: failed again ({failure(each.attempt)}), given up")

    def _stop_running(self) -> None:
        for each in self.running:
            each.process.terminate()
        while self.running:
            time.sleep(POLL_S)
            self._end_finished()

    def _wait_for_orphans(self, name: str) -> None:
        """Wait until all processes of an earlier, killed campaign have ended for an experiment."""
        for attempt in attempts_of(self.campaign, name):
            if attempt.is_locked():
                self.say(f"{name}: waiting for a process of an earlier campaign to end")
            while attempt.is_locked() and not self.stop_asked:
                time.sleep(POLL_S)


def _start(
    words: Sequence[str], campaign: Campaign, cores: Sequence[Core], devices: Sequence[str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    parent, cpus = os.getpid(), cpus_of(cores)

    def settle() -> None:
        os.sched_setaffinity(0, cpus)
        end_with_parent(parent, signal.SIGTERM)

    seen = {MASK: ",".join(devices)} if devices else {}
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=campaign.folder,
        env=os.environ | {"OMP_NUM_THREADS": str(len(cores))} | seen,
        start_new_session=True,  # Ctrl-C reaches only this process, which stops the others
        preexec_fn=settle,
    )


def command_line(experiment: Experiment, words: Sequence[str], num_cores: int, num_devices: int) -> list[str]:
    """Return the command line for `words`, on the ranks of one node if there are enough devices or cores.

    The number of ranks affects only the duration.
    """
    topology = experiment.topology
    places = (num_devices or 1) if topology.gpus_per_node else num_cores
    num_ranks = min(topology.ranks_per_node, places) if experiment.run.is_training else 1
    if num_ranks == 1:
        return [sys.executable, "-m", "heartlm", *words]
    torchrun = [sys.executable, "-m", "heartlm.cluster.torchrun", "--standalone", f"--nproc-per-node={num_ranks}"]
    return [*torchrun, "-m", "heartlm", *words]
