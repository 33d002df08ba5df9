"""Byte-pair kernels: every variant and the reference do what a few lines of plain Python do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heartlm.kernels.bpe import (
    BREAK,
    Trie,
    encode_runs,
    merge_pair,
)
from tests.kernel_references import each_variant, encode_runs_reference, merge_pair_reference

NUM_SYMBOLS = 3
same_examples = settings(derandomize=True, deadline=None)

texts = st.lists(st.sampled_from([0, 1, 2, BREAK]), max_size=60)
symbols = st.lists(st.integers(0, NUM_SYMBOLS - 1), max_size=120)
vocabularies = st.sets(st.binary(min_size=2, max_size=7).map(lambda text: bytes(byte % NUM_SYMBOLS for byte in text)))


def merged_plainly(text: list[int], left: int, right: int, merged: int) -> tuple[list[int], list[int], list[int]]:
    done, before, after, place = list[int](), list[int](), list[int](), 0
    while place < len(text):
        if text[place : place + 2] == [left, right]:
            before.append(done[-1] if done else BREAK)
            after.append(text[place + 2] if place + 2 < len(text) else BREAK)
            done.append(merged)
            place += 2
        else:
            done.append(text[place])
            place += 1
    return done, before, after


@same_examples
@given(texts, st.integers(0, 2), st.integers(0, 2))
@example([1, 1, 1, 1, 1], 1, 1)
@example([0, 1, 0, 1, 0], 0, 1)
@example([], 0, 1)
def test_a_pair_is_replaced_from_the_first_on(text: list[int], left: int, right: int) -> None:
    expected = merged_plainly(text, left, right, 7)
    made = [merge_pair_reference(np.array(text, np.uint16), left, right, 7)]
    made += [merge_pair(np.array(text, np.uint16), left, right, 7) for _ in each_variant()]
    for found in made:
        assert tuple(part.tolist() for part in found) == expected


def test_the_symbols_left_lie_where_the_old_ones_did() -> None:
    for merge in (merge_pair, merge_pair_reference):
        text = np.array([0, 1, 2, 0, 1], np.uint16)
        rest, _, _ = merge(text, 0, 1, 7)
        assert np.shares_memory(rest, text) and rest.tolist() == [7, 2, 7]


def trie_of(vocabulary: set[bytes]) -> tuple[list[bytes], Trie]:
    runs = [bytes([symbol]) for symbol in range(NUM_SYMBOLS)] + sorted(vocabulary)
    return runs, Trie.of(runs, NUM_SYMBOLS)


def encoded_plainly(text: bytes, runs: list[bytes], every: int) -> list[int]:
    codes = []
    for begin in range(0, len(text), every):
        rest = text[begin : begin + every]
        while rest:
            longest = max((run for run in runs if rest.startswith(run)), key=len)
            codes.append(runs.index(longest))
            rest = rest[len(longest) :]
    return codes


@same_examples
@given(symbols, vocabularies, st.integers(1, 50))
@example([0, 0, 0, 1], {bytes([0, 0, 0, 0]), bytes([0, 0])}, 100)
def test_encoding_takes_the_longest_run_from_the_first_symbol_on(
    text: list[int], vocabulary: set[bytes], every: int
) -> None:
    runs, trie = trie_of(vocabulary)
    expected = encoded_plainly(bytes(text), runs, every)
    wanted = np.array(text, np.uint16)
    assert encode_runs_reference(wanted, trie, every).tolist() == expected
    for _ in each_variant():
        assert encode_runs(wanted, trie, every).tolist() == expected


@same_examples
@given(symbols, vocabularies, st.integers(1, 50))
def test_the_runs_of_the_codes_are_the_symbols_again(text: list[int], vocabulary: set[bytes], every: int) -> None:
    runs, trie = trie_of(vocabulary)
    codes = encode_runs(np.array(text, np.uint16), trie, every)
    assert b"".join(runs[code] for code in codes) == bytes(text)


def test_codes_are_nodes_and_beginnings_without_a_code_come_behind_them() -> None:
    _, trie = trie_of({bytes([0, 1, 2]), bytes([0, 1, 2, 2]), bytes([2, 1])})
    assert trie.num_codes == 6 and len(trie.next) == 7
    assert trie.next[0, 1] == 6 and trie.next[6, 2] == 3 and trie.next[3, 2] == 4 and trie.next[2, 1] == 5
    assert np.count_nonzero(trie.next) == 4


def test_a_symbol_outside_the_alphabet_is_not_read_past_the_trie() -> None:
    with pytest.raises(AssertionError, match="a symbol without a code"):
        encode_runs(np.array([0, NUM_SYMBOLS], np.uint16), trie_of(set())[1], 100)
