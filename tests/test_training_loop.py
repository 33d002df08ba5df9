"""The loop: what it sums, how it steps, when it stops, and that it learns."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from heartlm.corpus.corpus import Corpus
from heartlm.errors import HeartlmError
from heartlm.models import heart
from heartlm.models.heart import HeartModel
from heartlm.models.store import load_model
from heartlm.training.batches import Batch, CausalBatches, LabelBatches, MakeBatch, MaskedBatches
from heartlm.training.checkpoint import Checkpoints
from heartlm.training.config import TrainingConfig
from heartlm.training.job import Job
from heartlm.training.learner import learning_rate
from heartlm.training.loop import train
from heartlm.training.objectives import FacetLoss, LabelLoss, label_weights
from tests.synthetic_corpus import SIZES, every_window, job, small_model, synthetic_corpus

MASK = np.array(SIZES)
FACETS = FacetLoss(("count", "half"))


def settings(**changed: Any) -> TrainingConfig:
    config = TrainingConfig(
        window=16, batch_size=8, steps=6, warmup_steps=2, learning_rate=3e-3, threads=1, device="cpu", log_every=1
    )
    return replace(config, **changed)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return synthetic_corpus()


@pytest.fixture
def masked(corpus: Corpus) -> MaskedBatches:
    return MaskedBatches(corpus, MASK, 0.3, 4, seed=0)


def metrics(folder: Path, split: str = "train") -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == split]


def losses(corpus: Corpus, make: MakeBatch, folder: Path, config: TrainingConfig, causal: bool = False) -> list[float]:
    train(job(corpus, small_model(causal=causal), folder, config, make_batch=make, loss=FACETS), resume=False)
    return [line["loss"] for line in metrics(folder)]


# --- accumulation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_accumulation_never_changes_the_losses(corpus: Corpus, tmp_path: Path, causal: bool) -> None:
    make = CausalBatches(corpus) if causal else MaskedBatches(corpus, MASK, 0.3, 4, seed=0)
    whole = losses(corpus, make, tmp_path / "1", settings(), causal)
    for parts in (2, 4, 8):
        split = losses(corpus, make, tmp_path / str(parts), settings(accumulation=parts), causal)
        assert split == pytest.approx(whole, rel=1e-5)
    assert len(whole) == 6 and len(set(whole)) == 6


def test_the_loss_is_the_mean_over_the_tokens_of_the_whole_batch(corpus: Corpus, tmp_path: Path) -> None:
    """The recording of 7 tokens fills a window to less than half, so means of micro-batch means are another number."""
    short = synthetic_corpus((40, 7, 7))
    make = CausalBatches(short)
    work = job(short, small_model(causal=True), tmp_path, settings(), make_batch=make, loss=FACETS)
    batch = make(work.sampler.windows(0), 0)
    parts = [make(work.sampler.windows(0)[index : index + 2], 0, index, 8) for index in (0, 2, 4, 6)]
    assert len({part.num_counted for part in parts}) > 1, "the batch must be uneven for this test to mean anything"

    def mean(part: Batch) -> float:
        return float(FACETS(small_model(causal=True), part)[0].detach()) / part.num_counted

    logged = losses(short, make, tmp_path / "run", settings(accumulation=4), causal=True)[0]
    assert logged == pytest.approx(mean(batch), rel=1e-5)
    assert abs(np.mean([mean(part) for part in parts]) / logged - 1) > 1e-4


def test_the_loss_of_the_facets_is_their_mean(corpus: Corpus, masked: MaskedBatches, tmp_path: Path) -> None:
    losses(corpus, masked, tmp_path, settings())
    for line in metrics(tmp_path):
        assert line["loss"] == pytest.approx((line["loss/count"] + line["loss/half"]) / 2, rel=1e-5)


def test_padding_changes_no_loss(corpus: Corpus) -> None:
    windows = every_window(synthetic_corpus((7,)), 16)
    make = CausalBatches(synthetic_corpus((7,)))
    batch = make(windows, 0)
    other = replace(batch, codes=batch.codes.clone(), target=batch.target.clone())
    other.codes[~batch.valid] = 3
    other.target[~batch.counts] = 2
    model = small_model()
    assert float(FACETS(model, other)[0].detach()) == pytest.approx(float(FACETS(model, batch)[0].detach()), rel=1e-6)


# --- the step ---------------------------------------------------------------------------------------------------------


def test_learning_rate_warms_up_and_decays() -> None:
    shape = {"peak": 1.0, "warmup_steps": 4, "steps": 13, "final_share": 0.1}
    rates = [learning_rate(step, **shape) for step in range(13)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[8] == pytest.approx(0.55)
    assert rates[12] == pytest.approx(0.1)
    assert all(later < earlier for earlier, later in pairwise(rates[4:]))
    assert learning_rate(0, peak=1.0, warmup_steps=0, steps=1, final_share=0.1) == 1.0


def test_the_logged_learning_rate_is_the_schedule(corpus: Corpus, masked: MaskedBatches, tmp_path: Path) -> None:
    config = settings()
    losses(corpus, masked, tmp_path, config)
    expected = [learning_rate(step, peak=3e-3, warmup_steps=2, steps=6, final_share=0.05) for step in range(6)]
    assert [line["learning_rate"] for line in metrics(tmp_path)] == pytest.approx(expected, rel=1e-6)


def test_the_gradient_is_clipped(corpus: Corpus, masked: MaskedBatches, tmp_path: Path) -> None:
    seen: list[float] = []

    def watch(optimizer: torch.optim.Optimizer, *_: object) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        seen.append(float(torch.cat([gradient.flatten() for gradient in gradients]).norm()))

    handle = register_optimizer_step_pre_hook(watch)
    try:
        losses(corpus, masked, tmp_path, settings(clip=0.01))
    finally:
        handle.remove()
    assert seen == pytest.approx([0.01] * 6, rel=1e-3)
    assert min(line["grad_norm"] for line in metrics(tmp_path)) > 0.01, "the norm before clipping is what is logged"


def test_dropout_repeats_with_the_seed_and_the_step(corpus: Corpus, masked: MaskedBatches, tmp_path: Path) -> None:
    def run(name: str, seed: int) -> list[float]:
        work = job(
            corpus,
            small_model(dropout=0.3),
            tmp_path / name,
            settings(seed=seed),
            make_batch=masked,
            loss=FACETS,
        )
        torch.manual_seed(len(name))
        train(work, resume=False)
        return [line["loss"] for line in metrics(tmp_path / name)]

    assert run("a", 0) == run("bb", 0) != run("ccc", 1)


@pytest.mark.slow
def test_compiled_and_recomputed_the_losses_are_the_same(
    corpus: Corpus, masked: MaskedBatches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced and differentiated as for a GPU, but not handed to a C++ compiler, which takes a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))

    def run(name: str, **changed: Any) -> list[float]:
        model = small_model(dropout=0.3)
        train(job(corpus, model, tmp_path / name, settings(**changed), make_batch=masked, loss=FACETS), resume=False)
        return [line["loss"] for line in metrics(tmp_path / name)]

    plain = run("plain")
    assert run("recomputed", activation_checkpointing=True) == pytest.approx(plain, rel=1e-6)
    assert run("compiled", compile=True) == pytest.approx(plain, rel=1e-5)
    assert run("both", compile=True, activation_checkpointing=True) == pytest.approx(plain, rel=1e-5)


# --- going wrong, stopping, being best --------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_and_keeps_the_good_checkpoint(
    corpus: Corpus, masked: MaskedBatches, tmp_path: Path
) -> None:
    calls = 0

    def breaking(model: HeartModel, batch: Batch, keys: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        nonlocal calls
        calls += 1
        loss, parts = FACETS(model, batch, keys)
        return loss * (float("nan") if calls == 5 else 1.0), parts

    work = job(corpus, small_model(), tmp_path, settings(checkpoint_every=2), make_batch=masked, loss=breaking)
    with pytest.raises(HeartlmError, match=r"^step 5: loss nan.* learning_rate$"):
        train(work, resume=False)
    assert [path.name for path in Checkpoints(tmp_path / "checkpoints").complete()] == [
        "step-000000002",
        "step-000000004",
    ]
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4]
    resumed = replace(work, task=replace(work.task, model=small_model(seed=1), loss=FACETS))
    assert train(resumed, resume=True).step == 6
    straight = losses(corpus, masked, tmp_path / "straight", settings())
    assert [line["loss"] for line in metrics(tmp_path)] == straight


def test_a_skipped_step_changes_nothing_but_the_place_in_the_data(
    corpus: Corpus, masked: MaskedBatches, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    weights: list[Tensor] = []

    def spoilt(model: HeartModel, batch: Batch, keys: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        weights.append(model.trunk.blocks[0].qkv.weight.detach().clone())
        loss, parts = FACETS(model, batch, keys)
        return loss * (float("inf") if len(weights) == 3 else 1.0), parts

    config = settings(bad_steps="skip", steps=4)
    train(job(corpus, small_model(), tmp_path, config, make_batch=masked, loss=spoilt), resume=False)
    changed = [not torch.equal(before, after) for before, after in pairwise(weights)]
    assert changed == [True, True, False]
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 4]
    assert "step 3: loss inf" in capfd.readouterr().err


def with_validation(corpus: Corpus, make: MakeBatch, folder: Path, values: list[float]) -> Job:
    """A job whose validation losses are `values`."""
    left = iter(values)

    def loss(model: HeartModel, batch: Batch, keys: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        total, parts = FACETS(model, batch, keys)
        return (total, parts) if model.training else (torch.tensor(next(left) * batch.num_counted), {})

    config = settings(validate_every=2, batch_size=4, steps=8)
    windows = every_window(corpus, 16)[:4]
    return job(corpus, small_model(), folder, config, make_batch=make, loss=loss, validation=windows)


def test_the_best_model_is_that_of_the_lowest_validation_loss(
    corpus: Corpus, masked: MaskedBatches, tmp_path: Path
) -> None:
    progress = train(with_validation(corpus, masked, tmp_path, [3.0, 1.0, 2.0, 1.5]), resume=False)
    assert progress.best_loss == pytest.approx(1.0)
    assert [line["loss"] for line in metrics(tmp_path, "validation")] == pytest.approx([3.0, 1.0, 2.0, 1.5])
    assert load_model(tmp_path / "models" / "best")[1].step == 4
    assert load_model(tmp_path / "models" / "last")[1].step == 8


def test_without_validation_the_last_model_is_the_best(corpus: Corpus, masked: MaskedBatches, tmp_path: Path) -> None:
    losses(corpus, masked, tmp_path, settings())
    best, last = (tmp_path / "models" / which / "model.safetensors" for which in ("best", "last"))
    assert best.read_bytes() == last.read_bytes()


@pytest.mark.parametrize(("num_tokens", "num_of_facets"), [(1, 1 << 12), (48, 7), (1 << 12, 50)])
def test_validation_is_the_mean_over_its_tokens_without_dropout_whatever_is_computed_together(
    corpus: Corpus,
    masked: MaskedBatches,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    num_tokens: int,
    num_of_facets: int,
) -> None:
    monkeypatch.setitem(heart.TOKENS_AT_ONCE, "cpu", num_tokens)
    monkeypatch.setattr(heart, "FACET_TOKENS_AT_ONCE", num_of_facets)
    windows = every_window(corpus, 16)
    config = settings(steps=1, batch_size=4)
    work = job(corpus, small_model(dropout=0.5), tmp_path, config, make_batch=masked, loss=FACETS, validation=windows)
    train(work, resume=False)
    model, _ = load_model(tmp_path / "models" / "last")
    batch = masked(windows, None)
    with torch.no_grad():
        expected = float(FACETS(model, batch)[0]) / batch.num_counted
    line = metrics(tmp_path, "validation")[0]
    assert line["loss"] == pytest.approx(expected, abs=1e-6)
    assert line["loss"] == pytest.approx((line["loss/count"] + line["loss/half"]) / 2, abs=1e-6)


# --- learning ---------------------------------------------------------------------------------------------------------


def entropy(codes: np.ndarray[Any, Any]) -> float:
    """Mean entropy of the facets in nats, each code by its frequency."""
    shares = [np.bincount(facet) / len(facet) for facet in codes.T]
    return float(np.mean([-(share * np.log(share)).sum() for share in shares]))


@pytest.mark.parametrize("causal", [False, True])
def test_pretraining_learns_what_follows_what(tmp_path: Path, causal: bool) -> None:
    corpus = synthetic_corpus((3000, 2000))
    make = CausalBatches(corpus) if causal else MaskedBatches(corpus, MASK, 0.2, 2, seed=0)
    config = settings(steps=150, batch_size=16, learning_rate=1e-2)
    found = losses(corpus, make, tmp_path, config, causal)
    chance = entropy(corpus.codes)
    assert found[0] > 0.8 * chance
    assert found[-1] < 0.5 * chance


def finetuned_loss(corpus: Corpus, labels: np.ndarray[Any, Any], folder: Path) -> float:
    """Mean loss over the last steps of a model that learns `labels`."""
    config = settings(steps=120, batch_size=16, learning_rate=1e-2)
    work = job(
        corpus,
        small_model(num_classes=4),
        folder,
        config,
        make_batch=LabelBatches(corpus, labels, MASK, False, 0.0, seed=0),
        loss=LabelLoss(label_weights(labels, np.zeros_like(labels), 4, 0.5)),
    )
    train(work, resume=False)
    return float(np.mean([line["loss"] for line in metrics(folder)[-20:]]))


def test_finetuning_learns_labels_but_not_shuffled_ones(tmp_path: Path) -> None:
    corpus = synthetic_corpus((6000, 5000))
    labels = corpus.beat_class.astype(np.int64)
    shuffled = np.random.default_rng(0).permutation(labels)
    chance = np.log(4)
    assert finetuned_loss(corpus, labels, tmp_path / "true") < 0.1 * chance
    assert finetuned_loss(corpus, shuffled, tmp_path / "shuffled") > 0.95 * chance
