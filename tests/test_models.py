"""The model: shapes, who may look at whom, embeddings that start from the tokenizer's geometry, and models on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from heartlm.errors import HeartlmError  # noqa: E402
from heartlm.models import transformer  # noqa: E402
from heartlm.models.config import ModelConfig  # noqa: E402
from heartlm.models.dropout import dropped  # noqa: E402
from heartlm.models.fused import rotate  # noqa: E402
from heartlm.models.heart import HeartModel  # noqa: E402
from heartlm.models.info import ModelInfo  # noqa: E402
from heartlm.models.store import build_model, load_foundation, load_model, save_model  # noqa: E402
from heartlm.models.transformer import Trunk, rotary_angles  # noqa: E402
from heartlm.tokenizers.rr import ordinal_coordinates  # noqa: E402

SIZES = (11, 7, 5)
B, T, F = 3, 10, len(SIZES)
pure = settings(derandomize=True, deadline=None, max_examples=20)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def geometry() -> list[Any]:
    return [torch.from_numpy(ordinal_coordinates(size)) for size in SIZES]


def model_of(*, causal: bool = False, num_classes: int = 0, pooled: bool = False, seed: int = 0) -> HeartModel:
    torch.manual_seed(seed)
    config = ModelConfig(SIZES, depth=2, width=32, heads=2, causal=causal).resolve()
    return build_model(config, geometry(), num_classes, pooled).eval()


def some_codes(seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(0, size, (B, T), generator=generator) for size in SIZES], dim=-1)


RHYTHM: dict[str, Any] = {"task": "rhythm", "classes": ("other", "AFIB"), "positive": ("AFIB", "negative")}


def info_of(model: HeartModel, **changes: Any) -> ModelInfo:
    return replace(ModelInfo(model.config, "a" * 64, "rhythm", "masked", T, step=7), **changes)


# --- the dial ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "width", "heads", "feed_forward"),
    [(1, 32, 1, 96), (4, 128, 4, 352), (8, 256, 8, 704), (12, 384, 12, 1024)],
)
def test_width_and_heads_follow_from_the_depth(depth: int, width: int, heads: int, feed_forward: int) -> None:
    config = ModelConfig(SIZES, depth=depth).resolve()
    assert (config.width, config.heads, config.feed_forward) == (width, heads, feed_forward)
    assert config.resolve() == config


def test_every_size_can_be_set_by_hand() -> None:
    config = ModelConfig(SIZES, depth=3, width=40, heads=5, feed_forward=50, causal=True, dropout=0.5)
    assert config.resolve() == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("depth", 0), ("width", 0), ("width", -64), ("width", 100), ("heads", 0), ("heads", 3), ("heads", 64),
        ("feed_forward", -1), ("dropout", 1.0), ("dropout", -0.1), ("dropout", float("nan")),
    ],
)  # fmt: skip
def test_an_impossible_shape_names_its_field(field: str, value: Any) -> None:
    named = "heads" if (field, value) == ("width", 100) else field
    with pytest.raises(HeartlmError, match=rf"^{named}: .*(found|expected)"):
        ModelConfig(SIZES, **{"depth": 2, field: value}).resolve()


def test_a_tokenizer_of_other_sizes_is_refused() -> None:
    with pytest.raises(HeartlmError, match=r"facets of \(11, 7\) codes, the model expects \(11, 7, 5\)"):
        build_model(ModelConfig(SIZES, depth=1).resolve(), geometry()[:2])


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_shapes() -> None:
    hidden, table = model_of().hidden(some_codes())
    assert hidden.shape == (B, T, 32) and table.shape == (sum(SIZES) + F, 32)
    logits = model_of().facet_logits(hidden.flatten(0, 1), some_codes().flatten(0, 1), table)
    assert [tuple(facet.shape) for facet in logits] == [(B * T, size) for size in SIZES]
    assert model_of(num_classes=4).class_logits(some_codes()).shape == (B, T, 4)
    assert model_of(num_classes=2, pooled=True).class_logits(some_codes()).shape == (B, 2)
    assert model_of(num_classes=2).num_parameters - model_of().num_parameters == 2 * 32 + 2


def test_the_masked_code_of_every_facet_is_accepted_and_is_another_vector() -> None:
    model = model_of()
    mask = model.mask_codes()
    assert mask.tolist() == list(SIZES)
    hidden, table = model.hidden(mask.expand(B, T, F))
    assert torch.isfinite(hidden).all()
    for facet in range(F):
        row = table[model.embedding.mask_row(facet)]
        assert row.norm() > 0 and (table - row).norm(dim=1).sort().values[1] > 1e-3


# --- who looks at whom ------------------------------------------------------------------------------------------------


@pure
@given(place=st.integers(1, T - 1), seed=st.integers(0, 99))
def test_a_causal_model_never_looks_ahead(place: int, seed: int) -> None:
    model, codes = model_of(causal=True), some_codes(seed)
    changed = codes.clone()
    changed[:, place:] = some_codes(seed + 1)[:, place:]
    changed[:, place] = (codes[:, place] + 1) % torch.tensor(SIZES)
    with torch.no_grad():
        before, after = model.hidden(codes)[0], model.hidden(changed)[0]
        shorter = model.hidden(codes[:, :place])[0]
    torch.testing.assert_close(after[:, :place], before[:, :place], rtol=0, atol=1e-6)
    torch.testing.assert_close(shorter, before[:, :place], rtol=0, atol=1e-5)
    assert not torch.allclose(after[:, place], before[:, place], atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_each_token_sees_what_it_may_and_nothing_else(causal: bool) -> None:
    model = model_of(causal=causal)
    embedded = torch.randn(1, T, 32, requires_grad=True)
    sees = torch.zeros(T, T, dtype=torch.bool)
    for place in range(T):
        (gradient,) = torch.autograd.grad(model.trunk(embedded)[0, place].square().sum(), embedded)
        sees[place] = gradient[0].abs().amax(dim=-1) > 0
    everything = torch.ones(T, T, dtype=torch.bool)
    assert torch.equal(sees, everything.tril() if causal else everything)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pooled", [False, True])
def test_padding_changes_no_valid_output(causal: bool, pooled: bool) -> None:
    model = model_of(causal=causal, num_classes=3, pooled=pooled)
    codes, length = some_codes(), torch.tensor([T, 6, 1])
    valid = torch.arange(T) < length[:, None]
    other = torch.where(valid[..., None], codes, some_codes(1))
    with torch.no_grad():
        logits, again = model.class_logits(codes, valid), model.class_logits(other, valid)
        for window, num_valid in enumerate(length.tolist()):
            alone = model.class_logits(codes[window : window + 1, :num_valid])[0]
            inside = slice(None) if pooled else slice(num_valid)
            torch.testing.assert_close(logits[window][inside], alone, rtol=0, atol=1e-5)
            torch.testing.assert_close(again[window][inside], alone, rtol=0, atol=1e-5)
    assert torch.isfinite(logits).all()


def test_positions_are_told_apart_by_their_distance_alone() -> None:
    rotary = rotary_angles(20, 8, torch.device("cpu"))
    q, k = torch.randn(8), torch.randn(8)
    turned_q, turned_k = (rotate(x.expand(1, 1, 20, 8), rotary)[0, 0] for x in (q, k))
    product = turned_q @ turned_k.T
    for apart in (0, 3, 11):
        along = product.diagonal(apart)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-4, atol=1e-4)
    model, codes = model_of(), some_codes()
    with torch.no_grad():
        assert not torch.allclose(model.hidden(codes.flip(1))[0].flip(1), model.hidden(codes)[0], atol=1e-4)


@pytest.mark.parametrize("facet", range(F))
def test_a_facet_is_predicted_from_the_earlier_ones_alone(facet: int) -> None:
    model, target = model_of(), some_codes().flatten(0, 1)
    hidden, table = model.hidden(some_codes())
    changed = target.clone()
    changed[:, facet] = (changed[:, facet] + 1) % SIZES[facet]
    before, after = (model.facet_logits(hidden.flatten(0, 1), codes, table) for codes in (target, changed))
    for other in range(F):
        assert torch.equal(before[other], after[other]) == (other <= facet)


# --- embeddings -------------------------------------------------------------------------------------------------------


def test_codes_that_lie_close_start_as_close_vectors() -> None:
    torch.manual_seed(0)
    size = 64
    model = HeartModel(ModelConfig((size,), depth=2).resolve(), [torch.from_numpy(ordinal_coordinates(size))])
    _, table = model.hidden(torch.zeros(1, 1, 1, dtype=torch.long))
    level = table[1:size].detach()
    near = (level[1:] - level[:-1]).norm(dim=1)
    far = (level[20:] - level[:-20]).norm(dim=1)
    assert near.max() < far.min()
    assert 0.01 < float(level.std()) < 0.03


def test_a_token_is_the_sum_of_its_facets() -> None:
    model, codes = model_of(), some_codes()
    embedded, table = model.embedding(codes)
    starts = [sum(size + 1 for size in SIZES[:facet]) for facet in range(F)]
    expected = sum(table[starts[facet] + codes[..., facet]] for facet in range(F))
    torch.testing.assert_close(embedded, expected)


# --- dropout ----------------------------------------------------------------------------------------------------------


def some_keys(num_sites: int, num_windows: int = B, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (num_sites, num_windows), generator=generator, dtype=torch.int32)


@pure
@given(share=st.sampled_from([0.05, 0.1, 0.3, 0.5, 0.9]), seed=st.integers(0, 99))
def test_about_the_share_is_dropped_and_the_mean_stays(share: float, seed: int) -> None:
    x = dropped(torch.ones(8, 50, 40), some_keys(1, 8, seed)[0], share)
    dropped_share = (x == 0).float().mean(dim=(1, 2))
    assert ((dropped_share - share).abs() < 5 * (share * (1 - share) / 2000) ** 0.5).all()
    assert torch.allclose(x[x != 0], torch.tensor(1 / (1 - share)))


def test_what_is_dropped_belongs_to_the_window() -> None:
    x, key = torch.randn(6, 10, 4), some_keys(1, 6)[0]
    whole = dropped(x, key, 0.4)
    assert torch.equal(torch.cat([dropped(x[:4], key[:4], 0.4), dropped(x[4:], key[4:], 0.4)]), whole)
    assert torch.equal(dropped(x.flip(0), key.flip(0), 0.4).flip(0), whole)
    assert dropped(x, None, 0.4) is x and dropped(x, key, 0.0) is x


class Largest(TorchDispatchMode):
    """Notes how many elements the largest tensor has."""

    num_elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        found = (each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor))
        self.num_elements = max(self.num_elements, *found, 0)
        return result


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_dropout_never_holds_all_probabilities(
    monkeypatch: pytest.MonkeyPatch, causal: bool, padded: bool
) -> None:
    """In double precision, where no kernel attends, as on a GPU."""
    trunk = Trunk(ModelConfig(SIZES, 2, 16, 2, 16, causal=causal, dropout=0.3)).double()
    x, keys = torch.randn(2, 200, 16, dtype=torch.float64), some_keys(6, 2)
    valid = torch.arange(200) < torch.tensor([[200], [60]]) if padded else None
    num_probabilities = 2 * 2 * 200 * 200

    def computed() -> tuple[list[Any], int]:
        trunk.zero_grad()
        given = x.clone().requires_grad_()
        with Largest() as largest:
            out = trunk(given, valid, keys)
            out.square().sum().backward()
        return [out, given.grad, *(each.grad for each in trunk.parameters())], largest.num_elements

    whole, size = computed()
    assert size == num_probabilities
    monkeypatch.setattr(transformer, "SLICE_SIZE", num_probabilities // 8 - 1)  # 24 queries, 8 in the last slice
    sliced, size = computed()
    for one, other in zip(sliced, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    if not padded:  # the mask of padding, which attention without dropout needs as well, has one head
        assert size < num_probabilities / 4
    trunk.blocks[0].recompute = trunk.blocks[1].recompute = True
    for one, other in zip(computed()[0], whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_what_is_dropped_in_one_place_says_nothing_about_another() -> None:
    """Windows, also those whose keys are neighbours, and elements any distance apart; a million elements each."""
    keys = torch.cat([torch.tensor([0, 1, 2, 3, -1, 2**31 - 1, -(2**31)], dtype=torch.int32), some_keys(1, 9)[0]])
    lost = (dropped(torch.ones(len(keys), 2**20), keys, 0.5) == 0).double() - 0.5
    near_chance = 5 / 2**10
    between = lost @ lost.T / lost.shape[1] * 4
    assert (between - torch.eye(len(keys))).abs().max() < near_chance
    for apart in (1, 2, 3, 32, 128, 1000, 2**16):
        assert ((lost[:, apart:] * lost[:, :-apart]).mean(dim=1) * 4).abs().max() < near_chance


def dropping(share: float, causal: bool = False) -> HeartModel:
    torch.manual_seed(0)
    config = ModelConfig(SIZES, depth=2, width=32, heads=2, causal=causal, dropout=share).resolve()
    return build_model(config, geometry())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [T, 6])
def test_attention_that_could_drop_is_the_same_attention(causal: bool, length: int) -> None:
    model, plain = dropping(1e-12, causal), dropping(0.0, causal)
    valid = None if length == T else torch.arange(T) < torch.tensor([T, length, 1])[:, None]
    keys = some_keys(model.num_dropout_sites)
    assert plain.num_dropout_sites == 0 and len(keys) == 7
    ours, expected = model.hidden(some_codes(), valid, keys)[0], plain.hidden(some_codes(), valid)[0]
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_every_site_drops() -> None:
    model = dropping(0.3)
    keys = some_keys(model.num_dropout_sites)
    seen = [model.hidden(some_codes(), None, keys)[0], model.hidden(some_codes())[0]]
    for site in range(len(keys)):
        other = keys.clone()
        other[site] += 12345
        seen.append(model.hidden(some_codes(), None, other)[0])
    for one, before in enumerate(seen):
        assert not any(torch.allclose(before, after, atol=1e-4) for after in seen[one + 1 :])


def test_recomputed_activations_give_the_same_gradient() -> None:
    gradients = []
    for recompute in (False, True):
        model = dropping(0.3)
        model.recompute(recompute)
        model.hidden(some_codes(), None, some_keys(model.num_dropout_sites))[0].square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 10
    for kept, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, kept, rtol=1e-6, atol=1e-6)


# --- on disk ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = model_of()
    save_model(tmp_path / "model", model, info_of(model))
    return tmp_path / "model"


def test_a_model_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    model = model_of(num_classes=2, pooled=True)
    info = info_of(model, pooled=True, **RHYTHM)
    save_model(tmp_path / "model", model, info)
    loaded, told = load_model(tmp_path / "model")
    assert told == info and not loaded.training
    tensors = loaded.state_dict()
    assert set(tensors) == set(model.state_dict())
    assert all(torch.equal(tensors[name], value) for name, value in model.state_dict().items())
    assert torch.equal(loaded.class_logits(some_codes()), model.class_logits(some_codes()))


def test_a_foundation_keeps_its_trunk_under_a_new_head(saved: Path) -> None:
    original, _ = load_model(saved)
    model, info = load_foundation(saved, classes=tuple("NSVF"), pooled=False, dropout=0.25, keep_weights=True)
    tensors = model.state_dict()
    assert set(tensors) - set(original.state_dict()) == {"class_head.weight", "class_head.bias"}
    assert all(torch.equal(tensors[name], value) for name, value in original.state_dict().items())
    assert info.config.dropout == model.config.dropout == 0.25
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"facet_heads"}


def test_a_fine_tuned_model_takes_another_head(tmp_path: Path) -> None:
    model = model_of(num_classes=2)
    save_model(
        tmp_path / "model",
        model,
        info_of(model, **RHYTHM),
    )
    again, _ = load_foundation(tmp_path / "model", classes=tuple("NSVF"), pooled=False, dropout=0.0, keep_weights=True)
    assert again.class_logits(some_codes()).shape == (B, T, 4)
    assert torch.equal(again.trunk.blocks[1].qkv.weight, model.trunk.blocks[1].qkv.weight)


def test_a_fine_tuned_model_keeps_its_head_for_the_same_labels(tmp_path: Path) -> None:
    model = model_of(num_classes=2)
    save_model(
        tmp_path / "model",
        model,
        info_of(model, **RHYTHM),
    )
    asked = {"pooled": False, "dropout": 0.0, "keep_weights": True}
    same, _ = load_foundation(tmp_path / "model", classes=("other", "AFIB"), **asked)
    others, _ = load_foundation(tmp_path / "model", classes=("other", "AFL"), **asked)
    assert torch.equal(same.class_logits(some_codes()), model.class_logits(some_codes()))
    assert not torch.equal(others.class_logits(some_codes()), model.class_logits(some_codes()))


def test_from_scratch_keeps_shape_and_geometry_alone(saved: Path) -> None:
    original, _ = load_model(saved)
    torch.manual_seed(1)
    model, info = load_foundation(saved, classes=tuple("NSVF"), pooled=False, dropout=0.0, keep_weights=False)
    assert info.config == original.config
    for name, value in original.state_dict().items():
        fresh = model.state_dict()[name]
        by_rule = "places" in name or "norm" in name
        assert torch.equal(fresh, value) == by_rule, name


def refused(folder: Path) -> str:
    messages = []
    for load in (
        load_model,
        lambda path: load_foundation(path, classes=("N", "V"), pooled=False, dropout=0, keep_weights=True),
    ):
        with pytest.raises(HeartlmError) as error:
            load(folder)
        messages.append(str(error.value))
    assert "\n" not in messages[0] and str(folder) in messages[0] and len(messages[0]) < 400 + len(str(folder))
    assert messages[0] == messages[1]
    return messages[0]


def test_damaged_tensors_are_refused(saved: Path) -> None:
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:50], b"", b"\x00" * 100):
        path.write_bytes(damaged)
        assert "model.safetensors cannot be read" in refused(saved)
    path.unlink()
    assert "model.safetensors cannot be read" in refused(saved)


@pytest.mark.parametrize("name", ["embedding.places_1", "trunk.blocks.1.qkv.weight", "trunk.norm.weight"])
def test_a_missing_tensor_is_refused(saved: Path, name: str) -> None:
    tensors = load_file(saved / "model.safetensors")
    del tensors[name]
    save_file(tensors, saved / "model.safetensors")
    refused(saved)


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    described = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in described.items() if value is not ...}))


def test_a_damaged_config_is_refused(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    edit(saved, schema_version=2)
    assert "schema version 2, this heartlm reads 1" in refused(saved)
    for changes in ({"classes": "N"}, {"objective": ...}, {"config": ...}, {"tokenizer_hash": ...}, {"colour": "red"}):
        edit(saved, **{**config, **changes})
        assert next(iter(changes)) in refused(saved)
        (saved / "config.json").write_text(json.dumps(config))
    edit(saved, config={**config["config"], "depth": 3})
    assert "do not fit config.json" in refused(saved)
    for text in ("", "[]", "{"):
        (saved / "config.json").write_text(text)
        refused(saved)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("window", 0, "window: 0 found, 1 to 1,048,576 expected"),
        ("window", -1, "window: -1 found"),
        ("window", 1 << 40, "window: 1099511627776 found"),
        ("shortest", 11, "shortest: 11 found, 0 to the window of 10 expected"),
        ("step", -1, "step: -1 found"),
        ("task", None, "classes: ('N', 'V') found"),
        ("classes", [], "classes: () found, names for task beats expected"),
        ("tokenizer_hash", "a" * 63, "tokenizer_hash: aaa"),
        ("threshold", 1e308, "threshold: 1e+308 found, a probability, 0 to 1, expected"),
        ("threshold", -0.1, "threshold: -0.1 found"),
    ],
)
def test_values_that_no_training_writes_are_refused(tmp_path: Path, field: str, value: Any, reason: str) -> None:
    model = model_of(num_classes=2)
    save_model(tmp_path, model, info_of(model, task="beats", classes=("N", "V")))
    load_model(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text()) | {field: value}
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert f"config.json: {reason}" in refused(tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda value: value.double(), "numbers of type float64 found, float32 or float16 expected"),
        (lambda value: value * float("inf"), "infinite numbers or NaN found"),
        (lambda value: value * float("nan"), "infinite numbers or NaN found"),
    ],
)
def test_weights_that_are_no_usual_numbers_are_refused(saved: Path, change: Any, reason: str) -> None:
    tensors = load_file(saved / "model.safetensors")
    name = "trunk.norm.weight"
    save_file(tensors | {name: change(tensors[name])}, saved / "model.safetensors")
    assert f"model.safetensors: {name}: {reason}" in refused(saved)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_pipe_in_place_of_a_file_is_refused(saved: Path, name: str) -> None:
    (saved / name).unlink()
    os.mkfifo(saved / name)
    assert f"{name}: a regular file expected" in refused(saved)
