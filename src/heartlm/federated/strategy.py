"""What the server makes of a round: global weights, and the mean of what clients changed, give the next global weights.

The mean weighs clients by their samples (McMahan et al. 2017, arXiv 1602.05629). With a server rate of 1 and no
momentum the outer optimiser moves the global weights by exactly that mean, which is FedAvg; with Nesterov momentum it
is DiLoCo (Douillard et al. 2023, arXiv 2311.08105). FedAdam and FedYogi treat the mean as a gradient that points uphill
(Reddi et al. 2021, arXiv 2003.00295, algorithm 2). FedProx (Li et al. 2020, arXiv 1812.06127) averages as FedAvg does;
its proximal term is the client's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heartlm.federated.fixed_point import FixedPoint


class OuterSGD:
    """Stochastic gradient descent on the mean delta; FedAvg and DiLoCo are two settings of it.

    Args:
        learning_rate: of the server; 1 moves by the whole mean.
        momentum: share of the earlier movement that is kept; 0 for none.
        nesterov: look ahead along the momentum.
    """

    def __init__(self, learning_rate: float = 1.0, momentum: float = 0.0, nesterov: bool = False) -> None:
        self.learning_rate, self.momentum, self.nesterov = learning_rate, momentum, nesterov
        self._velocity: Tensor | None = None

    def step(self, vector: Tensor, mean: FixedPoint) -> Tensor:
        """The next global weights from `vector`, float32 `[P]`, which stays as it is, and the mean delta, `[P]`."""
        if self.learning_rate == 1 and not self.momentum:
            return mean.added_to(vector)
        movement = delta = mean.double()
        if self.momentum:
            before = torch.zeros_like(delta) if self._velocity is None else self._velocity
            self._velocity = self.momentum * before + delta
            movement = delta + self.momentum * self._velocity if self.nesterov else self._velocity
        return (vector + self.learning_rate * movement).float()

    def state(self) -> dict[str, Tensor]:
        """The velocity, where there is one."""
        return {} if self._velocity is None else {"velocity": self._velocity}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` gave."""
        self._velocity = state.get("velocity")


class Adaptive:
    """FedAdam and FedYogi: a rate of its own for every weight, from the moments of the mean delta.

    Args:
        learning_rate: of the server.
        beta1: what the first moment keeps of itself.
        beta2: what the second moment keeps of itself.
        tau: how adaptive: added to the root of the second moment, which starts at its square.
        yogi: let the second moment change by at most its own size, so that it does not forget all at once.
    """

    def __init__(
        self, learning_rate: float, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3, yogi: bool = False
    ) -> None:
        self.learning_rate, self.beta1, self.beta2, self.tau, self.yogi = learning_rate, beta1, beta2, tau, yogi
        self._first: Tensor | None = None
        self._second: Tensor | None = None

    def step(self, vector: Tensor, mean: FixedPoint) -> Tensor:
        """The next global weights from `vector`, float32 `[P]`, which stays as it is, and the mean delta, `[P]`."""
        delta = mean.double()
        first = torch.zeros_like(delta) if self._first is None else self._first
        second = torch.full_like(delta, self.tau**2) if self._second is None else self._second
        square = delta * delta
        self._first = self.beta1 * first + (1 - self.beta1) * delta
        if self.yogi:
            self._second = second - (1 - self.beta2) * square * torch.sign(second - square)
        else:
            self._second = self.beta2 * second + (1 - self.beta2) * square
        return (vector.double() + self.learning_rate * self._first / (self._second.sqrt() + self.tau)).float()

    def state(self) -> dict[str, Tensor]:
        """Both moments, after the first step."""
        if self._first is None or self._second is None:
            return {}
        return {"first": self._first, "second": self._second}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` gave."""
        self._first, self._second = state.get("first"), state.get("second")


Strategy = OuterSGD | Adaptive
"""An optimiser of the server."""
