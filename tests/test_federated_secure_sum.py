"""Masked sums: they are the plain sums to the last bit, and what is sent says nothing by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from heartlm.distributed.communicator import Communicator
from heartlm.errors import HeartlmError
from heartlm.federated.aggregate import Aggregator, WeightedUpdate
from heartlm.federated.client import Update
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.secure_sum import MaskingClient, RoundAbandoned, unmasked_sum
from heartlm.federated.study_file import FederatedConfig

pytest.importorskip("cryptography")


def masked(numbers: dict[str, NDArray[np.int64]], context: bytes = b"round 0") -> dict[str, NDArray[np.int64]]:
    clients = {name: MaskingClient(name) for name in numbers}
    keys = {name: client.public_key for name, client in clients.items()}
    return {name: clients[name].masked(numbers[name], keys, context) for name in numbers}


whole = st.integers(-(2**63), 2**63 - 1)


@given(st.integers(2, 5).flatmap(lambda n: st.lists(st.lists(whole, min_size=3, max_size=3), min_size=n, max_size=n)))
def test_the_masked_sum_is_the_plain_sum_to_the_last_bit(values: list[list[int]]):
    numbers = {f"client {place}": np.array(each, np.int64) for place, each in enumerate(values)}
    total = unmasked_sum(masked(numbers), numbers)
    with np.errstate(over="ignore"):
        plain = np.sum([each.astype(np.uint64) for each in numbers.values()], axis=0, dtype=np.uint64).astype(np.int64)
    np.testing.assert_array_equal(total, plain)


def test_what_a_client_sends_looks_random_and_is_never_the_same():
    numbers = {"a": np.zeros(4096, np.int64), "b": np.zeros(4096, np.int64)}
    first, second = masked(numbers), masked(numbers)
    bits = np.unpackbits(first["a"].view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.01
    assert (first["a"] != second["a"]).mean() > 0.99
    np.testing.assert_array_equal(first["a"] + first["b"], 0)


def test_another_round_has_other_masks_though_keys_are_the_same():
    a, b = MaskingClient("a"), MaskingClient("b")
    keys = {"a": a.public_key, "b": b.public_key}
    zeros = np.zeros(64, np.int64)
    one, other = (a.masked(zeros, keys, context) for context in (b"round 0", b"round 1"))
    assert (one != other).all()


def test_a_client_that_announced_a_key_and_died_costs_the_round():
    numbers = {name: np.arange(5) for name in ("a", "b", "c")}
    sent = masked(numbers)
    del sent["b"]
    with pytest.raises(RoundAbandoned, match="b announced a key and sent nothing"):
        unmasked_sum(sent, numbers)


def test_messages_of_strangers_are_refused():
    with pytest.raises(RoundAbandoned, match="no key is known of c"):
        unmasked_sum({name: np.arange(5) for name in "abc"}, "ab")


def test_a_client_alone_sends_nothing():
    client = MaskingClient("a")
    with pytest.raises(HeartlmError, match="alone in a masked sum"):
        client.masked(np.arange(5), {"a": client.public_key}, b"")


def test_a_client_notices_that_its_key_was_exchanged():
    a, b = MaskingClient("a"), MaskingClient("b")
    with pytest.raises(HeartlmError, match="the key was exchanged"):
        a.masked(np.arange(5), {"a": b.public_key, "b": b.public_key}, b"")


def shares(num_clients: int, size: int) -> list[WeightedUpdate]:
    generator = torch.Generator().manual_seed(7)
    samples = [100 + 37 * client for client in range(num_clients)]
    return [
        WeightedUpdate(
            client,
            samples[client] / sum(samples),
            Update(torch.randn(size, generator=generator, dtype=torch.float64) * 1e-2, samples[client], 5, 0.5, 0.1),
        )
        for client in range(num_clients)
    ]


def mean_by(secure_sum: bool, size: int) -> Aggregator:
    study = FederatedConfig(secure_sum=secure_sum, bucket_mib=0.001)
    return Aggregator(study, Communicator(), size, 5, CommunicationMeter())


@pytest.mark.parametrize("at_once", [False, True])
def test_the_mean_of_masked_updates_is_the_exact_mean(at_once: bool):
    given_shares = shares(num_clients=5, size=1000)
    asked = sum(share.update.num_samples for share in given_shares)
    exact, hidden = mean_by(False, 1000), mean_by(True, 1000)
    for took_part in (given_shares, given_shares[1:4]):  # all, and some that died while they trained
        one, other = (each.start(0, took_part, asked, at_once).wait() for each in (exact, hidden))
        assert one.num_samples == other.num_samples
        assert one.delta is not None
        assert other.delta is not None
        assert torch.equal(one.delta.double(), other.delta.double())


def test_a_client_that_is_left_alone_sends_nothing(capsys: pytest.CaptureFixture[str]):
    hidden = mean_by(True, 10)
    assert hidden.start(3, shares(1, 10), 100).wait().delta is None
    assert "one client is left" in capsys.readouterr().err
    assert hidden.start(4, [], 100).wait().delta is None
