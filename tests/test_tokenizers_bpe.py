"""The BPE tokenizer: which runs it learns, that nothing is lost in them, and what a token of a run stands for."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.errors import HeartlmError
from heartlm.kernels.amplitude import GRID_HZ, LIMIT, NUM_LEVELS, STEP
from heartlm.kernels.bpe import BREAK
from heartlm.kernels.waveform import interpolate, smooth
from heartlm.tokenizers.base import Lead, Tokens
from heartlm.tokenizers.bpe import LONGEST_RUN, SECOND, BPETokenizer, Runs
from heartlm.tokenizers.merges import learn_runs, with_breaks
from heartlm.tokenizers.sample import SampleTokenizer
from heartlm.tokenizers.waveform import fill_gaps, hann_weights
from tests.conftest import shared_data
from tests.kernel_references import normalise
from tests.synthetic_leads import heart_lead, lead_of

MANY = 300
"""Runs asked for: what two short recordings can give."""


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    fitted = BPETokenizer(num_codes=MANY)
    fitted.fit([heart_lead(120, seed=seed, noise_mv=0.01) for seed in (1, 2)])
    return fitted


@pytest.fixture(scope="module")
def lead() -> Lead:
    return heart_lead(60, rate_hz=360, seed=3, noise_mv=0.01)


@pytest.fixture(scope="module")
def tokens(tokenizer: BPETokenizer, lead: Lead) -> Tokens:
    return tokenizer.encode(lead)


# Learning


def learnt(text: bytes, num_codes: int, longest: int = 8, every: int = 1000, num_symbols: int = 4) -> list[bytes]:
    levels = np.frombuffer(text, np.uint8).astype(np.uint16)
    return learn_runs(with_breaks([levels], every), num_symbols=num_symbols, num_codes=num_codes, longest=longest)


def learnt_plainly(stretches: list[list[int]], num_codes: int, longest: int, num_symbols: int) -> list[bytes]:
    """Count all pairs again before each merge."""
    runs = [bytes([symbol]) for symbol in range(num_symbols)]
    while len(runs) < num_codes:
        counts = Counter(pair for text in stretches for pair in pairwise(text))
        possible = [
            (-count, *pair)
            for pair, count in counts.items()
            if count >= 2 and len(runs[pair[0]]) + len(runs[pair[1]]) <= longest
        ]
        if not possible:
            break
        _, left, right = min(possible)
        runs.append(runs[left] + runs[right])
        stretches = [replaced(text, left, right, len(runs) - 1) for text in stretches]
    return runs


def replaced(text: list[int], left: int, right: int, merged: int) -> list[int]:
    done, place = list[int](), 0
    while place < len(text):
        found = text[place : place + 2] == [left, right]
        done.append(merged if found else text[place])
        place += 2 if found else 1
    return done


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=70), max_size=3),
    st.integers(3, 20),
    st.integers(2, 9),
    st.integers(2, 40),
)
def test_counts_kept_up_give_the_runs_of_counting_anew(
    texts: list[list[int]], num_codes: int, longest: int, every: int
) -> None:
    symbols = with_breaks([np.array(text, np.uint16) for text in texts], every)
    stretches = [text[begin : begin + every] for text in texts for begin in range(0, len(text), every)]
    expected = learnt_plainly(stretches, num_codes, longest, 3)
    assert learn_runs(symbols, num_symbols=3, num_codes=num_codes, longest=longest) == expected
    assert len(set(expected)) == len(expected)


def test_of_equally_frequent_pairs_the_smallest_is_merged_first() -> None:
    text = bytes([2, 3, 0, 2, 3, 0])  # 23 and 30 twice, 02 once
    assert learnt(text, 5)[4:] == [bytes([2, 3])]
    assert learnt(text, 6)[4:] == [bytes([2, 3]), bytes([2, 3, 0])]
    assert learnt(bytes([1, 3, 0, 2, 1, 3, 0, 2]), 5)[4:] == [bytes([0, 2])]


def test_no_run_is_longer_than_allowed_or_seen_only_across_a_break() -> None:
    assert max(map(len, learnt(bytes([1] * 400), 100, longest=6))) <= 6
    assert bytes([2, 3]) not in learnt(bytes([0, 1, 2, 3, 0, 0] * 20), 100, every=3)


def test_breaks_stand_after_every_so_many_symbols_and_between_stretches() -> None:
    parts = [np.arange(5, dtype=np.uint16), np.arange(2, dtype=np.uint16)]
    assert with_breaks(parts, 3).tolist() == [0, 1, 2, BREAK, 3, 4, BREAK, BREAK, 0, 1, BREAK, BREAK]
    assert len(with_breaks([], 3)) == 0


def test_little_data_gives_fewer_codes_than_asked_for() -> None:
    fitted = BPETokenizer(num_codes=1024)
    fitted.fit([heart_lead(4)])
    assert NUM_LEVELS < fitted.num_codes < 1024
    assert fitted.facets[0].size == fitted.num_codes == len(fitted.geometry()[0])


def test_fitting_twice_gives_the_same_tokenizer(tokenizer: BPETokenizer) -> None:
    again = BPETokenizer(num_codes=MANY)
    again.fit([heart_lead(120, seed=seed, noise_mv=0.01) for seed in (1, 2)])
    assert again.content_hash() == tokenizer.content_hash()


def test_a_long_recording_gives_a_stretch_chosen_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heartlm.tokenizers.bpe.FIT_SECONDS_PER_LEAD", 10)
    hashes = []
    for seed in (0, 0, 1):
        fitted = BPETokenizer(num_codes=MANY)
        fitted.fit([heart_lead(120)], seed)
        hashes.append(fitted.content_hash())
    assert hashes[0] == hashes[1] != hashes[2]


def test_every_lead_gives_at_most_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    leads = [heart_lead(60, seed=seed) for seed in (1, 2)]
    fits = []
    for limit in (2 * SECOND, 4 * SECOND):
        monkeypatch.setattr("heartlm.tokenizers.bpe.FIT_LEVELS", limit)
        fitted = BPETokenizer(num_codes=MANY)
        fitted.fit(leads)
        fits.append(fitted.num_codes)
    assert fits[0] < fits[1]


@pytest.mark.parametrize("num_codes", [127, 8193, 0])
def test_impossible_sizes_are_refused(num_codes: int) -> None:
    with pytest.raises(HeartlmError, match=f"num_codes: {num_codes} found, 128 to 8192 expected"):
        BPETokenizer(num_codes=num_codes)


def test_nothing_to_learn_from_is_said() -> None:
    with pytest.raises(HeartlmError, match="no samples to fit"):
        BPETokenizer().fit([lead_of(np.empty(0), np.empty(0))])
    with pytest.raises(HeartlmError, match="fit it first"):
        BPETokenizer().encode(heart_lead(5))


# What tokens hold


def test_the_levels_are_those_of_the_sample_tokenizer(tokenizer: BPETokenizer, lead: Lead, tokens: Tokens) -> None:
    levels = SampleTokenizer().encode(lead)
    assert tokens.num_tokens < 0.7 * levels.num_tokens
    assert np.array_equal(tokenizer.decode_levels(tokens.codes), levels.codes[:, 0])
    decoded = tokenizer.decode(tokens.codes, tokens.scale_mv)
    assert np.array_equal(decoded, SampleTokenizer().decode(levels.codes, levels.scale_mv))


def test_decoding_is_off_by_at_most_half_a_step_where_nothing_is_clipped(tokenizer: BPETokenizer) -> None:
    lead = heart_lead(40, rate_hz=500, noise_mv=0.02, seed=9)
    tokens = tokenizer.encode(lead)
    smoothed = smooth(fill_gaps(lead.signal_mv), hann_weights(500, GRID_HZ))
    normalised, scale_mv = normalise(interpolate(smoothed, np.arange(len(smoothed) // 5) * 5.0))
    off = (tokenizer.decode(tokens.codes, tokens.scale_mv)[: len(normalised)] - normalised * scale_mv) / scale_mv
    inside = np.abs(normalised) < LIMIT
    assert inside.mean() > 0.99
    assert np.abs(off[inside]).max() <= STEP / 2 + 1e-5


def test_what_lies_beyond_the_outermost_levels_is_clipped_to_them(tokenizer: BPETokenizer) -> None:
    signal = np.zeros(2000, np.float32)
    signal[1500:1520] = 100.0
    decoded = tokenizer.decode(tokenizer.encode(lead_of(signal, np.empty(0))).codes)
    assert decoded.max() == pytest.approx(LIMIT - STEP / 2)


def test_every_code_decodes_to_a_run_that_encodes_to_it(tokenizer: BPETokenizer) -> None:
    for code in range(0, MANY, 7):
        levels = tokenizer.decode_levels(np.array([[code]], np.uint16))
        assert 1 <= len(levels) <= LONGEST_RUN
        assert tokenizer.runs is not None and tokenizer.runs.encode(levels, SECOND).tolist() == [code]


def test_a_token_stands_at_its_first_sample_and_ends_at_a_whole_second(
    tokenizer: BPETokenizer, lead: Lead, tokens: Tokens
) -> None:
    levels = SampleTokenizer().encode(lead)
    assert tokenizer.runs is not None
    length = tokenizer.runs.length[tokens.codes[:, 0]]
    first = np.cumsum(length) - length
    assert np.array_equal(tokens.sample, levels.sample[first])
    assert np.array_equal(tokens.scale_mv, levels.scale_mv[first])
    assert np.array_equal(tokens.rhythm, levels.rhythm[first])
    assert (first // SECOND == (first + length - 1) // SECOND).all()


def test_a_beat_labels_the_token_that_begins_nearest_to_it(lead: Lead, tokens: Tokens) -> None:
    beats = lead.annotations
    nearest = np.abs(tokens.sample[:, None] - beats.sample).argmin(axis=0)
    expected = np.full(tokens.num_tokens, -1)
    expected[nearest] = beats.beat_classes()
    assert np.array_equal(tokens.beat_class, expected)
    assert (tokens.beat_class >= 0).sum() == beats.num_beats


def test_of_beats_that_share_a_token_the_first_one_labels_it(tokenizer: BPETokenizer) -> None:
    signal = heart_lead(20).signal_mv
    tokens = tokenizer.encode(lead_of(signal, np.array([1000, 1001, 1500]), symbol="VNN"))
    assert tokens.beat_class[tokens.beat_class >= 0].tolist() == [2, 0]


def test_a_beat_beyond_the_signal_labels_nothing(tokenizer: BPETokenizer) -> None:
    tokens = tokenizer.encode(lead_of(heart_lead(20).signal_mv[:1000], np.array([500, 1000, 2000])))
    assert (tokens.beat_class >= 0).sum() == 1


# Streams


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_a_stream_cut_at_whole_seconds_gives_the_codes_of_the_whole(
    tokenizer: BPETokenizer, seed: int, seconds: int
) -> None:
    random = np.random.default_rng(seed)
    walk = np.clip(64 + np.cumsum(random.integers(-1, 2, random.integers(1, 10 * SECOND))), 0, NUM_LEVELS - 1)
    runs, levels = tokenizer.runs, walk.astype(np.uint16)
    assert runs is not None
    cut = seconds * SECOND
    parts = [runs.encode(levels[:cut], SECOND), runs.encode(levels[cut:], SECOND)]
    assert np.array_equal(np.concatenate(parts), runs.encode(levels, SECOND))


@pytest.mark.parametrize("rate_hz", [100.0, 250.0, 360.0])
def test_the_future_changes_no_token_of_the_seconds_before(tokenizer: BPETokenizer, rate_hz: float) -> None:
    signal = heart_lead(20, rate_hz=rate_hz, noise_mv=0.01).signal_mv
    cut = round(8.5 * rate_hz)
    other = signal.copy()
    other[cut:] = 3.0
    whole, changed, shorter = (
        tokenizer.encode(lead_of(each, np.empty(0), rate_hz)) for each in (signal, other, signal[:cut])
    )
    done = int((whole.sample < 8 * rate_hz).sum())
    for each in (changed, shorter):
        assert np.array_equal(each.codes[:done], whole.codes[:done])
        assert np.array_equal(each.sample[:done], whole.sample[:done])


def test_an_empty_and_a_very_short_lead_are_encoded(tokenizer: BPETokenizer) -> None:
    assert tokenizer.encode(lead_of(np.empty(0), np.empty(0))).num_tokens == 0
    assert tokenizer.encode(lead_of(np.ones(1), np.empty(0))).num_tokens == 1


# Places


def test_runs_that_look_alike_lie_near_each_other(tokenizer: BPETokenizer) -> None:
    places = tokenizer.geometry()[0]
    assert places.shape == (MANY, 27) and places.dtype == np.float32 and np.isfinite(places).all()
    assert len(np.unique(places, axis=0)) == MANY
    like, unlike = ([62, 62, 63, 64], [62, 63, 63, 64]), ([62, 62, 63, 64], [64, 63, 62, 62])
    base = [bytes([level]) for level in range(NUM_LEVELS)]
    runs = (*base, bytes(like[0]), bytes(like[1]), bytes(unlike[1]))
    first, alike, reversed_ = BPETokenizer(len(runs), Runs(runs, NUM_LEVELS)).geometry()[0][-3:]
    assert 2 * np.linalg.norm(first - alike) < np.linalg.norm(first - reversed_)


def test_single_levels_lie_in_their_order(tokenizer: BPETokenizer) -> None:
    single = tokenizer.geometry()[0][:NUM_LEVELS]
    distance = np.linalg.norm(single[:, None] - single, axis=2) + 9 * np.eye(NUM_LEVELS)
    assert (np.abs(distance.argmin(axis=1) - np.arange(NUM_LEVELS)) == 1).all()


def test_real_recordings_lose_no_level_and_no_label() -> None:
    from heartlm.ecg.database import open_database

    database = open_database(shared_data("mitdb"))
    train, test = (Lead.read(database.recording(name), database.annotations(name)) for name in ("119", "100"))
    fitted = BPETokenizer()
    fitted.fit([train])
    tokens, levels = fitted.encode(test), SampleTokenizer().encode(test)
    assert fitted.num_codes == 1024 and levels.num_tokens / tokens.num_tokens > 2
    assert np.array_equal(fitted.decode_levels(tokens.codes), levels.codes[:, 0])
    assert (tokens.beat_class >= 0).sum() == (test.annotations.beat_classes() >= 0).sum() == 2273
