"""Batches: what is hidden, what is asked, what counts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.rows import RecordTable
from heartlm.corpus.windows import Windows
from heartlm.ecg.recording import BEAT_CLASSES, RHYTHM_INDEX
from heartlm.kernels.draws import Stream, hide_spans
from heartlm.labels.tokens import IGNORE, beat_labels, rhythm_labels
from heartlm.tasks.finetune import weighted_labels
from heartlm.tasks.task import FinetuneConfig
from heartlm.training.batches import BatchPosition, CausalBatches, LabelBatches, MaskedBatches, majority
from heartlm.training.objectives import label_weights
from tests.synthetic_corpus import SIZES, every_window, synthetic_corpus

MASK = np.array(SIZES)
WIDTH = 16


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return synthetic_corpus()


@pytest.fixture(scope="module")
def windows(corpus: Corpus) -> Windows:
    """Windows of the whole corpus; the last is shorter than the width, so it ends in padding."""
    windows = every_window(corpus, WIDTH)
    assert not windows.valid.all()
    return windows


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    width=st.integers(1, 40),
    share=st.floats(0.01, 0.99),
    longest=st.integers(1, 50),
    seed=st.integers(0, 1000),
)
@settings(derandomize=True, deadline=None)
def test_every_window_hides_something_and_never_padding(
    lengths: list[int], width: int, share: float, longest: int, seed: int
) -> None:
    length = np.minimum(lengths, width)
    hidden, _ = hide_spans(share, longest, Stream(seed, 0), length, width)
    assert hidden.any(axis=1).all()
    assert not (hidden & (np.arange(width) >= length[:, None])).any()


@pytest.mark.parametrize("longest", [1, 4, 8])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_about_the_asked_share_is_hidden_in_runs(share: float, longest: int) -> None:
    hidden, _ = hide_spans(share, longest, Stream(0, 0), np.full(400, 256), 256)
    # spans that overlap hide less than the share; the one that every window is sure of hides a little more
    assert 0.8 * share < hidden.mean() < 1.1 * share
    edges = np.diff(np.pad(hidden, ((0, 0), (1, 1))).astype(int), axis=1)
    runs = np.argwhere(edges == -1)[:, 1] - np.argwhere(edges == 1)[:, 1]
    assert runs.mean() > (longest + 1) / 2 * 0.95


def test_what_is_hidden_stays_that_of_published_figures() -> None:
    hidden, _ = hide_spans(0.3, 4, Stream(7, 3, 1), np.array([16, 16, 5]), 16)
    assert [np.flatnonzero(window).tolist() for window in hidden] == [
        [0, 1, 8, 9, 10, 11],
        [12, 13, 14, 15],
        [0, 1, 2, 4],
    ]


def test_masked_batches_hide_whole_tokens_and_ask_for_them(corpus: Corpus, windows: Windows) -> None:
    make = MaskedBatches(corpus, MASK, 0.3, 4, seed=5)
    batch = make(windows, 7)
    assert (batch.codes[batch.counts].numpy() == MASK).all()
    assert (batch.codes[~batch.counts] == batch.target[~batch.counts]).all()
    np.testing.assert_array_equal(batch.target, corpus.codes[windows.index])
    assert batch.num_counted == batch.counts.sum() > 0
    np.testing.assert_array_equal(make(windows, 7).counts, batch.counts)
    assert (make(windows, 8).counts != batch.counts).any()


def test_validation_masks_stay_the_same(corpus: Corpus, windows: Windows) -> None:
    make = MaskedBatches(corpus, MASK, 0.3, 4, seed=5)
    np.testing.assert_array_equal(make(windows, None).codes, make(windows, None).codes)


def test_causal_targets_are_the_next_tokens(corpus: Corpus, windows: Windows) -> None:
    batch = CausalBatches(corpus)(windows, 0)
    assert batch.codes.shape == (len(windows), WIDTH - 1, len(SIZES))
    np.testing.assert_array_equal(batch.codes[:, 1:], batch.target[:, :-1])
    for window in range(len(windows)):
        first, length = int(windows.first[window]), int(windows.length[window])
        np.testing.assert_array_equal(batch.target[window, : length - 1], corpus.codes[first + 1 : first + length])
        assert batch.counts[window].sum() == length - 1
        assert batch.valid[window].sum() == min(length, WIDTH - 1)


def test_micro_batches_are_the_batch_in_parts(corpus: Corpus, windows: Windows) -> None:
    make = MaskedBatches(corpus, MASK, 0.3, 4, seed=5)
    batch = make(windows[:12], 0)
    drafts = make.draft(windows[:12], BatchPosition(0, 0, 12)).parts(4)
    parts = [make.finish(make.choose(draft)) for draft in drafts]
    np.testing.assert_array_equal(np.concatenate([part.codes for part in parts]), batch.codes)
    assert sum(part.num_counted for part in parts) == batch.num_counted


def labelled(corpus: Corpus, *, pooled: bool = False, dropout: float = 0.0) -> LabelBatches:
    labels = corpus.beat_class.astype(np.int64).copy()
    labels[::5] = IGNORE
    return LabelBatches(corpus, labels, MASK, pooled, dropout, seed=3)


def test_labels_of_tokens_leave_out_padding_and_the_unlabelled(corpus: Corpus, windows: Windows) -> None:
    make = labelled(corpus)
    batch = make(windows, 0)
    np.testing.assert_array_equal(batch.target[windows.valid], make.labels[windows.index][windows.valid])
    assert (batch.target[~windows.valid] == IGNORE).all()
    np.testing.assert_array_equal(batch.counts, batch.target != IGNORE)


def test_codes_are_hidden_in_training_only(corpus: Corpus, windows: Windows) -> None:
    make = labelled(corpus, dropout=0.4)
    plain = corpus.codes[windows.index]
    hidden = make(windows, 3).codes.numpy() == MASK
    assert 0.35 < hidden.mean() < 0.45
    np.testing.assert_array_equal(np.where(hidden, plain, make(windows, 3).codes), plain)
    np.testing.assert_array_equal(make(windows, None).codes, plain)
    assert (make(windows, 4).codes != make(windows, 3).codes).any()


def test_waveforms_are_hidden_from_whole_windows(corpus: Corpus, windows: Windows) -> None:
    facets = [{"name": name, "size": size} for name, size in zip(("shape_0", "rr"), SIZES, strict=True)]
    named = dataclasses.replace(corpus, manifest={"tokenizer": {"facets": facets}})
    make = dataclasses.replace(labelled(named), waveform_dropout=0.5)
    plain = corpus.codes[windows.index]
    hidden = np.concatenate([make(windows, step).codes.numpy() == MASK for step in range(20)])
    bare = hidden[:, :, 0].all(axis=1)
    assert 0.3 < bare.mean() < 0.7
    assert not hidden[:, :, 1].any() and not hidden[~bare, :, 0].any()
    np.testing.assert_array_equal(make(windows, None).codes, plain)
    half = [make(windows[part], 1, part.start, len(windows)).codes for part in (slice(0, 5), slice(5, len(windows)))]
    np.testing.assert_array_equal(np.concatenate(half), make(windows, 1).codes)


def test_window_labels_are_the_majority(corpus: Corpus, windows: Windows) -> None:
    tokens, pooled = labelled(corpus)(windows, None), labelled(corpus, pooled=True)(windows, None)
    assert pooled.target.shape == pooled.counts.shape == (len(windows),)
    for labels, found in zip(tokens.target, pooled.target, strict=True):
        assert found == np.bincount(labels[labels >= 0]).argmax()


@pytest.mark.parametrize("pooled", [False, True])
def test_mixed_widths_cut_the_windows_of_a_step_into_equal_parts(
    corpus: Corpus, windows: Windows, pooled: bool
) -> None:
    whole = labelled(corpus)(windows, None)
    make = dataclasses.replace(labelled(corpus, pooled=pooled), shortest=WIDTH // 4)
    widths = set()
    for step in range(20):
        batch = make(windows, step)
        width = batch.codes.shape[1]
        widths.add(width)
        np.testing.assert_array_equal(batch.codes.flatten(0, 1), whole.codes.flatten(0, 1))
        valid = whole.valid.reshape(-1, width).numpy().copy()
        valid[:, 0] = True  # also of a part that is all padding
        np.testing.assert_array_equal(batch.valid, valid)
        np.testing.assert_array_equal(batch.num_valid, batch.valid.sum(dim=1))
        labels = whole.target.reshape(-1, width).numpy()
        np.testing.assert_array_equal(batch.target, majority(labels) if pooled else labels)
        assert batch.num_counted == int(batch.counts.sum())
    assert widths == {WIDTH, WIDTH // 2, WIDTH // 4}
    assert make(windows, None).codes.shape[1] == WIDTH


@pytest.mark.parametrize(
    ("labels", "expected"), [([1, 1, 0], 1), ([0, 1, -1, -1, -1], 0), ([3, 3, 1, 1], 1), ([-1, -1], -1), ([2], 2)]
)
def test_majority(labels: list[int], expected: int) -> None:
    assert majority(np.array([labels])).tolist() == [expected]


def test_majority_of_rows_is_each_row_its_own() -> None:
    assert majority(np.array([[-1, -1], [0, 0], [5, 5]])).tolist() == [-1, 0, 5]


def test_q_and_unlabelled_beats_are_not_learnt_and_artefacts_are_the_fifth_class() -> None:
    index = np.array([-1, *range(len(BEAT_CLASSES))], np.int8)
    assert beat_labels(index).tolist() == [-1, 0, 1, 2, 3, -1, 4]


@pytest.mark.parametrize(
    ("wanted", "flutter", "of_flutter"),
    [("AFIB", "negative", 0), ("AFIB", "positive", 1), ("AFIB", "left out", -1), ("N", "positive", 0)],
)
def test_rhythm_labels_count_flutter_as_told(wanted: str, flutter: str, of_flutter: int) -> None:
    rhythm = np.array([-1, *(RHYTHM_INDEX[name] for name in ("N", "AFIB", "VT", "AFL"))], np.int8)
    expected = [-1, int(wanted == "N"), int(wanted == "AFIB"), 0, of_flutter]
    assert rhythm_labels(rhythm, wanted, flutter).tolist() == expected


def class_weights(labels: NDArray[np.int64], num_classes: int, balance: float) -> torch.Tensor:
    """Weights of the classes of one patient."""
    return label_weights(labels, np.zeros_like(labels), num_classes, balance)[0]


@given(
    counts=st.lists(st.integers(0, 500), min_size=2, max_size=5).filter(any),
    balance=st.floats(0, 1),
)
@settings(derandomize=True, deadline=None)
def test_class_weights_average_one_over_the_labels(counts: list[int], balance: float) -> None:
    labels = np.concatenate([np.repeat(np.arange(len(counts)), counts), [-1, -1]]).astype(np.int64)
    weight = class_weights(labels, len(counts), balance)
    assert float(weight[torch.from_numpy(labels[labels >= 0])].mean()) == pytest.approx(1, rel=1e-4)
    assert torch.isfinite(weight).all()


@given(st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 1))
@settings(derandomize=True, deadline=None)
def test_balances_share_a_class_out_among_patients(seed: int, classes: float, patients: float) -> None:
    rng = np.random.default_rng(seed)
    patient, labels = rng.integers(0, 4, 500), rng.choice(4, 500, p=[0.1, 0.7, 0.15, 0.05]) - 1
    weight = label_weights(labels, patient, 3, classes, patients).numpy()
    count = np.stack([np.bincount(labels[(patient == one) & (labels >= 0)], minlength=3) for one in range(4)])
    mass = weight * count
    assert mass.sum() == pytest.approx(count.sum(), rel=1e-4)
    np.testing.assert_allclose(
        mass.sum(axis=0) / mass.sum(),
        count.sum(axis=0) ** (1 - classes) / (count.sum(axis=0) ** (1 - classes)).sum(),
        rtol=1e-4,
    )
    within = count ** (1 - patients) * (count > 0)
    np.testing.assert_allclose(mass / mass.sum(axis=0), within / within.sum(axis=0), rtol=1e-4)


def test_balance_goes_from_alike_to_inverse() -> None:
    labels = np.repeat([0, 1], [90, 10])
    np.testing.assert_allclose(class_weights(labels, 2, 0.0), [1, 1])
    np.testing.assert_allclose(class_weights(labels, 2, 1.0), [100 / 180, 5], rtol=1e-5)
    assert class_weights(np.repeat([0, 1], [9, 1]), 3, 1.0)[2] == class_weights(np.repeat([0, 1], [9, 1]), 3, 1.0)[1]


def test_a_database_of_one_class_does_not_change_the_balance_of_the_others() -> None:
    alone, wider = synthetic_corpus((400, 300)), synthetic_corpus((400, 300, 2000))
    rows = [*wider.records.rows[:2], dataclasses.replace(wider.records.rows[2], database="normal")]
    wider = dataclasses.replace(wider, records=RecordTable(rows))
    labels = (np.arange(2700) % 10 == 0).astype(np.int64)
    labels[700:] = 0
    config = FinetuneConfig(task="beats")
    weight = [
        weighted_labels(corpus, labels[: len(corpus.sample)], range(len(corpus.records)), 2, config)[1].weight
        for corpus in (alone, wider)
    ]
    torch.testing.assert_close(weight[1][:2], weight[0])
    assert (weight[0][:, 1] > 2 * weight[0][:, 0]).all()
