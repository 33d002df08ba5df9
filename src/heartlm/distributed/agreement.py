"""Joint actions of ranks: if an action fails on one rank, it fails on all.

Without a process group there is a single rank.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from heartlm.errors import HeartlmError

Result = TypeVar("Result")


# The NCCL default group, and its gloo group.
_host: tuple[Any, Any] = None, None


def host_group(timeout_s: float | None = None) -> Any:
    """Return the gloo group for the main threads of all ranks; None without a process group.

    Every gloo group connects each rank with all others, so all operations in the same order share one: the default
    group, or with NCCL a group created once. The first call is collective.
    """
    global _host
    if not (dist.is_available() and dist.is_initialized()):
        return None
    world = dist.group.WORLD
    if dist.get_backend() == "gloo":
        return world
    if _host[0] is not world:
        _host = world, _new_group(timeout_s)
    return _host[1]


def _new_group(timeout_s: float | None) -> Any:
    return dist.new_group(backend="gloo", timeout=None if timeout_s is None else timedelta(seconds=timeout_s))


class RankConsensus:
    """Runs actions on all ranks. All ranks create it and call its methods in the same order.

    Args:
        timeout_s: seconds after which a rank that does not respond counts as lost; by default, and for an existing
            group, the timeout of the group.
        own_group: whether to create a separate group, for a background thread. In a shared group its collectives could
            match those of the main thread of another rank.

    Attributes:
        rank: rank of this process.
        num_ranks: number of ranks.
    """

    def __init__(self, timeout_s: float | None = None, own_group: bool = False) -> None:
        self._group = host_group(timeout_s)
        if own_group and self._group is not None:
            self._group = _new_group(timeout_s)
        self.rank = dist.get_rank() if self._group else 0
        self.num_ranks = dist.get_world_size() if self._group else 1

    def all(self, act: Callable[[], Result]) -> list[Result]:
        """Call `act` on every rank and return the results by rank.

        Raises:
            HeartlmError: `act` failed on another rank; an error of this rank is raised unchanged.
            RuntimeError: another rank exited.
        """
        result, error = None, None
        try:
            result = act()
        except Exception as raised:
            error = raised
        outcomes: list[Any] = [(result, None if error is None else f"rank {self.rank}: {error}")] * self.num_ranks
        if self._group is not None:
            dist.all_gather_object(outcomes, outcomes[0], group=self._group)
        if error is not None:
            raise error
        for _, message in outcomes:
            if message is not None:
                raise HeartlmError(message)
        return [result for result, _ in outcomes]

    def first(self, act: Callable[[], Result]) -> Result:
        """Call `act` on rank 0 and return its result on all ranks; errors as in `all`."""
        return self.all(lambda: act() if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def for_torch(self) -> dict[str, Any]:
        """Return the keyword arguments of `torch.distributed.checkpoint` for this group."""
        return {"process_group": self._group} if self._group else {"no_dist": True}
