"""Number and placement of processes, and the time limit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from heartlm.errors import HeartlmError, require

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


@dataclass(frozen=True)
class Topology:
    """Shape of an allocation: one task per node, which starts the ranks of that node.

    Attributes:
        nodes: number of nodes.
        gpus_per_node: number of GPUs per node; 0 trains on CPUs.
        ranks_per_node: number of training processes per node; usually one per GPU.
        cpus_per_task: number of CPUs that the ranks of a node share.
        time_s: time limit in seconds.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    ranks_per_node: int = 1
    cpus_per_task: int = 1
    time_s: int = 3600

    def __post_init__(self) -> None:
        counts = ("nodes", "ranks_per_node", "cpus_per_task", "time_s")
        require(self, lambda value: value >= 1, "at least 1", *counts)
        require(self, lambda value: value >= 0, "at least 0", "gpus_per_node")
        if 0 < self.gpus_per_node < self.ranks_per_node:
            raise HeartlmError(
                f"ranks_per_node: {self.ranks_per_node} found, at most {self.gpus_per_node} expected: "
                "each rank wants a GPU of its own"
            )

    @property
    def world_size(self) -> int:
        """Total number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def device(self) -> str:
        """Device of the ranks: cuda or cpu."""
        return "cuda" if self.gpus_per_node else "cpu"

    @property
    def words(self) -> str:
        """Return a description, for example `2 nodes × 4 GPUs`."""
        of_node = counted(self.gpus_per_node, "GPU") if self.gpus_per_node else counted(self.ranks_per_node, "CPU rank")
        return f"{counted(self.nodes, 'node')} × {of_node}"


def counted(number: int, what: str) -> str:
    """Return a number and a noun, for example `1 node` or `2 nodes`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def seconds_of(text: str) -> int:
    """Convert a SLURM time limit to seconds: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    Raises:
        HeartlmError: the text has another format.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise HeartlmError(f"time: {text!r} found, HH:MM:SS expected, for example 02:00:00 or 1-12:00:00")
    numbers = [int(match[name]) for name in ("first", "second", "third") if match[name] is not None]
    if match["days"] is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    total = ((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if total < 1:
        raise HeartlmError(f"time: {text!r} found, more than nothing expected")
    return total


def time_limit(seconds: int) -> str:
    """Format `seconds` as a SLURM time limit: HH:MM:SS, or D-HH:MM:SS from one day."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02}:{minute:02}:{second:02}"
    return f"{days}-{clock}" if days else clock
