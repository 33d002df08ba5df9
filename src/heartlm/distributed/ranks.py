"""Which of how many processes this is. Imports no torch.

`torchrun` states it in environment variables; without them a process is alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from heartlm.errors import HeartlmError

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""What `torchrun` sets to tell a process its place among ranks."""

LOST_STATUS = os.EX_TEMPFAIL
"""Exit status of a rank that lost another one, where torchrun may start both again; otherwise it is 2."""


class ReportedByPeer(HeartlmError):  # noqa: N818
    """An error that another rank tells the user about."""


class PeerLost(HeartlmError):  # noqa: N818
    """Another rank has exited, or does not answer."""


def status_of(error: HeartlmError, environment: Mapping[str, str] = os.environ) -> int:
    """The exit status of a rank that ends with `error`."""
    is_lost = isinstance(error, PeerLost) or isinstance(error.__cause__, PeerLost)
    return LOST_STATUS if is_lost and environment.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" else 2


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Attributes:
        rank: of this process, 0 to below `world_size`.
        world_size: how many train together.
        local_rank: of this process among those of its machine.
        local_world_size: how many of them are on its machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes and speaks for all."""
        return self.rank == 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Ranks:
        """What `torchrun` set; alone where it set nothing.

        Raises:
            HeartlmError: a variable is missing or impossible; the text names it.
        """
        if "WORLD_SIZE" not in environment:
            return cls()
        hint, number = "start the ranks with torchrun, or unset WORLD_SIZE to train alone", dict[str, int]()
        for name in RANK_VARIABLES:
            try:
                number[name] = int(environment[name])
            except (KeyError, ValueError):
                found = repr(environment[name]) if name in environment else "nothing"
                raise HeartlmError(f"{name}: {found} found, a whole number expected: {hint}") from None
        for inner, outer in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
            if not 0 <= number[inner] < number[outer]:
                raise HeartlmError(f"{inner}: {number[inner]} found, below {outer} {number[outer]} expected: {hint}")
        return cls(*number.values())
