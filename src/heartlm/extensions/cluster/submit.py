"""Submit a script to SLURM and follow the job until it ends."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heartlm.distributed.spawn import last_line
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.topology import seconds_of
from heartlm.system.progress import plural

UNDER_WAY = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "STOPPED", "RESIZING")
"""States after which a job continues; STOPPED is SLURM's state of a suspended job."""

FIRST_POLL_S, LONGEST_POLL_S = 0.25, 5.0


@dataclass(frozen=True)
class JobState:
    """State of a SLURM job.

    Attributes:
        job: job number.
        state: state such as PENDING, RUNNING, COMPLETED, FAILED, CANCELLED or TIMEOUT.
        reason: reason for waiting or for ending.
        status: exit status of the script; 0 until the job has ended.
        restarts: number of requeues.
        nodes: nodes in SLURM's format, such as node[1-2].
        output: output file of the job.
        run_s: running time in seconds, without the time in the queue.
    """

    job: str
    state: str
    reason: str
    status: int
    restarts: int
    nodes: str
    output: Path
    run_s: float = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended for good."""
        return self.state not in UNDER_WAY

    @property
    def words(self) -> str:
        """Return a description, for example `job 7: RUNNING on node[1-2], queued again 1 time`."""
        where = f" on {self.nodes}" if self.state == "RUNNING" else ""
        why = f" ({self.reason})" if self.state == "PENDING" and self.reason != "None" else ""
        restarts = f", queued again {plural(self.restarts, 'time')}" if self.restarts else ""
        return f"job {self.job}: {self.state}{where}{why}{restarts}"

    def last_line(self) -> str:
        """Return the last line of the job's output, or an empty text."""
        return last_line(self.output)


def submit(script: Path, *options: str) -> str:
    """Submit a script as it is; return the job number.

    Raises:
        HeartlmError: SLURM is missing or refuses the script.
    """
    # It prints JOB, or JOB;CLUSTER where there are several clusters.
    return call("sbatch", "--parsable", *options, str(script)).strip().partition(";")[0]


def call(*words: str) -> str:
    """Return the output of a SLURM command.

    Raises:
        HeartlmError: the command is missing or fails; the text is its last line of output.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise HeartlmError(f"{words[0]}: no such command, so no SLURM here: use --local") from error
    if done.returncode != 0:
        messages = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise HeartlmError(f"{words[0]} refused: {messages[-1].removeprefix(f'{words[0]}: error: ')}")
    return done.stdout


def state_of(job: str) -> JobState:
    """Return SLURM's state of a job; SLURM deletes it some minutes after the job's end.

    Raises:
        HeartlmError: SLURM is missing or has no record of the job.
    """
    # A path or a name may have blanks, so a value ends where the next NAME= begins.
    line = call("scontrol", "--oneliner", "show", "job", job)
    fields = dict(re.findall(r"(?:^| )([\w:/]+)=(.*?)(?= +[\w:/]+=|\s*$)", line))
    status, _, number = fields.get("ExitCode", "0:0").partition(":")
    return JobState(
        job,
        fields["JobState"],
        fields.get("Reason", "None"),
        int(status) or (128 + int(number) if number != "0" else 0),
        int(fields.get("Restarts", 0)),
        fields.get("NodeList", ""),
        Path(fields.get("StdOut", "")),
        0.0 if (lasted := fields.get("RunTime", "00:00:00")) == "00:00:00" else float(seconds_of(lasted)),
    )


def run_job(script: Path, text: str) -> tuple[str | None, float]:
    """Write a script, submit it and wait for its end; return the reason of a failure or None, and the run time in s.

    Raises:
        HeartlmError: SLURM is missing or refuses the script.
    """
    script.write_text(text, encoding="utf-8")
    state = follow(submit(script), lambda line: None)
    good = state.state == "COMPLETED"
    return None if good else f"{state.words} with status {state.status}: {state.last_line()}", state.run_s


def follow(job: str, say: Callable[[str], object]) -> JobState:
    """Wait until a job has ended, through every requeue; call `say` for each change.

    Raises:
        HeartlmError: SLURM is missing or has deleted the job's record.
    """
    last_words, pause_s = "", FIRST_POLL_S
    while True:
        state = state_of(job)
        if state.words != last_words:
            say(state.words)
            last_words, pause_s = state.words, FIRST_POLL_S
        if state.has_ended:
            return state
        time.sleep(pause_s)
        # Each call is a remote procedure call to slurmctld, which all users share (scontrol(1), Performance).
        pause_s = min(LONGEST_POLL_S, 1.5 * pause_s)
