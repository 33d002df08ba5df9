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
from collections.abc import Iterable
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

    def check(self, num_clients: int) -> None:
        """Raise a HeartlmError where nothing could be promised to `num_clients` clients."""
        if not 0 < self.clip_norm < math.inf:
            raise HeartlmError(f"clip_norm: {self.clip_norm:g} found, a length above 0 expected")
        if not 0 < self.noise_multiplier < math.inf:
            raise HeartlmError(
                f"noise_multiplier: {self.noise_multiplier:g} found, more than 0 expected: nothing is promised without "
                "noise; leave clip_norm and noise_multiplier out for a study without privacy"
            )
        if not 0 < self.delta < 1 / num_clients:
            raise HeartlmError(
                f"privacy_delta: {self.delta:g} found, less than 1 over {num_clients} clients expected: a promise that "
                "may fail for one of them is none"
            )


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


@dataclass(frozen=True)
class Statement:
    """What is promised, in numbers.

    Attributes:
        epsilon: of the clients asked most often.
        epsilon_per_round: of one round alone.
        delta: chance that it does not hold.
        num_rounds: that these clients took part in.
    """

    epsilon: float
    epsilon_per_round: float
    delta: float
    num_rounds: int

    @property
    def words(self) -> str:
        """One sentence."""
        return (
            f"each client, with all its patients: epsilon {self.epsilon:.2f} at delta {self.delta:g} after "
            f"{self.num_rounds} rounds of its own ({self.epsilon_per_round:.2f} each), to who sees global weights only"
        )


class Ledger:
    """Which client took part how often; what that amounts to.

    Clients of a study are chosen by its seed, which is no secret, so nothing is gained by chance: a client pays in full
    for each round it takes part in, and nothing for the others. Those asked most often decide.

    Args:
        privacy: what is promised in a round.
        num_clients: of the study.
    """

    def __init__(self, privacy: Privacy, num_clients: int) -> None:
        privacy.check(num_clients)
        self.privacy = privacy
        self.rounds_of: Counter[int] = Counter()

    def took_part(self, clients: Iterable[int]) -> None:
        """Note a round."""
        self.rounds_of.update(clients)

    def statement(self) -> Statement | None:
        """What is promised so far; None before the first round.

        Raises:
            HeartlmError: Opacus is not installed.
        """
        if not self.rounds_of:
            return None
        most, multiplier, delta = max(self.rounds_of.values()), self.privacy.noise_multiplier, self.privacy.delta
        return Statement(epsilon_of(multiplier, most, delta), epsilon_of(multiplier, 1, delta), delta, most)
