"""Compressed updates: what is lost comes later, chance is fair, and bytes are those of the message."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from heartlm.distributed.communicator import Communicator
from heartlm.errors import HeartlmError
from heartlm.federated.aggregate import Aggregator, WeightedUpdate, compressed
from heartlm.federated.client import Update
from heartlm.federated.compression import BLOCK, NAMES, decode, encode
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.study_file import FederatedConfig
from heartlm.typed import typed

sizes = st.integers(1, 3 * BLOCK)
values = st.floats(-4, 4, width=32, allow_subnormal=False)
vectors = sizes.flatmap(lambda size: arrays(np.float32, size, elements=values))
rounds = sizes.flatmap(lambda size: st.lists(arrays(np.float32, size, elements=values), min_size=1, max_size=6))
names = st.sampled_from(NAMES)


@given(names, vectors)
def test_a_message_is_read_as_a_vector_of_the_same_size(name: str, vector: np.ndarray):
    read = decode(encode(name, vector, top_k=0.1))
    assert read.dtype == np.float32 and read.shape == vector.shape


@given(vectors)
def test_nothing_is_lost_without_compression(vector: np.ndarray):
    np.testing.assert_array_equal(decode(encode("none", vector)), vector)


@given(vectors)
def test_bfloat16_rounds_as_torch_does(vector: np.ndarray):
    read = decode(encode("bf16", vector))
    np.testing.assert_array_equal(read, torch.from_numpy(vector).bfloat16().float().numpy())


@given(vectors)
def test_int8_is_wrong_by_half_a_step_at_most(vector: np.ndarray):
    wrong = np.abs(decode(encode("int8", vector)) - vector)
    for begin in range(0, len(vector), BLOCK):
        step = np.abs(vector[begin : begin + BLOCK]).max() / 127
        assert wrong[begin : begin + BLOCK].max() <= 0.5001 * step + 1e-12


def test_int8_by_chance_is_right_on_average():
    vector = np.random.default_rng(0).normal(size=700).astype(np.float32)
    read = np.mean([decode(encode("int8-by-chance", vector, seed=(3, each))) for each in range(4000)], axis=0)
    step = np.abs(vector).max() / 127
    assert np.abs(read - vector).max() < 0.05 * step  # 0.5 step / sqrt(4000) is 0.008 of a step, six times that
    assert np.abs(decode(encode("int8", vector)) - vector).max() > 0.4 * step


def test_chances_follow_from_the_seed_alone():
    vector = np.random.default_rng(0).normal(size=700).astype(np.float32)
    one, same, other = (encode("int8-by-chance", vector, seed=seed) for seed in ((1, 2), (1, 2), (1, 3)))
    assert one == same != other


@given(vectors, st.floats(0.001, 1))
def test_top_k_sends_the_largest_and_no_others(vector: np.ndarray, share: float):
    read = decode(encode("top-k", vector, top_k=share))
    number = max(1, round(share * len(vector)))
    sent = np.sort(np.abs(read))[::-1][:number]
    np.testing.assert_array_equal(sent, np.sort(np.abs(vector))[::-1][:number])
    assert np.count_nonzero(read) <= number
    np.testing.assert_array_equal(read[read != 0], vector[read != 0])


@given(st.sampled_from(["int8", "top-k"]), rounds)
def test_what_was_sent_and_what_is_owed_add_up_to_all_updates(name: str, updates: list[np.ndarray]):
    study, owed = typed(FederatedConfig, {"compression": name, "top_k": 0.05}), dict[int, np.ndarray]()
    messages = [compressed(torch.from_numpy(each).double(), study, 1, 0, owed) for each in updates]
    sent = sum(decode(message).astype(np.float64) for message in messages)
    np.testing.assert_allclose(sent + owed[1], np.sum(updates, axis=0, dtype=np.float64), atol=1e-4)


def test_bytes_count_scales_and_places():
    vector = np.random.default_rng(1).normal(size=10_000).astype(np.float32)
    sent = {name: len(encode(name, vector, top_k=0.01)) for name in NAMES}
    assert sent["none"] >= 40_000
    assert 20_000 < sent["bf16"] < 20_020
    assert 10_000 + 4 * 40 < sent["int8"] < 10_000 + 4 * 40 + 20  # a scale for each of 40 blocks
    assert 800 < sent["top-k"] < 820  # 100 values and 100 places
    # a bit for each value is less than four bytes for each place
    assert len(encode("top-k", vector, top_k=0.5)) < 5000 * 4 + 1250 + 20


@pytest.mark.parametrize("cut", [0, 3, 8, -1])
def test_a_damaged_message_is_refused(cut: int):
    message = encode("top-k", np.arange(100, dtype=np.float32), top_k=0.1)
    with pytest.raises(HeartlmError, match="damaged"):
        decode(message[:cut])


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


def mean_by(name: str, size: int, top_k: float = 0.01) -> Aggregator:
    study = typed(FederatedConfig, {"compression": name, "top_k": top_k})
    return Aggregator(study, Communicator(), size, 3, CommunicationMeter())


@pytest.mark.parametrize("name", NAMES[1:])
def test_means_of_many_rounds_come_near_the_exact_ones(name: str):
    size, asked = 600, 100 + 200 + 300
    by = mean_by(name, size, top_k=0.2)
    exact = mean_by("none", size)
    total, wanted = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for round_index in range(30):
        given_shares = shares(round_index, 3, size)
        mean, right = (each.start(round_index, given_shares, asked).wait() for each in (by, exact))
        assert mean.num_samples == right.num_samples
        total += mean.delta.double()
        wanted += right.delta.double()
    owed = 0.25 if name == "top-k" else 0.01
    assert float((total - wanted).norm() / wanted.norm()) < owed


def test_the_memory_of_clients_survives_a_pause():
    size = 300
    one, other = (mean_by("top-k", size, top_k=0.1) for _ in range(2))
    one.start(0, shares(0, 2, size), 300).wait()
    for client in (0, 1):
        kept = {name: value.clone() for name, value in one.residual_state(client).items()}
        assert other.restore_residual(client, kept | {"own": torch.ones(1)}).keys() == {"own"}
    assert one.residual_state(5) == {}
    first, second = (each.start(1, shares(1, 2, size), 300).wait() for each in (one, other))
    assert torch.equal(first.delta.double(), second.delta.double())


def test_a_round_without_clients_has_no_mean():
    by = mean_by("int8", 10)
    assert by.start(0, [], 100).wait().delta is None
