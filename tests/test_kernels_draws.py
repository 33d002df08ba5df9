"""Draws by their place: those of NumPy's generator, from anywhere on, the same in every variant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.corpus.windows import RandomSampler
from heartlm.kernels.draws import Stream, draws, draws_below, hide_spans, permute, uniform
from heartlm.kernels.library import using, variants
from tests.kernel_references import draw_windows_reference, draws_reference, hide_spans_reference, permute_reference

pure = settings(derandomize=True, deadline=None)
streams = st.builds(Stream, st.integers(0, 2**31 - 1), st.integers(0, 2**40), st.integers(0, 9))
every_variant = pytest.mark.parametrize("variant", variants())


@every_variant
@pure
@given(stream=streams, first=st.integers(0, 10_000_000), num=st.integers(0, 200))
def test_draws_are_those_of_numpy(variant: str, stream: Stream, first: int, num: int) -> None:
    expected = draws_reference(stream, first, num)
    with using(variant):
        assert np.array_equal(draws(stream, first, num), expected)
        assert np.array_equal(draws_below(0.3, stream, first, num), uniform(expected) < 0.3)


@pure
@given(stream=streams, first=st.integers(0, 300), num=st.integers(0, 300))
def test_draws_from_a_place_on_are_those_of_a_generator_that_drew_all_before(
    stream: Stream, first: int, num: int
) -> None:
    philox = np.random.Philox(key=[stream.seed, stream.use], counter=[0, 0, 0, stream.step])
    random = np.random.Generator(philox).random(first + num)
    assert np.array_equal(uniform(draws(stream, first, num)), random[first:])
    assert np.array_equal(uniform(draws_reference(stream, first, num)), random[first:])


def test_streams_steps_and_seeds_are_independent() -> None:
    keys = [(seed, step, use) for seed in (0, 1) for step in (0, 1, 2) for use in (0, 1)]
    drawn = [uniform(draws(Stream(*key), 0, 1000)) for key in keys]
    assert np.abs(np.corrcoef(drawn) - np.eye(len(keys))).max() < 0.15


@every_variant
@pure
@given(
    spans=st.tuples(st.floats(0.01, 0.99), st.integers(1, 40)),
    stream=streams,
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=9),
    width=st.integers(1, 70),
    before=st.integers(0, 5),
    after=st.integers(0, 5),
)
def test_hiding_a_part_of_a_batch_is_part_of_hiding_it(
    variant: str, spans: tuple[float, int], stream: Stream, lengths: list[int], width: int, before: int, after: int
) -> None:
    length = np.minimum(lengths, width)
    of = before + len(length) + after
    whole = np.concatenate([np.full(before, width), length, np.full(after, 1)])
    expected = hide_spans_reference(*spans, stream, whole, width, 0, of)[before : before + len(length)]
    with using(variant):
        hidden, num_hidden = hide_spans(*spans, stream, length, width, before, of)
    assert np.array_equal(hidden, expected)
    assert np.array_equal(num_hidden, expected.sum(axis=1))


@every_variant
@pure
@given(
    num_tokens=st.lists(st.integers(1, 60), min_size=1, max_size=9),
    weight=st.lists(st.floats(0.01, 1), min_size=9, max_size=9),
    width=st.integers(1, 30),
    seed=st.integers(0, 2**31 - 1),
    step=st.integers(0, 2**40),
    place=st.tuples(st.integers(0, 9), st.integers(0, 20), st.integers(0, 9)),
)
def test_drawing_windows_is_the_same_in_every_variant(
    variant: str,
    num_tokens: list[int],
    weight: list[float],
    width: int,
    seed: int,
    step: int,
    place: tuple[int, int, int],
) -> None:
    tokens = np.array(num_tokens)
    share = np.array(weight[: len(tokens)])
    first_window, num_windows, after = place
    batch_size = first_window + num_windows + after
    sampler = RandomSampler(np.cumsum(tokens) - tokens, tokens, width, batch_size, seed, share / share.sum())
    with using(variant):
        drawn = sampler.windows(step, first_window, num_windows)
    first, length = draw_windows_reference(sampler, step, first_window, num_windows)
    assert np.array_equal(drawn.first, first) and np.array_equal(drawn.length, length)


@every_variant
@pure
@given(size=st.integers(1, 400), key=st.integers(0, 2**64 - 1), own_keys=st.booleans())
def test_permuting_is_a_permutation_and_the_same_in_every_variant(
    variant: str, size: int, key: int, own_keys: bool
) -> None:
    place = np.arange(size)
    keys = np.array([key], np.uint64) + (np.arange(size) % 3 if own_keys else np.zeros(1)).astype(np.uint64)
    with using(variant):
        found = permute(place, size, keys)
    assert np.array_equal(found, permute_reference(place, size, keys))
    if not own_keys:
        assert np.array_equal(np.sort(found), place)


@pytest.mark.parametrize("size", [2, 3, 7, 8, 13])
def test_every_place_goes_everywhere_as_often(size: int) -> None:
    num_keys = 4000
    found = permute(np.tile(np.arange(size), num_keys), size, np.repeat(np.arange(num_keys, dtype=np.uint64), size))
    counts = np.zeros((size, size))
    np.add.at(counts, (np.tile(np.arange(size), num_keys), found), 1)
    expected = num_keys / size
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_neighbours_are_parted_by_a_large_permutation() -> None:
    size = 10**12
    place = np.arange(200_000)
    found = permute(place, size, np.array([1], np.uint64))
    assert len(np.unique(found)) == len(place)
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.01
    np.testing.assert_allclose(np.histogram(found, 10, (0, size))[0], len(place) / 10, rtol=0.03)
