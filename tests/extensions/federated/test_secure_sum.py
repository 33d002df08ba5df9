"""Masked sums: they are the plain sums to the last bit, and what is sent says nothing by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.extensions.federated.aggregate import Aggregator, add_up
from heartlm.extensions.federated.client import Update
from heartlm.extensions.federated.communicator import Communicator
from heartlm.extensions.federated.secure_sum import MaskingClient, RoundAbandoned, unmasked_sum
from heartlm.extensions.federated.study_file import FederatedConfig

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


def test_masked_updates_are_the_weighted_sum():
    generator, samples = torch.Generator().manual_seed(7), [100, 137, 174]
    deltas = [torch.randn(1000, generator=generator, dtype=torch.float64) * 1e-2 for _ in samples]
    updates = {
        client: Update(delta, num, 5, 0.5, 0.1) for client, (num, delta) in enumerate(zip(samples, deltas, strict=True))
    }
    numbers = {}
    for client, update in updates.items():
        totals = torch.zeros(1001, dtype=torch.int64)
        add_up(totals, [update], sum(samples))
        numbers[str(client)] = totals.numpy()
    total = unmasked_sum(masked(numbers), numbers)
    mean = Aggregator(FederatedConfig(), Communicator(), 1000, 3).start(0, updates, sum(samples))
    np.testing.assert_array_equal(total, mean.totals.numpy())
