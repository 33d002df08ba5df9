"""Number and placement of processes, and the time limit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from heartlm.errors import HeartlmError, require
from heartlm.system.progress import plural


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
        of_node = plural(self.gpus_per_node, "GPU") if self.gpus_per_node else plural(self.ranks_per_node, "CPU rank")
        return f"{plural(self.nodes, 'node')} × {of_node}"


def seconds_of(text: str) -> int:
    """Convert a SLURM time limit to seconds: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    Raises:
        HeartlmError: the text has another format.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", text.strip())
    if match is None:
        raise HeartlmError(f"time: {text!r} found, HH:MM:SS expected, for example 02:00:00 or 1-12:00:00")
    numbers = [int(number) for number in match[2].split(":")]
    # The first number is hours after days or as one of three, otherwise minutes (sbatch(1), --time).
    units_s = (3600, 60, 1) if match[1] or len(numbers) == 3 else (60, 1)
    total = int(match[1] or 0) * 86400 + sum(number * unit_s for number, unit_s in zip(numbers, units_s, strict=False))
    if total < 1:
        raise HeartlmError(f"time: {text!r} found, more than nothing expected")
    return total
