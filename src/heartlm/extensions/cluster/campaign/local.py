"""Run a campaign on this machine: several experiments in parallel, each on its own cores.

    waiting ─► started when its needs are done and cores are free ─► done
                  ▲                                            └─► failed: retried once, then given up
                  └────────────────────────────────────────────────┘        its dependents do not run

A restarted campaign keeps finished results and resumes interrupted runs. Child processes end with this process, and
no experiment is started twice: the log of an attempt stays locked while any of its processes runs.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.campaign.campaign import Campaign, Experiment
from heartlm.extensions.cluster.campaign.state import (
    Attempt,
    attempts_of,
    failure,
    next_attempt,
    progress_of,
    words_to_continue,
)
from heartlm.extensions.cluster.gpus import MASK, visible_gpus
from heartlm.storage.atomic import open_lock
from heartlm.system.cores import Core, bind, cpus_of, format_cpus, share_of, share_of_cores
from heartlm.system.parent import end_with_parent

TRIES = 2
POLL_S = 0.05


class Running(NamedTuple):
    """A running experiment."""

    experiment: Experiment
    attempt: Attempt
    process: subprocess.Popen[bytes]


@dataclass
class LocalRunner:
    """Runner of the unfinished experiments of a campaign.

    Attributes:
        campaign: campaign to run.
        only: names of the experiments to run.
        parallel: number of experiments that run at the same time.
        cores: cores of this machine that the experiments share.
        say: function called with a line of text for every event.
    """

    campaign: Campaign
    only: Collection[str]
    parallel: int
    cores: Sequence[Core]
    say: Callable[[str], None]
    done: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)
    running: dict[int, Running] = field(default_factory=dict)
    """Running experiments by the part of the cores that they use."""
    stop_asked: bool = False

    def run(self) -> bool:
        """Run all unfinished experiments; return whether a signal stopped them, with checkpoints of the trainings.

        Raises:
            HeartlmError: a result folder contains a result of other settings, or another process runs one of the
                experiments.
        """
        num_cpus = len(cpus_of(self.cores))
        if not 1 <= self.parallel <= num_cpus:
            raise HeartlmError(f"parallel: {self.parallel} found, 1 to {num_cpus} expected, the CPUs there are")
        with open_lock(self.campaign.state_folder / "local.lock") as lock:
            # One byte of the file stands for an experiment: several processes may run experiments of a campaign at the
            # same time, as the jobs of whole nodes do, but not the same ones.
            for name in self.only:
                try:
                    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, zlib.crc32(name.encode()))
                except BlockingIOError:
                    raise HeartlmError(f"{self.campaign.name}: another process runs {name} already") from None
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, self._ask_to_stop)
            experiments = self.campaign.experiments
            self.done = {each.name for each in experiments if progress_of(each, self.campaign.folder) == "done"}
            self._wait_for_orphans()
            while not self.stop_asked and (self.running or self._ready() is not None):
                while len(self.running) < self.parallel and (experiment := self._ready()) is not None:
                    self._begin(experiment, min(set(range(self.parallel)) - self.running.keys()))
                time.sleep(POLL_S)
                self._end_finished()
            for each in self.running.values():
                each.process.terminate()
            while self.running:
                time.sleep(POLL_S)
                self._end_finished()
        return self.stop_asked

    def _ask_to_stop(self, number: int, frame: object) -> None:
        self.stop_asked = True

    def _wait_for_orphans(self) -> None:
        """Wait until all processes of an earlier, killed campaign have ended."""
        for name in self.only:
            for attempt in attempts_of(self.campaign, name):
                if attempt.is_locked():
                    self.say(f"{name}: waiting for a process of an earlier campaign to end")
                while attempt.is_locked() and not self.stop_asked:
                    time.sleep(POLL_S)

    def _ready(self) -> Experiment | None:
        """Return the first experiment that could start if cores were free."""
        busy = self.done | {each.experiment.name for each in self.running.values()}
        waiting = [each for each in self.campaign.experiments if each.name in self.only and each.name not in busy]
        fit = (each for each in waiting if self.failures[each.name] < TRIES and self.done.issuperset(each.needs))
        return next(fit, None)

    def _begin(self, experiment: Experiment, slot: int) -> None:
        progress = progress_of(experiment, self.campaign.folder)
        attempt = next_attempt(self.campaign, experiment.name)
        cores = share_of_cores(self.cores, slot, self.parallel)
        cpus, gpus, parent = cpus_of(cores), visible_gpus(), os.getpid()
        gpus = list(share_of(gpus, slot, self.parallel)) if gpus else []

        def settle() -> None:
            bind(cpus)
            end_with_parent(parent, signal.SIGTERM)

        with attempt.log.open("wb") as log:
            fcntl.flock(log, fcntl.LOCK_EX)  # the process and its children inherit the lock
            attempt.begin()
            process = subprocess.Popen(
                command_line(experiment, words_to_continue(experiment, progress), len(cores), len(gpus)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.campaign.folder,
                env=os.environ | {"OMP_NUM_THREADS": str(len(cores))} | ({MASK: ",".join(gpus)} if gpus else {}),
                start_new_session=True,  # Ctrl-C reaches only this process, which stops the others
                preexec_fn=settle,
            )
        self.running[slot] = Running(experiment, attempt, process)
        how = "resumed" if progress == "started" else "started"
        self.say(f"{experiment.name}: {how} on CPU {format_cpus(cpus)}")

    def _end_finished(self) -> None:
        for slot, (experiment, attempt, process) in list(self.running.items()):
            if process.poll() is None:
                continue
            del self.running[slot]
            is_success = experiment.run.is_success(process.returncode)
            attempt.end(0 if is_success else process.returncode)
            if self.stop_asked:
                continue
            name = experiment.name
            if is_success and progress_of(experiment, self.campaign.folder) == "done":
                self.done.add(name)
                self.say(f"{name}: done in {attempt.seconds:.0f} s")
                continue
            self.failures[name] += 1
            what = "failed again, given up" if self.failures[name] == TRIES else "failed, tried again"
            self.say(f"{name}: {what} ({failure(attempt)})")


def command_line(experiment: Experiment, words: Sequence[str], num_cores: int, num_devices: int) -> list[str]:
    """Return the command line for `words`, on the ranks of one node if there are enough devices or cores.

    The number of ranks affects only the duration.
    """
    topology = experiment.topology
    most_ranks = (num_devices or 1) if topology.gpus_per_node else num_cores
    num_ranks = min(topology.ranks_per_node, most_ranks) if experiment.run.is_training else 1
    torchrun = ["heartlm.extensions.cluster.torchrun", "--standalone", f"--nproc-per-node={num_ranks}", "-m"]
    return [sys.executable, "-m", *(torchrun if num_ranks > 1 else []), "heartlm", *words]
