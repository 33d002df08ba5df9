"""Networks in NumPy answer as the modules of torch that were trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.inference import intervals, load
from heartlm.inference.load import chosen_device, load_network
from heartlm.inference.trees import fitted_trees
from heartlm.kernels.library import using, variants
from heartlm.models.answering import answering, load_answering
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from heartlm.models.leads import LeadsNetwork
from heartlm.models.pretrained import FOLDER, shipped_models
from heartlm.models.statistics import interval_statistics
from heartlm.models.store import build_model, load_model, save_tensors, whole_tensors
from heartlm.models.trees import tensors_of
from tests.in_numpy import in_numpy
from tests.untrained import spread_answers

CLOSE = 1e-5


def drawn_codes(config: ModelConfig, shape: tuple[int, int], seed: int = 0) -> NDArray[np.uint16]:
    random = np.random.default_rng(seed)
    if config.network == "waveform":  # a signal, which has a spectrum
        steps = random.integers(-20, 21, (*shape, 1)) * random.integers(0, 4, (shape[0], 1, 1))
        return np.clip(np.cumsum(steps, axis=1) + 512, 1, 1023).astype(np.uint16)
    codes = np.stack([random.integers(0, size, shape) for size in config.facet_sizes], axis=2).astype(np.uint16)
    if config.network in ("leads", "residual"):
        codes[..., random.random(codes.shape[2]) < 0.5] = 0  # leads that are missing
    return codes


def assert_same_answers(network: Any, reference: Any, codes: NDArray[np.uint16]) -> None:
    found, expected = network.probabilities(codes), np.asarray(reference.probabilities(codes))
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=CLOSE)
    if network.config.network in ("leads", "residual"):  # statements do not exclude each other
        return
    top = np.sort(expected, axis=-1)
    clear = top[..., -1] - top[..., -2] > 2 * CLOSE
    assert np.array_equal(found.argmax(axis=-1)[clear], expected.argmax(axis=-1)[clear]) and clear.mean() > 0.9


@pytest.mark.parametrize("name", [name for name in shipped_models() if name != "foundation"])
def test_shipped_models_answer_as_by_torch(name: str) -> None:
    folder = FOLDER / name / "models/last"
    (network, info), (reference, _) = load_network(folder), load_answering(folder, "cpu")
    for shape in ((3, info.window), (2, max(1, info.window // 3))):
        if info.config.network != "waveform" or shape[1] == info.window:
            assert_same_answers(network, reference, drawn_codes(info.config, shape))
    assert network.num_weights == reference.num_weights and network.device == reference.device == "cpu"


@pytest.mark.parametrize("name", ["foundation", "statements"])
@pytest.mark.parametrize("layer", [-1, 0, 2])
def test_shipped_models_have_the_vectors_of_torch(name: str, layer: int) -> None:
    folder = FOLDER / name / "models/last"
    (network, info), (reference, _) = load_network(folder), load_answering(folder, "cpu")
    codes = drawn_codes(info.config, (2, 75))
    expected = np.asarray(reference.hidden(codes, layer))
    np.testing.assert_allclose(network.hidden(codes, layer), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 8])  # 8: of a width that the attention of the kernels does not take
def test_transformers_of_any_shape_answer_as_by_torch(heads: int, causal: bool, variant: str) -> None:
    config = ModelConfig((7, 5, 3), depth=2, width=32, heads=heads, causal=causal).resolve()
    model = drawn_model(config, num_classes=4)
    with using(variant):
        for width in (1, 19, 70):
            assert_same_answers(in_numpy(model), answering(model), drawn_codes(config, (3, width)))


def test_attention_without_the_kernel_is_the_same_in_any_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    from heartlm.inference import transformer

    model = drawn_model(ModelConfig((7,), depth=1, width=16, heads=2, causal=True).resolve(), num_classes=2)
    codes, whole = drawn_codes(model.config, (2, 30)), in_numpy(model)
    expected = whole.probabilities(codes)
    monkeypatch.setattr(transformer, "_LOGITS_AT_ONCE", 2 * 30 * 7)
    np.testing.assert_allclose(whole.probabilities(codes), expected, atol=1e-6)


@pytest.mark.parametrize("width", [1, 3, 8, 33])
def test_pooled_heads_with_statistics_answer_as_by_torch(width: int) -> None:
    config = ModelConfig((6, 4), depth=1, width=32).resolve()
    seconds = torch.tensor([0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.0])  # unknown, and the mask code
    model = drawn_model(config, num_classes=2, pooled=True, seconds=seconds)
    codes = drawn_codes(config, (9, width))
    codes[0, :, 0] = 0  # nothing known
    assert_same_answers(in_numpy(model), answering(model), codes)


@pytest.mark.parametrize(("network", "members"), [("leads", 1), ("leads", 3), ("residual", 2)])
@pytest.mark.parametrize("width", [600, 37, 2])
def test_networks_over_leads_answer_as_by_torch(network: Any, members: int, width: int) -> None:
    config = ModelConfig((1024,) * 18 + (2,), 4, width=64, network=network, members=members).resolve()
    model = drawn_model(config, num_classes=5)
    codes = drawn_codes(config, (2, width))
    assert_same_answers(in_numpy(model), answering(model), codes)
    assert np.ptp(answering(model).probabilities(codes)) > 0.01


def test_waveform_networks_answer_as_by_torch() -> None:
    config = ModelConfig((1024,), 4, width=24, heads=1, network="waveform").resolve()
    model = drawn_model(config, num_classes=5)
    assert_same_answers(in_numpy(model, window=400), answering(model), drawn_codes(config, (41, 400)))


def test_trees_answer_as_by_torch() -> None:
    pytest.importorskip("sklearn")
    random = np.random.default_rng(0)
    features = random.normal(size=(200, 6)).astype(np.float32)
    labels = np.stack([features[:, 0] > 0, features[:, 1] * features[:, 2] > 0], axis=1).astype(np.int64)
    labels[:20, 1] = -1
    trees = fitted_trees(features, labels, seed=1)
    np.testing.assert_allclose(trees(features), tensors_of(trees)(torch.from_numpy(features)).numpy(), atol=1e-5)
    assert ((trees(features) > 0) == (labels == 1))[20:].mean() > 0.95
    model = drawn_model(ModelConfig((9,) * 18 + (2,), 4, width=32, network="leads").resolve(), num_classes=2)
    assert isinstance(model, LeadsNetwork)
    model.trees = tensors_of(trees)
    for network in (in_numpy(model), answering(model)):
        assert network.trees is not None
        np.testing.assert_allclose(network.trees(features), trees(features), atol=1e-5)


@st.composite
def windows(draw: st.DrawFn) -> NDArray[np.float32]:
    random = np.random.default_rng(draw(st.integers(0, 999)))
    shape = draw(st.integers(1, 4)), draw(st.integers(1, 60))
    spread = draw(st.sampled_from([0.01, 0.05, 1.0]))
    return np.round(random.normal(0.8, spread, shape), 4).astype(np.float32)


@settings(max_examples=100)
@given(windows())
def test_statistics_of_intervals_are_those_of_torch(seconds: NDArray[np.float32]) -> None:
    expected = interval_statistics(torch.from_numpy(seconds)).numpy()
    np.testing.assert_allclose(intervals.interval_statistics(seconds), expected, atol=2e-3)  # of -5 to 5


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Path]:
    info = load_model(FOLDER / "af/models/last")[1]
    tensors = whole_tensors(load_model(FOLDER / "af/models/last")[0])
    save_tensors(tmp_path / "model", tensors, info)
    yield tmp_path / "model"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors: tensors.pop("trunk.norm.weight"), "trunk.norm.weight is missing"),
        (lambda tensors: tensors.update({"more": torch.zeros(1)}), "more is not part of the network"),
        (
            lambda tensors: tensors.update({"class_head.bias": torch.zeros(3)}),
            r"class_head.bias has the shape \(3,\), not \(2,\)",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(saved: Path, change: Any, reason: str) -> None:
    model, info = load_model(saved)
    tensors = whole_tensors(model)
    change(tensors)
    save_tensors(saved, tensors, info)
    with pytest.raises(HeartlmError, match=rf"model: tensors do not fit config.json \({reason}\): train again"):
        load_network(saved)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HeartlmError, match="device: 'tpu' found, auto, cpu or cuda expected"):
        chosen_device("tpu")
    assert chosen_device("cpu") == "cpu"
    monkeypatch.setattr(load, "GPU_FILES", ())
    assert chosen_device("auto") == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(HeartlmError, match="device: 'cuda' found, but torch sees no GPU"):
            chosen_device("cuda")
        monkeypatch.setattr(load, "GPU_FILES", ("/dev/null",))
        assert chosen_device("auto") == "cpu"


def drawn_model(config: ModelConfig, num_classes: int, **settings: Any) -> HeartModel:
    """A model with weights, and means and variances of batches, that let its answers differ."""
    torch.manual_seed(3)
    num_coordinates = 1 if config.network != "transformer" else 3
    geometry = [torch.randn(size, num_coordinates) for size in config.facet_sizes]
    model = build_model(config, geometry, num_classes, **settings).eval()
    spread_answers(model)
    return model
