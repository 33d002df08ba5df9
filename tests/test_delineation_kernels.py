"""The compiled loops of delineation: every variant computes what NumPy does."""

from __future__ import annotations

import numpy as np
import pytest

from heartlm.delineation.network import AGREEMENT, Network, find_waves, prepare
from heartlm.kernels.library import kernel
from tests.delineation_reference import agreed, expected_p, network_answer, prepared, waves_of, weights_of
from tests.kernel_references import each_variant
from tests.synthetic_leads import beat_times_s, ecg_mv


def lead_mv(duration_s: float, rate_hz: float, seed: int = 0) -> np.ndarray:
    time_s = np.arange(int(duration_s * rate_hz)) / rate_hz
    noise = np.random.default_rng(seed).normal(0, 0.02, len(time_s))
    return (ecg_mv(time_s, beat_times_s(int(duration_s * 1.5) + 2, seed)) + noise).astype(np.float32)


def random_layers(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Layers as the network has them: kernels 11, 5, 5, 3 down, dilations 1 to 8, kernels 1 and 3 up."""
    random, channels = np.random.default_rng(seed), (8, 16, 24, 32)
    a, b, c, d = channels
    shapes = [(a, 1, 11, 1), (b, a, 5, 1), (c, b, 5, 1), (d, c, 3, 1), *((d, d, 3, n) for n in (1, 2, 4, 8))]
    shapes += [(c, d, 1, 1), (c, c, 3, 1), (b, c, 1, 1), (b, b, 3, 1), (a, b, 1, 1), (a, a, 5, 1), (4, a, 3, 1)]
    return [
        (
            random.normal(0, (2 / inner / width) ** 0.5, (outer, inner, width)).astype(np.float32),
            random.normal(0, 0.1, outer).astype(np.float32),
            dilation,
        )
        for outer, inner, width, dilation in shapes
    ]


@pytest.mark.parametrize("rate_hz", [100.0, 128.0, 250.0, 360.0, 500.0, 977.0])
def test_leads_are_prepared_as_in_numpy(rate_hz: float) -> None:
    signal = lead_mv(7.3, rate_hz)
    signal[:5] = signal[300:340] = signal[-3:] = np.nan
    signal[100], signal[101] = np.inf, -1e9
    expected = prepared(signal, rate_hz)
    for variant in each_variant():
        found = prepare(signal, rate_hz)
        assert len(found) % 16 == 0 and not found[len(expected) :].any(), variant
        np.testing.assert_allclose(found[: len(expected)], expected, atol=2e-5, err_msg=variant)


@pytest.mark.parametrize("length", [16, 4096, 4112, 9008])
def test_the_network_answers_as_in_numpy_and_leaves_no_trace_of_tiles(length: int) -> None:
    layers = random_layers()
    x = np.random.default_rng(1).normal(0, 0.3, length).astype(np.float32)
    expected = network_answer(layers, x)
    for variant in each_variant():
        np.testing.assert_allclose(Network(layers)(x), expected, atol=2e-4, err_msg=variant)


@pytest.mark.parametrize("num_leads", [1, 2, 5])
def test_leads_agree_as_in_numpy(num_leads: int) -> None:
    random, cells = np.random.default_rng(num_leads), 203
    answers = random.uniform(-13.8, 0, (num_leads, 4, cells)).astype(np.float32)
    usable = random.random((num_leads, cells)) < 0.7
    answers -= answers.max(axis=1, keepdims=True)
    expected = np.stack([weights_of(*each, 20) for each in zip(answers.astype(float), usable, strict=True)])
    of_leads, together = agreed(answers.astype(float), expected, 0.6)
    of_edges, _ = agreed(answers.astype(float), expected, 0.25)
    for variant in each_variant():
        found, edges, mean = answers.copy(), np.empty_like(answers), np.empty((4, cells), np.float32)
        weights, scratch = usable.astype(np.float32), np.empty(cells, np.float32)
        for answer, of_lead in zip(answers, weights, strict=True):
            kernel("delineate_weights")(answer, cells, 20, scratch, of_lead)
        np.testing.assert_allclose(weights, expected, rtol=1e-4, err_msg=variant)
        kernel("delineate_agree")(found, weights, num_leads, cells, 0.6, 0.25, edges, mean)
        np.testing.assert_allclose(found, of_leads, atol=1e-5, err_msg=variant)
        np.testing.assert_allclose(edges, of_edges, atol=1e-5, err_msg=variant)
        np.testing.assert_allclose(mean, together, atol=1e-5, err_msg=variant)


@pytest.mark.parametrize("step", [0.512, 1.0, 1.44, 4.0])
def test_waves_are_those_of_numpy(step: float) -> None:
    random, cells, num_found = np.random.default_rng(3), 3000, 0
    least_sum, least_top = np.array([0, 3, 2.5, 4], np.float32), np.array([0, 0.6, 0.5, 0.5], np.float32)
    smooth = np.apply_along_axis(lambda x: np.convolve(x, np.hanning(9), "same"), 1, random.normal(0, 1, (4, cells)))
    probability = (np.exp(smooth) / np.exp(smooth).sum(axis=0)).astype(np.float32)
    signal = random.normal(0, 1, int(2 * cells * step)).astype(np.float32)
    plain = probability.copy()
    plain[1] *= np.repeat(np.exp(random.normal(0, 1, cells // 50)), 50)
    plain /= plain.sum(axis=0)
    expected = waves_of(probability, plain, signal, step, 5, least_sum, least_top)
    for variant in each_variant():
        places, confidence = np.empty((cells, 4), np.int64), np.empty(cells, np.float32)
        num_found = kernel("delineate_waves")(
            *(probability, plain, cells, signal, len(signal), step, 5, least_sum, least_top, False),
            *(cells, np.empty(cells, np.float32), places, confidence),
        )
        assert places[:num_found].tolist() == [list(wave[:4]) for wave in expected], variant
        np.testing.assert_allclose(confidence[:num_found], [wave[4] for wave in expected], rtol=1e-5, err_msg=variant)
    assert num_found > 100


@pytest.mark.parametrize(("num_beats", "rr"), [(2, 62), (3, 62), (40, 62), (40, 150)])
def test_p_waves_are_expected_as_in_numpy(num_beats: int, rr: int) -> None:
    random, step, cells = np.random.default_rng(num_beats), 1.44, rr * num_beats
    answer = np.exp(random.normal(0, 1, (4, cells)))
    probability = (answer / answer.sum(axis=0)).astype(np.float32)
    waves = []
    for beat in range(num_beats):
        at = round((beat * rr + 40 + random.normal(0, 0.05) * rr * (beat > 20)) * 2 * step)
        if random.random() < (0.6 if rr == 62 else 0.2):
            waves.append((1, at - 60, at - 45, at - random.integers(20, 120)))
        waves.append((2, at - 8, at, at + 9))
        waves.append((3, at + 30, at + 50, at + 70))
    table = np.array(waves, np.int64)
    expected = expected_p(probability, table, step, 70, 4, 2.0)
    for variant in each_variant():
        found, scratch = probability.copy(), np.empty(2 * len(table), np.float32)
        kernel("delineate_expect")(found, cells, table, len(table), step, 70, 4, 2.0, scratch)
        np.testing.assert_allclose(found, expected, atol=2e-6, err_msg=variant)
    assert np.array_equal(expected, probability) == (num_beats == 2)


def test_flat_and_missing_signal_is_not_usable() -> None:
    signal = lead_mv(10, 250.0)
    signal[500:700], signal[1000:1250], signal[2000:2100] = 0.3, np.nan, np.nan
    for variant in each_variant():
        usable = np.empty(1250, np.float32)
        kernel("delineate_usable")(signal, len(signal), 1.0, 125, 1250, usable)
        flat = np.zeros(1250, np.bool_)
        flat[250:351] = flat[499:626] = True
        assert abs(int((usable == 0).sum()) - int(flat.sum())) <= 3 and not usable[flat][2:-2].any(), variant


def test_variants_find_the_same_waves() -> None:
    signals = np.stack([lead_mv(60, 360.0, seed) for seed in (0, 0)])
    signals[1] *= -0.5
    found = [find_waves(signals, 360.0)[0][1] for _ in each_variant()]
    for other in found[1:]:
        np.testing.assert_array_equal(other.kind, found[0].kind)
        assert np.abs(other.onset - found[0].onset).max() <= 1 and np.abs(other.offset - found[0].offset).max() <= 1
    assert AGREEMENT > 0 and (found[0].kind == 2).sum() > 60
