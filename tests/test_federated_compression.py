"""Compressed updates: chance is fair, and bytes are those of the message."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from heartlm.distributed.communicator import Communicator
from heartlm.errors import HeartlmError
from heartlm.federated.aggregate import Aggregator, WeightedUpdate
from heartlm.federated.client import Update
from heartlm.federated.compression import BLOCK, decode, encode
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.study_file import FederatedConfig
from heartlm.typed import typed

NAMES = ("bf16", "int8-by-chance")
values = st.floats(-4, 4, width=32, allow_subnormal=False)
vectors = st.integers(1, 3 * BLOCK).flatmap(lambda size: arrays(np.float32, size, elements=values))


def received(name: str, vector: np.ndarray, seed: tuple[int, ...] = (0,)) -> np.ndarray:
    return decode(name, encode(name, torch.from_numpy(vector).double(), seed), len(vector)).numpy()


@given(vectors)
def test_bfloat16_rounds_to_the_nearest(vector: np.ndarray):
    read = received("bf16", vector)
    np.testing.assert_array_equal(read, torch.from_numpy(vector).bfloat16().float().numpy())
    np.testing.assert_allclose(read, vector, rtol=2**-8)


@given(vectors)
def test_int8_is_wrong_by_a_step_at_most(vector: np.ndarray):
    wrong = np.abs(received("int8-by-chance", vector) - vector)
    for begin in range(0, len(vector), BLOCK):
        step = np.abs(vector[begin : begin + BLOCK]).max() / 127
        assert wrong[begin : begin + BLOCK].max() <= 1.0001 * step + 1e-12


def test_int8_by_chance_is_right_on_average():
    vector = np.random.default_rng(0).normal(size=700).astype(np.float32)
    read = np.mean([received("int8-by-chance", vector, seed=(3, each)) for each in range(4000)], axis=0)
    step = np.abs(vector).max() / 127
    assert np.abs(read - vector).max() < 0.05 * step  # 0.5 step / sqrt(4000) is 0.008 of a step, six times that
    assert np.abs(received("int8-by-chance", vector) - vector).max() > 0.4 * step


def test_chances_follow_from_the_seed_alone():
    vector = torch.from_numpy(np.random.default_rng(0).normal(size=700))
    one, same, other = (encode("int8-by-chance", vector, seed=seed) for seed in ((1, 2), (1, 2), (1, 3)))
    assert one == same != other


def test_bytes_count_values_and_scales():
    vector = torch.from_numpy(np.random.default_rng(1).normal(size=10_000))
    assert [len(encode(name, vector)) for name in NAMES] == [20_000, 10_000 + 4 * 40]  # a scale for each of 40 blocks


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cut", [0, 3, 8, -1])
def test_a_damaged_message_is_refused(name: str, cut: int):
    message = encode(name, torch.arange(100, dtype=torch.float64))
    with pytest.raises(HeartlmError, match="damaged"):
        decode(name, message[:cut], 100)


def shares(round_index: int, clients: int, size: int) -> list[WeightedUpdate]:
    generator = torch.Generator().manual_seed(round_index)
    samples = [100 * (client + 1) for client in range(clients)]
    return [
        WeightedUpdate(
            client,
            samples[client] / sum(samples),
            Update(torch.randn(size, generator=generator, dtype=torch.float64) * 1e-2, samples[client], 5, 0.5, 0.1),
        )
        for client in range(clients)
    ]


def mean_by(name: str, size: int) -> Aggregator:
    study = typed(FederatedConfig, {"compression": name})
    return Aggregator(study, Communicator(), size, 3, CommunicationMeter())


@pytest.mark.parametrize("name", NAMES)
def test_means_of_many_rounds_come_near_the_exact_ones(name: str):
    size, asked = 600, 100 + 200 + 300
    by, exact = mean_by(name, size), mean_by("none", size)
    total, wanted = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for round_index in range(30):
        given_shares = shares(round_index, 3, size)
        mean, right = (each.start(round_index, given_shares, asked).wait() for each in (by, exact))
        assert mean is not None
        assert right is not None
        total += mean.double()
        wanted += right.double()
    assert float((total - wanted).norm() / wanted.norm()) < 0.01


def test_a_round_without_clients_has_no_mean():
    assert mean_by("bf16", 10).start(0, [], 100).wait() is None
