"""Rank of this process and number of ranks. Imports no torch.

`torchrun` sets them as environment variables; without these, a process is the only rank.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import NamedTuple

from heartlm.errors import HeartlmError

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Environment variables that `torchrun` sets for each rank."""

STOPPED_STATUS = 128 + signal.SIGTERM
"""Exit status of ranks that were asked to stop and wrote a checkpoint."""

LINGER_S = 3.0
"""Seconds that a rank which prints nothing waits: a launcher ends all ranks when the first exits."""


class ReportedByPeer(HeartlmError):  # noqa: N818
    """An error that another rank reports to the user."""


class Ranks(NamedTuple):
    """Rank of this process and number of ranks.

    Attributes:
        rank: rank of this process, 0 to below `world_size`.
        world_size: number of ranks.
        local_rank: rank of this process on its machine.
        local_world_size: number of ranks on its machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Ranks:
        """Return the ranks set by `torchrun`, or a single rank without it.

        Raises:
            HeartlmError: a variable is missing or invalid; the message names it.
        """
        if "WORLD_SIZE" not in environment:
            return cls()
        hint, number = "start the ranks with torchrun, or unset WORLD_SIZE to train alone", dict[str, int]()
        for name in RANK_VARIABLES:
            try:
                number[name] = int(environment[name])
            except (KeyError, ValueError):
                value = repr(environment[name]) if name in environment else "nothing"
                raise HeartlmError(f"{name}: {value} found, a whole number expected: {hint}") from None
        for inner, outer in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
            if not 0 <= number[inner] < number[outer]:
                raise HeartlmError(f"{inner}: {number[inner]} found, below {outer} {number[outer]} expected: {hint}")
        return cls(*number.values())
