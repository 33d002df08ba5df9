"""Simulated steps obey what any step obeys, and predictions hold what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heartlm.launch.allreduce import AllReduceFit
from heartlm.scaling.network import Link, Network, bucket_bytes, link_of
from heartlm.scaling.simulate import Supply, Surroundings, Work, simulate, typical_s

seconds = st.floats(1e-4, 1.0)
jitters = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6).map(lambda each: list(np.array(each) / np.mean(each)))


@st.composite
def works(draw: st.DrawFn) -> Work:
    sizes = draw(st.lists(st.floats(1e3, 1e7), min_size=1, max_size=6))
    return Work(
        forward_s=draw(seconds),
        backward_s=draw(seconds),
        optimizer_s=draw(seconds),
        data_s=draw(seconds),
        other_s=draw(seconds),
        micro_batches=draw(st.integers(1, 3)),
        bucket_bytes=sizes,
    )


@st.composite
def surroundings(draw: st.DrawFn) -> Surroundings:
    nodes = draw(st.integers(1, 3))
    link = st.builds(Link, bytes_per_s=st.floats(1e6, 1e10), latency_s=st.floats(0, 1e-2))
    return Surroundings(
        ranks=nodes * draw(st.integers(1, 3)),
        nodes=nodes,
        network=Network(draw(link), draw(link)),
        slowdown=draw(st.floats(1.0, 1.5)),
        core_share=draw(st.floats(0, 1)),
        jitter=draw(jitters),
        supply=draw(st.none() | st.builds(Supply, st.floats(0.5, 1e3), st.integers(0, 3), jitters)),
        seed=draw(st.integers(0, 3)),
    )


@given(works(), surroundings())
def test_parts_add_up_to_the_step(work: Work, around: Surroundings):
    one = simulate(work, around)
    assert sum(one.typical_part_s().values()) == pytest.approx(typical_s(one.step_s))
    assert min(map(min, one.parts_s.values())) >= -1e-9 and one.hidden_communication_s >= 0


@given(works(), surroundings())
def test_a_step_takes_no_less_than_its_computing(work: Work, around: Surroundings):
    one = simulate(work, around)
    assert one.mean_step_s >= work.alone_s * around.slowdown * np.mean(around.jitter) - 1e-9


@given(works(), jitters)
def test_one_rank_takes_what_was_measured(work: Work, jitter: list[float]):
    one = simulate(work, Surroundings(jitter=jitter))
    assert one.mean_step_s == pytest.approx(work.alone_s)
    assert sorted(one.step_s) == pytest.approx(sorted(work.alone_s * np.array(jitter)))


@given(works(), surroundings(), st.floats(1, 20))
def test_a_slower_network_is_never_better(work: Work, around: Surroundings, factor: float):
    slower = replace(around, network=around.network.slowed(factor))
    assert simulate(work, slower).mean_step_s >= simulate(work, around).mean_step_s - 1e-9


@given(works(), surroundings())
def test_sending_during_the_backward_pass_is_never_worse_than_after_it(work: Work, around: Surroundings):
    after = replace(around, overlap=False, core_share=0.0)
    assert simulate(work, around).mean_step_s <= simulate(work, after).mean_step_s + 1e-9


@given(works(), surroundings(), st.floats(1, 20))
def test_a_faster_supply_is_never_worse(work: Work, around: Surroundings, factor: float):
    supply = around.supply or Supply(5.0)
    faster = replace(supply, batches_per_s=supply.batches_per_s * factor)
    slow_s = simulate(work, replace(around, supply=supply)).mean_step_s
    assert simulate(work, replace(around, supply=faster)).mean_step_s <= slow_s + 1e-9


@given(works(), surroundings(), st.floats(0.5, 50), st.integers(0, 3))
def test_nobody_trains_on_batches_that_were_not_prepared(work: Work, around: Surroundings, rate: float, ahead: int):
    around = replace(around, supply=Supply(rate, ahead))
    one, per_node = simulate(work, around), around.ranks // around.nodes
    assert one.num_batches == around.ranks * len(one.step_s)
    made_at_most = per_node * ahead + float(one.step_s.sum()) * rate
    assert one.num_batches / around.nodes <= made_at_most + per_node + 1e-6


def test_the_seed_decides():
    work = Work(0.1, 0.2, bucket_bytes=[1e6])
    around = Surroundings(4, network=Network(Link(1e9)), jitter=list(np.linspace(0.8, 1.2, 16)))
    assert np.array_equal(simulate(work, around).step_s, simulate(work, around).step_s)
    assert not np.array_equal(simulate(work, around).step_s, simulate(work, replace(around, seed=1)).step_s)


def test_the_slowest_of_many_ranks_is_slower_than_the_slowest_of_two():
    work, jitter = Work(0.1, 0.2, bucket_bytes=[1.0]), list(np.linspace(0.8, 1.2, 33))
    taken = [
        simulate(work, Surroundings(ranks, network=Network(Link(1e12)), jitter=jitter)).mean_step_s
        for ranks in (1, 2, 16)
    ]
    assert taken[0] == pytest.approx(0.3) and taken[0] < taken[1] < taken[2] <= 0.3 * 1.2 + 1e-9
    assert taken[1] == pytest.approx(0.3 * (1 + 0.4 / 6), rel=0.02)  # mean of the larger of two uniform draws


def test_a_bucket_begins_when_ready_and_when_the_one_before_is_through():
    """Two buckets of half the gradients: ready at 2 and 3 s, 1.5 s each, so the last is through at 5 s."""
    network = Network(Link(1.0, 0.0))
    work = Work(1.0, 2.0, optimizer_s=0.5, bucket_bytes=[1.5, 1.5])
    around = Surroundings(2, network=network)
    one = simulate(work, around)
    tail_s = network.all_reduce_s(64, 2)
    assert one.mean_step_s == pytest.approx(5.0 + tail_s + 0.5)
    assert one.typical_part_s()["exposed_communication"] == pytest.approx(2.0 + tail_s)
    assert one.hidden_communication_s == pytest.approx(1.0)
    shared = simulate(work, replace(around, core_share=0.5))  # the second bucket is ready at 3.75 s, the first through
    assert shared.mean_step_s == pytest.approx(5.25 + tail_s + 0.5)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_steady_supply_bounds_the_rate(ranks: int):
    """One node prepares 2 batches a second; each rank needs one a second."""
    one = simulate(Work(0.4, 0.6), Surroundings(ranks, supply=Supply(2.0), jitter=[1.0] * 8))
    assert one.mean_step_s == pytest.approx(max(1.0, ranks / 2))


def test_the_fit_comes_back_and_grows_by_the_formulas():
    fit = AllReduceFit(3e-4, 1e9, 2, "gloo", ((1024, 3e-4), (1 << 20, 1.35e-3)))
    network = Network(link_of(fit), Link(1e9, 1e-3))
    for size in (0, 1e3, 1e7):
        assert network.all_reduce_s(size, 2) == pytest.approx(fit.time_s(size))
    assert network.all_reduce_s(1e9, 4) == pytest.approx(6 * (1.5e-4 + 0.25), rel=1e-9)
    assert network.all_reduce_s(1e9, 4, 2) > network.all_reduce_s(1e9, 4)
    assert network.all_reduce_s(1e9, 1) == 0


@given(st.floats(1, 1e9), st.floats(0.1, 100))
def test_buckets_hold_all_gradients(num_bytes: float, cap_mb: float):
    sizes = bucket_bytes(num_bytes, cap_mb)
    assert sum(sizes) == pytest.approx(num_bytes) and max(sizes) <= cap_mb * 2**20
