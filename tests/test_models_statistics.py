"""What windows of RR intervals say as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from heartlm.evaluation import zhou
from heartlm.evaluation.features import rr_window_features
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from heartlm.models.statistics import (
    LONGEST_S,
    RUN,
    SCALES,
    SHORTEST_S,
    WindowStatistics,
    _cosen,
    _dispersion,
    _quantiles,
    interval_statistics,
)
from heartlm.training.learner import dropout_keys

NAMES = list(SCALES)


def windows(num: int = 6, width: int = 40) -> torch.Tensor:
    """Sinus rhythm, bigeminy and fibrillation."""
    random = np.random.default_rng(0)
    sinus = random.normal(0.8, 0.02, (num, width))
    bigeminy = np.tile([0.6, 1.0], (num, width // 2)) + random.normal(0, 0.01, (num, width))
    return torch.tensor(np.concatenate([sinus, bigeminy, random.uniform(0.4, 1.1, (num, width))]), dtype=torch.float32)


def unscaled(statistics: torch.Tensor, name: str) -> torch.Tensor:
    centre, spread = SCALES[name]
    return statistics[:, NAMES.index(name)] * spread + centre


def test_the_entropy_is_zhous() -> None:
    seconds = windows()
    expected = zhou.window_entropy(seconds.numpy().astype(np.float64))
    assert unscaled(interval_statistics(seconds), "entropy").numpy() == pytest.approx(expected, abs=1e-5)


def test_cosen_against_its_definition() -> None:
    seconds = windows()
    for row, found in zip(seconds.numpy(), unscaled(interval_statistics(seconds), "cosen").tolist(), strict=True):
        x = np.rint(1000 * row)
        pairs = [(i, j) for i in range(len(x) - 1) for j in range(i + 1, len(x) - 1)]
        ones = [pair for pair in pairs if abs(x[pair[0]] - x[pair[1]]) <= 30]
        twos = sum(abs(x[i + 1] - x[j + 1]) <= 30 for i, j in ones)
        entropy = np.log(max(len(ones), 1) / max(twos, 0.5)) + np.log(2 * 0.03 / row.mean())
        assert found == pytest.approx(entropy, abs=1e-4) or abs(found - SCALES["cosen"][0]) > 4.9 * SCALES["cosen"][1]


@st.composite
def padded_windows(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Intervals within the limits, some of them equal, and which are valid: none to all of each window."""
    num, width = draw(st.integers(1, 4)), draw(st.integers(RUN, 40))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    spread = draw(st.sampled_from([0.01, 0.05, 1.0]))
    seconds = np.clip(np.round(random.normal(0.8, spread, (num, width)), 2), SHORTEST_S, LONGEST_S)
    length = np.array(draw(st.lists(st.integers(0, width), min_size=num, max_size=num)))
    return torch.from_numpy(seconds.astype(np.float32)), torch.from_numpy(np.arange(width) < length[:, None])


@settings(max_examples=50)
@given(padded_windows())
def test_measures_without_a_loop_or_a_choice_by_number_are_those_with(case: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The forms before steps were captured: a loop over windows by their lengths, `nanquantile`, pairs by index."""
    x, inside = case
    num = inside.sum(1)
    counts = []
    for window, length in enumerate(num.tolist()):
        own = (1000 * x[window, :length]).round().to(torch.int16)
        near = (own[:, None] - own).abs_() <= 30
        counts.append([near[:-1, :-1].sum(), (near[:-1, :-1] & near[1:, 1:]).sum()])
    ones, twos = ((torch.tensor(each) - num + 1) / 2 for each in zip(*counts, strict=True))
    mean = (x * inside).sum(1) / num.clamp(min=1)
    entropy = ones.clamp(min=1).log() - twos.clamp(min=0.5).log() + torch.log(0.06 / mean.clamp(min=SHORTEST_S))
    torch.testing.assert_close(_cosen(x, inside), entropy, atol=1e-6, rtol=0)
    known = x.masked_fill(~inside, torch.nan)
    for share, values in zip((0.05, 0.95), _quantiles(known, 0.05, 0.95), strict=True):
        torch.testing.assert_close(values, known.nanquantile(share, dim=1), atol=1e-6, rtol=0, equal_nan=True)
    runs, ends = x.unfold(1, RUN, 1), inside[:, RUN - 1 :]
    one, other = torch.combinations(torch.arange(RUN)).T
    differ = ((runs[..., one] - runs[..., other]).abs() >= 0.03).float().mean(2)
    expected = torch.where(ends, differ, 0).sum(1) / ends.sum(1).clamp(min=1)
    torch.testing.assert_close(_dispersion(x, x, inside)[0], expected, atol=1e-6, rtol=0)


class OnOneDevice(TorchDispatchMode):
    """Fails if an operation has a tensor in host memory."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        assert all(x.device.type == "meta" for x in tree_iter((args, kwargs, out)) if isinstance(x, torch.Tensor))
        return out


@pytest.mark.parametrize("valid", [None, torch.ones(3, 24, dtype=torch.bool, device="meta")])
def test_nothing_is_read_by_the_host_or_copied_from_it(valid: torch.Tensor | None) -> None:
    """Tensors of the device meta hold no numbers, so reading one raises an error."""
    with torch.device("meta"):
        module, codes = WindowStatistics(torch.empty(6), 32), torch.empty(3, 24, dtype=torch.int64)
    with OnOneDevice():
        assert module(codes, valid).shape == (3, 32)


def test_padding_changes_nothing() -> None:
    seconds = windows()
    wider = torch.cat([seconds, torch.full((len(seconds), 13), 2.2)], dim=1)
    valid = torch.arange(wider.shape[1]) < seconds.shape[1]
    found = interval_statistics(wider, valid.expand(len(wider), -1))
    torch.testing.assert_close(found, interval_statistics(seconds), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7])
def test_few_intervals_give_numbers(width: int) -> None:
    found = interval_statistics(windows()[:, :width])
    assert found.shape == (18, len(SCALES)) and found.isfinite().all()
    features = rr_window_features(windows()[:, :width].numpy())
    assert features.shape == (18, 43) and np.isnan(features).all() == (width < 4)
    empty = interval_statistics(windows(), torch.zeros(18, 40, dtype=torch.bool))
    assert empty.isfinite().all()


def test_bigeminy_is_told_from_fibrillation() -> None:
    statistics = interval_statistics(windows())
    for name in ("log_cv_pairs", "entropy", "turns"):
        sinus, bigeminy, fibrillation = unscaled(statistics, name).split(6)
        if name == "turns":
            assert bigeminy.min() >= max(sinus.max(), fibrillation.max())
        else:
            assert max(sinus.max(), bigeminy.max()) < fibrillation.min()


def test_an_unknown_interval_repeats_its_neighbour() -> None:
    seconds = torch.tensor([0.0, 0.5, 0.6, 0.7, 0.8, 0.9])
    module = WindowStatistics(seconds, 32)
    known = torch.tensor([[1, 1, 2, 3, 3, 4, 5, 5]])
    unknown = torch.tensor([[0, 1, 2, 3, 0, 4, 5, 0]])
    torch.testing.assert_close(module(unknown, None), module(known, None))
    nothing = module(torch.zeros_like(known), None)
    assert nothing.isfinite().all()


def test_a_pooled_head_reads_the_statistics() -> None:
    config = ModelConfig((6, 4), depth=1, width=32).resolve()
    geometry = [torch.randn(size, 3) for size in config.facet_sizes]
    seconds = torch.tensor([0.0, 0.5, 0.6, 0.7, 0.8, 0.9])
    model = HeartModel(config, geometry, num_classes=2, pooled=True, seconds=seconds).eval()
    assert model.statistics is not None
    codes = torch.randint(0, 4, (3, 12, 2))
    before = model.class_logits(codes)
    with torch.no_grad():
        model.statistics.out.weight.mul_(2)
    assert not torch.equal(model.class_logits(codes), before)


def test_half_of_the_windows_of_training_hide_the_trunk() -> None:
    config = ModelConfig((6, 4), depth=1, width=32, dropout=0.1).resolve()
    geometry = [torch.randn(size, 3) for size in config.facet_sizes]
    model = HeartModel(config, geometry, 2, pooled=True, seconds=torch.linspace(0, 1, 6))
    codes = torch.randint(0, 4, (64, 12, 2))
    other = torch.stack([codes[..., 0], 3 - codes[..., 1]], dim=2)  # which the statistics do not read
    keys = dropout_keys(0, 0, model.num_dropout_sites, 0, 64)
    same = (model.class_logits(codes, None, keys) == model.class_logits(other, None, keys)).all(dim=1)
    assert torch.equal(same, keys[0] >= 0) and 20 < same.sum() < 44
    model.eval()
    assert not (model.class_logits(codes) == model.class_logits(other)).all(dim=1).any()
