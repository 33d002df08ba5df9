"""Predictions of windows: what is computed together does not change what is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heartlm.analysis.embed import hidden_states
from heartlm.ecg.recording import ARTEFACT
from heartlm.inference import transformer
from heartlm.inference.predictions import (
    NEAR_BEATS,
    recording_probabilities,
    token_probabilities,
    window_probabilities,
    without_artefacts,
)
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from tests.in_numpy import in_numpy

Codes = NDArray[np.uint16]
SIZES, WINDOW = (6, 4), 16


def model(pooled: bool) -> HeartModel:
    torch.manual_seed(3)
    seconds = torch.tensor([0.0, 0.5, 0.6, 0.7, 0.8, 0.9]) if pooled else None
    config = ModelConfig(SIZES, depth=2, width=32).resolve()
    built = HeartModel(config, [torch.randn(size, 3) for size in SIZES], 3, pooled, seconds).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(4)
    return built


@pytest.fixture(scope="module")
def recordings() -> list[Codes]:
    random = np.random.default_rng(0)
    lengths = (40, 5, 16, 7, 5, 17, 100, 1, 5)
    return [np.stack([random.integers(0, size, num) for size in SIZES], axis=1).astype(np.uint16) for num in lengths]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    yield lambda num_tokens: monkeypatch.setattr(transformer, "TOKENS_AT_ONCE", num_tokens)


@pytest.mark.parametrize("pooled", [False, True])
def test_recordings_computed_together_have_the_scores_of_each_alone(
    recordings: list[Codes], at_once: Callable[[int], None], pooled: bool
) -> None:
    network, expected = model(pooled), []
    for codes in recordings:  # window by window
        width = min(WINDOW, len(codes))
        total, count = np.zeros((len(codes), 3)), np.zeros((len(codes), 1))
        for first in sorted({min(at, len(codes) - width) for at in range(0, len(codes) - width + 8, 8)}):
            part = torch.from_numpy(codes[first : first + width].astype(np.int64))[None]
            with torch.inference_mode():
                total[first : first + width] += network.class_logits(part)[0].softmax(dim=-1).numpy()
            count[first : first + width] += 1
        expected.append(total / count)
    assert np.ptp(np.concatenate(expected), axis=0).min() > 0.05
    light = in_numpy(network)
    for num_tokens in (1, 48, 1 << 12):
        at_once(num_tokens)
        scores = list(recording_probabilities(light, recordings, WINDOW))
        for one, other in zip(scores, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
        np.testing.assert_allclose(token_probabilities(light, recordings[0], WINDOW), expected[0], atol=1e-5)


@pytest.mark.parametrize("layer", [-1, 0])
def test_recordings_computed_together_have_the_vectors_of_each_alone(
    recordings: list[Codes], at_once: Callable[[int], None], layer: int
) -> None:
    network, results = in_numpy(model(pooled=False)), []
    for num_tokens in (1, 48, 1 << 12):
        at_once(num_tokens)
        results.append(np.concatenate(list(hidden_states(network, recordings, WINDOW, layer))))
    assert len(results[0]) == sum(map(len, recordings))
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], atol=5e-5)  # of numbers up to 9


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("width", [8, 16, 40])
def test_the_size_of_a_batch_changes_no_window(
    recordings: list[Codes], at_once: Callable[[int], None], width: int, pooled: bool
) -> None:
    windows, network = recordings[6][: 100 // width * width].reshape(-1, width, 2), in_numpy(model(pooled))
    results = []
    for num_tokens in (1, 48, 1 << 12):
        at_once(num_tokens)
        results.append(window_probabilities(network, windows, WINDOW))
    assert results[0].shape == (len(windows), 3)
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], atol=1e-6)


def test_artefacts_are_left_out_until_none_is_found() -> None:
    classes = ("N", "V", ARTEFACT)
    calls: list[int] = []

    def classify(kept: np.ndarray) -> np.ndarray:
        calls.append(int(kept.sum()))
        probability = np.tile(np.float32([0.6, 0.3, 0.1]), (len(kept), 1))
        probability[3] = [0.1, 0.2, 0.7]
        if not kept[3]:  # which without it are seen to be one too, or no longer
            probability[4] = [0.1, 0.1, 0.8]
            probability[5] = [0.2, 0.7, 0.1]
        return probability[kept]

    probability, no_beat = without_artefacts(classify, 8, classes)
    assert no_beat.tolist() == [False, False, False, True, True, False, False, False] and calls == [8, 7, 6]
    assert probability.shape == (8, 2) and probability[5].argmax() == 1
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-6)
    certain = np.arange(8) == 3
    probability, no_beat = without_artefacts(classify, 8, classes, certain, certain)
    assert not no_beat.any() and probability[3].tolist() == pytest.approx([0.1, 0.9]), "wide, so ventricular"
    probability, no_beat = without_artefacts(classify, 8, classes, certain)
    assert not no_beat.any() and probability[3].tolist() == pytest.approx([1 / 3, 2 / 3])
    same, none = without_artefacts(lambda kept: np.eye(2, dtype=np.float32)[[0, 1]][kept], 2, ("N", "V"))
    assert same.tolist() == [[1, 0], [0, 1]] and not none.any()


def test_an_artefact_changes_the_classes_of_the_beats_around_it_alone() -> None:
    """In bigeminy one detection less can make the other half of the beats the usual ones of a recording."""

    def classify(kept: np.ndarray) -> np.ndarray:
        probability = np.tile(np.float32([0.9, 0.1, 0.0] if kept.all() else [0.1, 0.9, 0.0]), (len(kept), 1))
        probability[50] = [0.0, 0.1, 0.9]
        return probability[kept]

    probability, no_beat = without_artefacts(classify, 100, ("N", "V", ARTEFACT))
    assert np.flatnonzero(no_beat).tolist() == [50]
    changed = np.flatnonzero(probability[:, 1] > 0.5)
    assert set(changed) - {50} == set(range(50 - NEAR_BEATS, 51 + NEAR_BEATS)) - {50}
