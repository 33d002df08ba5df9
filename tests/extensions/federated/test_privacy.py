"""Privacy: updates are no longer than they may be, noise is as large as it must be, and epsilon is never made up."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heartlm.errors import HeartlmError
from heartlm.extensions.federated.aggregate import Aggregator
from heartlm.extensions.federated.client import Update
from heartlm.extensions.federated.communicator import Communicator
from heartlm.extensions.federated.privacy import (
    Privacy,
    clip_and_noise,
    clipped,
    epsilon_of,
    guarantee,
    secret_generator,
)
from heartlm.extensions.federated.study_file import FederatedConfig

PROMISE = Privacy(clip_norm=0.5, noise_multiplier=1.0, delta=1e-3)


def known_generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50), st.floats(1e-3, 1e3))
def test_no_update_is_longer_than_it_may_be(values: list[float], norm: float):
    delta = torch.tensor(values, dtype=torch.float64)
    short = clipped(delta, norm)
    assert float(short.norm()) <= norm * (1 + 1e-12)
    if float(delta.norm()) <= norm:
        assert torch.equal(short, delta)
    else:  # the direction stays
        assert torch.allclose(short * float(delta.norm()), delta * norm, rtol=1e-9)


def test_an_update_that_is_not_finite_is_refused():
    with pytest.raises(HeartlmError, match="not finite"):
        clipped(torch.tensor([1.0, math.nan]), 1.0)


def test_the_shares_of_the_noise_add_up_to_the_noise():
    zeros, number, generator = torch.zeros(100_000, dtype=torch.float64), 7, known_generator()
    total = sum(clip_and_noise(zeros, PROMISE, number, generator) for _ in range(number))
    assert float(total.std()) == pytest.approx(PROMISE.noise_multiplier * PROMISE.clip_norm, rel=0.02)
    assert abs(float(total.mean())) < 0.01


def test_secret_noise_is_never_the_same():
    one, other = (torch.randn(8, generator=secret_generator()) for _ in range(2))
    assert not torch.equal(one, other)


def test_epsilon_of_one_round_is_near_the_exact_value_of_the_gaussian_mechanism():
    """Balle and Wang 2018, theorem 8: delta of epsilon for sigma 1; what the accountant says must be above, not far."""

    def exact_delta(epsilon: float, sigma: float) -> float:
        below = lambda x: 0.5 * math.erfc(-x / math.sqrt(2))  # noqa: E731
        return below(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * below(-0.5 / sigma - epsilon * sigma)

    pytest.importorskip("opacus")
    for sigma in (0.7, 1.0, 3.0):
        epsilon = epsilon_of(sigma, 1, 1e-5)
        assert exact_delta(epsilon, sigma) <= 1e-5  # an upper bound
        assert exact_delta(0.8 * epsilon, sigma) > 1e-5  # and not a careless one


def test_more_rounds_cost_more_and_more_noise_costs_less():
    pytest.importorskip("opacus")
    assert epsilon_of(1.0, 1, 1e-5) < epsilon_of(1.0, 10, 1e-5) < epsilon_of(0.8, 10, 1e-5)


def test_a_client_pays_for_its_own_rounds_only():
    pytest.importorskip("opacus")
    said = guarantee(PROMISE, 3)
    assert said["num_rounds"] == 3
    assert said["epsilon"] == pytest.approx(epsilon_of(1.0, 3, 1e-3))
    assert said["epsilon_per_round"] == pytest.approx(epsilon_of(1.0, 1, 1e-3))


@pytest.mark.parametrize("changed", [{"clip_norm": 0.0}, {"noise_multiplier": 0.0}])
def test_promises_without_a_bound_or_noise_are_refused(changed: dict[str, float]):
    promise = {"clip_norm": 1.0, "noise_multiplier": 1.0, "privacy_delta": 1e-3} | changed
    with pytest.raises(HeartlmError, match=f"{next(iter(changed))}: 0.0 found, more than 0"):
        FederatedConfig(model="tiny_ecg", databases=["x"], **promise).check()


@pytest.mark.parametrize("delta", [0.2, 0.0])
def test_promises_that_may_fail_for_a_client_are_refused(delta: float):
    with pytest.raises(HeartlmError, match="privacy_delta"):
        study = FederatedConfig(clip_norm=1.0, noise_multiplier=1.0, privacy_delta=delta)
        Aggregator(study, Communicator(), 3, 10)


def test_clients_count_the_same_and_the_noise_is_that_of_the_sum(monkeypatch: pytest.MonkeyPatch):
    size, generator = 20_000, torch.Generator().manual_seed(1)
    updates = {
        client: Update(torch.randn(size, generator=generator, dtype=torch.float64), num_samples, 5, 0.5, 0.1)
        for client, num_samples in enumerate([10, 2000, 500])
    }
    monkeypatch.setattr("heartlm.extensions.federated.aggregate.secret_generator", known_generator)
    study = FederatedConfig(clip_norm=0.5, noise_multiplier=1.0, privacy_delta=1e-3)
    private = Aggregator(study, Communicator(), size, 3)
    mean = private.start(0, updates, 2510).wait()
    plain = sum(clipped(update.delta, PROMISE.clip_norm) for update in updates.values()) / 3
    assert mean is not None
    assert float((mean.double() - plain).std()) == pytest.approx(0.5 / 3, rel=0.03)
    assert private.num_rounds_by_client == {0: 1, 1: 1, 2: 1}
