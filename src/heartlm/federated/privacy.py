"""Differential privacy of clients: updates of bounded length, Gaussian noise in their sum, and what that promises.

    delta ─► no longer than C ─► + this client's share of the noise ─► out of the client
                                 all shares together: normal, sigma = multiplier x C

Every client weighs the same, whatever its samples, for a weight would be a longer arm. What is private is one client
with all its patients; one patient only where each client is one. Neighbours are two studies of which one has the
client's update and the other has zeros in its place (McMahan et al. 2018, arXiv 1710.06963, and Kairouz et al. 2021,
arXiv 2102.06387, "zero-out"); where a client may be exchanged for another, sums can move twice as far.

The statement is about who sees the sums: the global weights after every round. Who sees the single updates (a server
without masked sums) finds in each only its share of the noise, and of those clients who tell what noise they drew it is
lost. The accountant is Opacus' (Renyi, Mironov 2017).
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from heartlm.errors import HeartlmError, needs
from heartlm.federated.study_file import FederatedConfig


@dataclass(frozen=True)
class Privacy:
    """What is promised to clients.

    Attributes:
        clip_norm: C, the longest an update may be (L2).
        noise_multiplier: sigma of the noise in the sum, over C.
        delta: chance that the promise of epsilon does not hold; well below 1 over the clients.
    """

    clip_norm: float
    noise_multiplier: float
    delta: float


def privacy_of(study: FederatedConfig) -> Privacy | None:
    """What a study promises; None where nothing."""
    if study.clip_norm is None or study.noise_multiplier is None or study.privacy_delta is None:
        return None
    return Privacy(study.clip_norm, study.noise_multiplier, study.privacy_delta)


def clipped(delta: Tensor, norm: float) -> Tensor:
    """`delta` `[P]`, made shorter where it is longer than `norm`.

    Raises:
        HeartlmError: it is not finite, so that its length means nothing.
    """
    length = float(torch.linalg.vector_norm(delta))
    if not math.isfinite(length):
        raise HeartlmError("an update that is not finite found: training diverged, lower learning_rate")
    return delta if length <= norm else delta * (norm / length)


def clip_and_noise(delta: Tensor, privacy: Privacy, num_clients: int, generator: torch.Generator) -> Tensor:
    """What a client may give away.

    Args:
        delta: float64 `[P]`.
        privacy: what is promised.
        num_clients: that add their shares of the noise in this round.
        generator: of this client alone; from `secret_generator` unless the noise is to be known.
    """
    share = privacy.noise_multiplier * privacy.clip_norm / math.sqrt(num_clients)
    noise = torch.empty_like(delta).normal_(0.0, share, generator=generator)
    return clipped(delta, privacy.clip_norm) + noise


def secret_generator() -> torch.Generator:
    """A generator that starts from the system's entropy: who knows a study's seed must not know its noise."""
    generator = torch.Generator()
    generator.seed()
    return generator


def epsilon_of(noise_multiplier: float, num_rounds: int, delta: float) -> float:
    """What `num_rounds` rounds of the same noise promise.

    Args:
        noise_multiplier: sigma of the noise in the sum, over the longest update.
        num_rounds: in which a client may take part.
        delta: chance that the promise does not hold.

    Raises:
        HeartlmError: Opacus is not installed.
    """
    with needs("privacy"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, from the import
        from opacus.accountants import RDPAccountant
    accountant = RDPAccountant()
    accountant.history = [(noise_multiplier, 1.0, num_rounds)]  # 1.0: no gain is claimed from sampling clients
    return float(accountant.get_epsilon(delta))


class Ledger:
    """Which client took part how often; what that amounts to.

    Clients of a study are chosen by its seed, which is no secret, so nothing is gained by chance: a client pays in full
    for each round it takes part in, and nothing for the others. Those asked most often decide.

    Args:
        privacy: what is promised in a round.
        num_clients: of the study.

    Raises:
        HeartlmError: the promise may fail for one of the clients.
    """

    def __init__(self, privacy: Privacy, num_clients: int) -> None:
        if not 0 < privacy.delta < 1 / num_clients:
            raise HeartlmError(
                f"privacy_delta: {privacy.delta:g} found, less than 1 over {num_clients} clients expected: a promise "
                "that may fail for one of them is none"
            )
        self.privacy = privacy
        self.rounds_of: Counter[int] = Counter()

    def statement(self) -> dict[str, float]:
        """What is promised so far, at least one round: `epsilon` of the clients asked most often, after their
        `num_rounds`, and `epsilon_per_round` of one alone.

        Raises:
            HeartlmError: Opacus is not installed.
        """
        most, multiplier, delta = max(self.rounds_of.values()), self.privacy.noise_multiplier, self.privacy.delta
        of_all, of_one = (epsilon_of(multiplier, number, delta) for number in (most, 1))
        return {"epsilon": of_all, "epsilon_per_round": of_one, "num_rounds": most}
