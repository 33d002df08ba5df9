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

from heartlm.extensions.federated.fixed_point import FixedPoint
from heartlm.extensions.federated.study_file import FederatedConfig


class OuterSGD:
    """Stochastic gradient descent on the mean delta; FedAvg and DiLoCo are two settings of it.

    Args:
        learning_rate: of the server; 1 moves by the whole mean.
        momentum: fraction of the earlier movement that is kept, with Nesterov's look ahead along it; 0 for none.

    Attributes:
        kept: the velocity between rounds, float64 `[P]`, where there is momentum.
    """

    def __init__(self, learning_rate: float = 1.0, momentum: float = 0.0) -> None:
        self.learning_rate, self.momentum = learning_rate, momentum
        self.kept = dict[str, Tensor]()

    def step(self, vector: Tensor, mean: FixedPoint) -> Tensor:
        """The next global weights from `vector`, float32 `[P]`, which stays as it is, and the mean delta, `[P]`."""
        if self.learning_rate == 1 and not self.momentum:
            return mean.added_to(vector)
        movement = delta = mean.double()
        if self.momentum:
            before = self.kept["velocity"] if self.kept else torch.zeros_like(delta)
            velocity = self.momentum * before + delta
            movement = delta + self.momentum * velocity
            self.kept["velocity"] = velocity
        return (vector + self.learning_rate * movement).float()


class Adaptive:
    """FedAdam and FedYogi: a rate of its own for every weight, from the moments of the mean delta.

    Args:
        learning_rate: of the server.
        beta1: what the first moment keeps of itself.
        beta2: what the second moment keeps of itself.
        tau: how adaptive: added to the root of the second moment, which starts at its square.
        yogi: let the second moment change by at most its own size, so that it does not forget all at once.

    Attributes:
        kept: both moments between rounds, float64 `[P]` each.
    """

    def __init__(
        self, learning_rate: float, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3, yogi: bool = False
    ) -> None:
        self.learning_rate, self.beta1, self.beta2, self.tau, self.yogi = learning_rate, beta1, beta2, tau, yogi
        self.kept = dict[str, Tensor]()

    def step(self, vector: Tensor, mean: FixedPoint) -> Tensor:
        """The next global weights from `vector`, float32 `[P]`, which stays as it is, and the mean delta, `[P]`."""
        delta = mean.double()
        kept = self.kept or {"first": torch.zeros_like(delta), "second": torch.full_like(delta, self.tau**2)}
        before, square = kept["second"], delta * delta
        first = self.beta1 * kept["first"] + (1 - self.beta1) * delta
        if self.yogi:
            second = before - (1 - self.beta2) * square * torch.sign(before - square)
        else:
            second = self.beta2 * before + (1 - self.beta2) * square
        self.kept = {"first": first, "second": second}
        return (vector.double() + self.learning_rate * first / (second.sqrt() + self.tau)).float()


Strategy = OuterSGD | Adaptive
"""An optimiser of the server."""

LEARNING_RATES = {"fedadam": 0.01, "fedyogi": 0.01, "diloco": 0.7}
"""Server learning rate by strategy; 1 for the others."""


def strategy_of(study: FederatedConfig) -> Strategy:
    """Return the server optimiser of `study`."""
    rate = study.server_learning_rate or LEARNING_RATES.get(study.strategy, 1.0)
    if study.strategy in ("fedadam", "fedyogi"):
        return Adaptive(rate, yogi=study.strategy == "fedyogi")
    return OuterSGD(rate, momentum=0.9) if study.strategy == "diloco" else OuterSGD(rate)
