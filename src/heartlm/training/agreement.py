"""Ranks that do something together, and all learn of it when one of them fails.

It has a gloo group of its own, so a thread may use it while the default group reduces gradients. Without a process
group the only rank agrees with itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from heartlm.errors import HeartlmError

Result = TypeVar("Result")


class Agreement:
    """All ranks make it, and call its methods, in the same order.

    Args:
        timeout_s: after which a rank that does not answer counts as gone; by default half an hour.

    Attributes:
        rank: this one.
        num_ranks: how many there are.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        self._group = None
        if dist.is_available() and dist.is_initialized():
            timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
            self._group = dist.new_group(backend="gloo", timeout=timeout)
        self.rank = dist.get_rank() if self._group else 0
        self.num_ranks = dist.get_world_size() if self._group else 1

    def all(self, act: Callable[[], Result]) -> list[Result]:
        """Call `act` on every rank and return everyone's results, by rank.

        Raises:
            HeartlmError: another rank's `act` failed; what its own `act` raised, a rank raises itself.
            RuntimeError: another rank has gone.
        """
        result, error = None, None
        try:
            result = act()
        except Exception as raised:
            error = raised
        outcomes = self._gathered((result, None if error is None else f"rank {self.rank}: {error}"))
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

    def _gathered(self, mine: Any) -> list[Any]:
        if self._group is None:
            return [mine]
        everyones: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(everyones, mine, group=self._group)
        return everyones
