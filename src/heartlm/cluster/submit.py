"""Handing a script to SLURM, and following the job until it has ended."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cluster.topology import seconds_of
from heartlm.distributed.spawn import last_line
from heartlm.errors import HeartlmError

UNDER_WAY = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "STOPPED", "RESIZING")
"""States after which a job continues; STOPPED is one of SLURM's own and means that it was halted."""

FIRST_POLL_S, LONGEST_POLL_S = 0.25, 5.0


@dataclass(frozen=True)
class JobState:
    """What SLURM says of a job.

    Attributes:
        job: its number.
        state: such as PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT.
        reason: why it waits, or why it ended.
        status: exit status of the script; 0 until it has ended.
        restarts: how often it queued again.
        nodes: where it runs, as SLURM writes it: node[1-2].
        output: the file with what it prints.
        run_s: how long it ran, without its time in the queue.
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
        """Whether nothing more will come."""
        return self.state not in UNDER_WAY

    @property
    def words(self) -> str:
        """For example `job 7: RUNNING on node[1-2], after 1 restart`."""
        where = f" on {self.nodes}" if self.state == "RUNNING" else ""
        why = f" ({self.reason})" if self.state == "PENDING" and self.reason != "None" else ""
        restarts = f", queued again {self.restarts} times" if self.restarts else ""
        return f"job {self.job}: {self.state}{where}{why}{restarts}"

    def last_line(self) -> str:
        """The last line that the job printed, as far as it printed any."""
        return last_line(self.output)


def submit(script: Path, *options: str, arguments: Sequence[str] = ()) -> str:
    """Queue a script as it lies there, to be run with `arguments`; return the number of the job.

    Raises:
        HeartlmError: SLURM is not here, or refuses.
    """
    return call("sbatch", "--parsable", *options, str(script), *arguments).strip().partition(";")[0]


def call(*words: str) -> str:
    """What a command of SLURM prints.

    Raises:
        HeartlmError: it is not here, or fails; the text is its own last line.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise HeartlmError(f"{words[0]}: no such command, so no SLURM here: use --dry-run or --local") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise HeartlmError(f"{words[0]} refused: {said[-1].removeprefix(f'{words[0]}: error: ')}")
    return done.stdout


def state_of(job: str) -> JobState:
    """What SLURM says of a job, which it forgets some minutes after its end.

    Raises:
        HeartlmError: SLURM is not here, or does not know the job.
    """
    words = call("scontrol", "--oneliner", "show", "job", job).split()
    fields = dict(word.partition("=")[::2] for word in words)
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
    """Write a script, submit it and wait for its end; why the job failed, if it did, and how many seconds it ran.

    Raises:
        HeartlmError: SLURM is not here, or refuses the script.
    """
    script.write_text(text, encoding="utf-8")
    state = follow(submit(script), lambda line: None)
    good = state.state == "COMPLETED"
    return None if good else f"{state.words} with status {state.status}: {state.last_line()}", state.run_s


def follow(job: str, say: Callable[[str], object]) -> JobState:
    """Wait until a job has ended, through every requeue; `say` each change.

    Raises:
        HeartlmError: SLURM is not here, or has forgotten the job.
    """
    said, pause_s = "", FIRST_POLL_S
    while True:
        state = state_of(job)
        if state.words != said:
            say(state.words)
            said, pause_s = state.words, FIRST_POLL_S
        if state.has_ended:
            return state
        time.sleep(pause_s)
        pause_s = min(LONGEST_POLL_S, 1.5 * pause_s)
