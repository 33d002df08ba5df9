"""Ranks that do something together, and all learn of it when one of them fails.

Without a process group the only rank agrees with itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from heartlm.errors import HeartlmError

Result = TypeVar("Result")


_host: tuple[Any, Any] = None, None
"""A default group that is not of gloo, and the gloo group that goes with it."""


def host_group(timeout_s: float | None = None) -> Any:
    """The gloo group in which the main threads of all ranks exchange numbers; None without a process group.

    Every gloo group connects each rank with all others, so there is one for everything that ranks do in the same order:
    the default group, or next to NCCL one that is made once. All ranks call this the first time.
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
    """All ranks make it, and call its methods, in the same order.

    Args:
        timeout_s: after which a rank that does not answer counts as gone; by default, and where the group is there
            already, what the group has.
        apart: have a group of its own, for a thread that works next to the main one. In one group such a thread's
            exchange could meet that of another rank's main thread, as each rank runs the two in its own order.

    Attributes:
        rank: this one.
        num_ranks: how many there are.
    """

    def __init__(self, timeout_s: float | None = None, apart: bool = False) -> None:
        self._group = host_group(timeout_s)
        if apart and self._group is not None:
            self._group = _new_group(timeout_s)
        self.rank = dist.get_rank() if self._group else 0
        self.num_ranks = dist.get_world_size() if self._group else 1

    def all(self, act: Callable[[], Result]) -> list[Result]:
        """Call `act` on every rank and return everyone's results, by rank.

        Raises:
            HeartlmError: another rank's `act` failed; what its own `act` raised, a rank raises itself.
            RuntimeError: another rank has exited.
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
        """Call `act` on rank 0 and return its result on all ranks; it fails as `all` does."""
        return self.all(lambda: act() if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def for_torch(self) -> dict[str, Any]:
        """The keywords by which `torch.distributed.checkpoint` learns who takes part."""
        return {"process_group": self._group} if self._group else {"no_dist": True}
