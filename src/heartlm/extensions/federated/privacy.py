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
from dataclasses import dataclass

import torch
from torch import Tensor

from heartlm.errors import HeartlmError, needs
from heartlm.extensions.federated.study_file import FederatedConfig


@dataclass(frozen=True)
class Privacy:
    """Parameters of differential privacy.

    Attributes:
        clip_norm: C, maximum L2 norm of an update.
        noise_multiplier: standard deviation of the noise in the sum, divided by C.
        delta: probability that epsilon does not hold; well below 1 divided by the number of clients.
    """

    clip_norm: float
    noise_multiplier: float
    delta: float


def privacy_of(study: FederatedConfig) -> Privacy | None:
    """Return the privacy parameters of a study; None without differential privacy."""
    if study.clip_norm is None or study.noise_multiplier is None or study.privacy_delta is None:
        return None
    return Privacy(study.clip_norm, study.noise_multiplier, study.privacy_delta)


def clipped(delta: Tensor, norm: float) -> Tensor:
    """Return `delta` `[P]`, scaled down to L2 norm `norm` if it is longer.

    Raises:
        HeartlmError: `delta` is not finite.
    """
    length = float(torch.linalg.vector_norm(delta))
    if not math.isfinite(length):
        raise HeartlmError("an update that is not finite found: training diverged, lower learning_rate")
    return delta if length <= norm else delta * (norm / length)


def clip_and_noise(delta: Tensor, privacy: Privacy, num_clients: int, generator: torch.Generator) -> Tensor:
    """Clip an update and add the client's part of the noise.

    Args:
        delta: update, float64 `[P]`.
        privacy: privacy parameters.
        num_clients: number of clients that add noise in this round.
        generator: generator of this client, from `secret_generator` unless the noise may be known.
    """
    # Variances add up, so the sum over all clients has the standard deviation noise_multiplier * clip_norm.
    share = privacy.noise_multiplier * privacy.clip_norm / math.sqrt(num_clients)
    noise = torch.empty_like(delta).normal_(0.0, share, generator=generator)
    return clipped(delta, privacy.clip_norm) + noise


def secret_generator() -> torch.Generator:
    """Return a generator seeded from system entropy, so that the seed of a study does not reveal its noise."""
    generator = torch.Generator()
    generator.seed()
    return generator


def epsilon_of(noise_multiplier: float, num_rounds: int, delta: float) -> float:
    """Return epsilon after `num_rounds` rounds with the same noise.

    Args:
        noise_multiplier: standard deviation of the noise in the sum, divided by the maximum norm of an update.
        num_rounds: number of rounds in which a client may take part.
        delta: probability that epsilon does not hold.

    Raises:
        HeartlmError: Opacus is not installed.
    """
    with needs("privacy"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, from the import
        from opacus.accountants import RDPAccountant
    accountant = RDPAccountant()
    accountant.history = [(noise_multiplier, 1.0, num_rounds)]  # 1.0: no gain is claimed from sampling clients
    return float(accountant.get_epsilon(delta))


def guarantee(privacy: Privacy, num_rounds: int) -> dict[str, float]:
    """Return what is promised to the clients that took part in most rounds.

    Clients of a study are chosen by its seed, which is no secret, so nothing is gained by chance: a client pays in full
    for each round it takes part in, and nothing for the others.

    Args:
        privacy: what is promised in a round.
        num_rounds: most rounds of one client, at least one.

    Returns:
        `epsilon` of these clients after their `num_rounds`, and `epsilon_per_round` of one alone.

    Raises:
        HeartlmError: Opacus is not installed.
    """
    all_rounds, one_round = (epsilon_of(privacy.noise_multiplier, number, privacy.delta) for number in (num_rounds, 1))
    return {"epsilon": all_rounds, "epsilon_per_round": one_round, "num_rounds": num_rounds}
