"""Who learns: a client has patients nobody else sees, and gives away nothing but what training on them changed.

global vector ─► client: some local steps on its own patients ─► Update (how the vector should change)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Update:
    """What leaves a client after a round.

    Attributes:
        delta: local weights less global ones, float64 `[P]` in main memory: in double precision, so that the global
            weights plus the delta of a single client are that client's weights to the last bit.
        num_samples: the client's training samples (beats, or tokens of a corpus): its weight in the mean.
        num_steps: local steps it took; fewer than asked for where a deadline came first.
        loss: mean over these steps.
        seconds: it took.
    """

    delta: Tensor
    num_samples: int
    num_steps: int
    loss: float
    seconds: float


class ClientLost(Exception):  # noqa: N818
    """A client died in the middle of a round; the round ends without it, and it may take part in the next."""


@dataclass(frozen=True)
class Errand:
    """What a client is asked to do in a round.

    Attributes:
        round_index: from 0.
        num_steps: local steps at most.
        deadline_s: seconds after which no further step is begun; None for no deadline.
        dies_after: local steps after which it dies, to see what becomes of the rest; None where it lives.
    """

    round_index: int
    num_steps: int
    deadline_s: float | None = None
    dies_after: int | None = None


Between = Callable[[], None]
"""Called between local steps, so that sums that are on their way get on."""


def nothing() -> None:
    """Do nothing between local steps."""


class Client(Protocol):
    """One that learns on its own patients."""

    @property
    def name(self) -> str:
        """Unique in the study."""

    @property
    def num_samples(self) -> int:
        """Training samples: its weight in the mean."""

    def train(self, global_vector: Tensor, errand: Errand, between: Between = nothing) -> Update:
        """Take local steps from `global_vector`, float32 `[P]` in main memory, which stays as it is.

        Raises:
            ClientLost: it died; what it keeps between rounds is as it was before this one.
        """

    def state(self) -> dict[str, Tensor]:
        """What it keeps between rounds (the moments of its optimiser), in main memory; empty where nothing is kept."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take up what `state` gave."""
