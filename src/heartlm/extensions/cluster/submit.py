"""Submit a script to SLURM and follow the job until it ends."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.spawn import last_line
from heartlm.extensions.cluster.topology import seconds_of
from heartlm.system.progress import plural

UNDER_WAY = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "STOPPED", "RESIZING")
"""States after which a job continues; STOPPED is SLURM's state of a suspended job."""

FIRST_POLL_S, LONGEST_POLL_S = 0.25, 5.0
BUSY_S = 300.0
"""Time for which a question is repeated that SLURM does not answer."""

Answer = TypeVar("Answer")


class SlurmBusyError(HeartlmError):
    """A SLURM command failed, but may succeed later, for example when the controller is busy or restarts."""


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
        run_s: running time in seconds, without the time in the queue; states that differ in it alone are equal.
    """

    job: str
    state: str
    reason: str
    status: int
    restarts: int
    nodes: str
    output: Path
    run_s: float = field(default=0.0, compare=False)

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
        SlurmBusyError: the command fails; the text is its last line of output.
        HeartlmError: the command is missing, or fails because of its arguments.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise HeartlmError(f"{words[0]}: no such command, so no SLURM here: use --local") from error
    if done.returncode != 0:
        message = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        # "Invalid job id specified" is final; "Unable to contact slurm controller" and "Socket timed out" are not.
        kind = HeartlmError if "Invalid" in message else SlurmBusyError
        raise kind(f"{words[0]} refused: {message.removeprefix(f'{words[0]}: error: ')}")
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
        # 00:00:00 before the start, INVALID if the clocks of two machines differ
        float(seconds_of(lasted)) if re.search("[1-9]", lasted := fields.get("RunTime", "")) else 0.0,
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
        HeartlmError: SLURM is missing, has deleted the job's record or has not answered for `BUSY_S`.
    """
    last_words = ""
    for state in poll(lambda: state_of(job), say):
        if state.words != last_words:
            say(state.words)
            last_words = state.words
        if state.has_ended:
            break
    return state


def poll(ask: Callable[[], Answer], say: Callable[[str], object]) -> Iterator[Answer]:
    """Yield the answers of SLURM to a question that is repeated until the caller stops.

    The intervals grow from `FIRST_POLL_S` to `LONGEST_POLL_S`, and start again when the answer changes.

    Args:
        ask: function that asks SLURM.
        say: function called with one line when SLURM stops answering.

    Raises:
        HeartlmError: SLURM is missing, refuses the question or has not answered for `BUSY_S`.
    """
    pause_s, answered_s, is_busy = FIRST_POLL_S, time.monotonic(), False
    last: Answer | None = None
    while True:
        try:
            answer = ask()
        except SlurmBusyError as error:
            if time.monotonic() - answered_s > BUSY_S:
                raise
            if not is_busy:
                say(f"{error}; asking again for {BUSY_S / 60:.0f} minutes")
            is_busy = True
        else:
            answered_s, is_busy = time.monotonic(), False
            if answer != last:
                last, pause_s = answer, FIRST_POLL_S
            yield answer
        time.sleep(pause_s)
        # Each call is a remote procedure call to slurmctld, which all users share (scontrol(1), Performance).
        pause_s = min(LONGEST_POLL_S, 1.5 * pause_s)
