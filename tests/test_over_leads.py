# ruff: noqa: F401, F811 - fixtures of another file are imported and are names of arguments
"""Pretraining over all leads: what is hidden, the loss, and what fine-tuning and vectors take from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import heartlm
from heartlm.cli.main import main
from heartlm.corpus.corpus import Corpus
from heartlm.corpus.windows import Windows
from heartlm.inference.beat_summary import beat_summary
from heartlm.models.leads import LeadsNetwork
from heartlm.models.store import load_foundation, load_model
from heartlm.tasks.finetune import rows_of_patients
from heartlm.tasks.task import FinetuneConfig, task_of
from heartlm.tokenizers.leads import PLACES
from heartlm.tokenizers.millivolts import NO_SIGNAL, dequantize
from heartlm.training.config import PretrainConfig
from heartlm.training.over_leads import HidingBatches, VoltageLoss, pretraining_over_leads
from tests.conftest import Refused
from tests.test_statements import NAMES, corpus, database


@pytest.fixture(scope="module")
def foundation(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("pretrained") / "foundation"
    words = ["pretrain", "--corpus", corpus.folder, "--out", run, "--steps", 4, "--batch-size", 4, "--threads", 1]
    assert main([str(word) for word in words]) == 0
    return run


def batches_of(corpus: Corpus) -> tuple[HidingBatches, Windows]:
    return HidingBatches(corpus, seed=1), Windows(corpus.records.first_token[:8], np.full(8, 600), 600)


def test_what_is_hidden_is_asked_for(corpus: Corpus) -> None:
    batches, windows = batches_of(corpus)
    batch = batches(windows, 3)
    codes = batch.target
    shown, places = batch.codes[..., : len(PLACES)], [PLACES.index(name) for name in NAMES]
    assert (codes[..., places] != NO_SIGNAL).all()
    hidden = shown == NO_SIGNAL
    assert torch.equal(shown[~hidden], codes[~hidden])
    of_time, of_leads = hidden[..., places].all(dim=2).sum(dim=1), hidden[..., places].all(dim=1).sum(dim=1)
    assert (of_time >= 20).all() and (of_time < 3 * 90).all()
    assert of_leads.max() > 2 and of_leads.min() < 2 and (of_leads < len(places)).all()
    original = dequantize(corpus.codes[:600, places])
    assert np.corrcoef(dequantize(codes[0, :, places].numpy().astype(np.uint16)).ravel(), original.ravel())[0, 1] > 0.97


def test_batches_do_not_depend_on_how_they_are_split_and_validation_hides_the_same(corpus: Corpus) -> None:
    batches, windows = batches_of(corpus)
    whole = batches(windows, 3)
    halves = [batches(windows[part], 3, part.start, 8) for part in (slice(0, 4), slice(4, 8))]
    assert torch.equal(whole.codes, torch.cat([each.codes for each in halves]))
    assert not torch.equal(whole.codes, batches(windows, 4).codes)
    assert torch.equal(batches(windows, None).codes, batches(windows, None).codes)


def test_the_loss_is_that_of_a_hand_calculation(corpus: Corpus) -> None:
    class Given(LeadsNetwork):
        def voltages(self, codes: torch.Tensor, valid: object = None) -> torch.Tensor:
            return self.given

    model = pretraining_over_leads(PretrainConfig(width=32), corpus).model
    model.__class__ = Given
    batches, windows = batches_of(corpus)
    batch = batches(windows[:2], 0)
    codes, was_hidden = batch.target, batch.codes[..., : len(PLACES)] == NO_SIGNAL  # hidden, or never recorded
    mv = torch.from_numpy(dequantize(codes.numpy().astype(np.uint16)))
    model.given = mv / (mv**2).mean(dim=1, keepdim=True).sqrt().clamp(min=0.03)
    assert float(VoltageLoss()(model, batch)[0]) == pytest.approx(0, abs=1e-4)
    model.given[was_hidden] += 2
    hidden = (was_hidden & (codes != NO_SIGNAL)).sum(dim=(1, 2))
    expected = 1.5 * hidden / (hidden + 0.1 * (600 * len(NAMES) - hidden))  # 2 - 0.5 of each
    assert float(VoltageLoss()(model, batch)[0]) == pytest.approx(float(expected.sum()), rel=1e-3)


def test_finetune_starts_from_the_weights_of_a_pretrained_run(
    corpus: Corpus,
    foundation: Path,
    tmp_path: Path,
) -> None:
    words = ["finetune", foundation, "--task", "statements", "--corpus", corpus.folder, "--statements", "INVERTED"]
    words += ["--steps", "1", "--batch-size", "8", "--threads", "1", "--no-trees", "--learning-rate", "1e-9"]
    of_start = {"pretrained": [], "scratch": ["--from-scratch"], "again": []}
    parent, starts = load_model(foundation / "models/best")[0], {}
    for name, more in of_start.items():
        start = tmp_path / "pretrained" if name == "again" else foundation
        out = tmp_path / name
        assert main([str(word) for word in (words[0], start, *words[2:], *more, "--out", out)]) == 0
        starts[name], info = load_model(out / "models/last")
        assert info.config.members == 3
    tensors = {name: dict(model.named_parameters()) for name, model in starts.items()}
    for name, value in dict(parent.named_parameters()).items():
        if name.startswith("voltage_head"):
            continue
        repeats = [new // old for new, old in zip(tensors["pretrained"][name].shape, value.shape, strict=True)]
        assert torch.allclose(tensors["pretrained"][name], value.repeat(repeats), atol=1e-6), name
    first = "trunk.blocks.0.first.weight"
    assert not torch.allclose(tensors["scratch"][first], tensors["pretrained"][first], atol=1e-3)
    assert torch.allclose(tensors["again"]["class_head.weight"], tensors["pretrained"]["class_head.weight"], atol=1e-6)
    about = json.loads((tmp_path / "pretrained/run.json").read_text())
    assert about["parent"] == str(foundation)


def test_a_foundation_has_members_of_its_own_weights(foundation: Path, corpus: Corpus) -> None:
    asked = {"classes": ("A", "B"), "pooled": True, "dropout": 0.0, "keep_weights": True}
    parent = load_model(foundation / "models/best")[0]
    codes = torch.from_numpy(corpus.codes[:600].astype(np.int64))[None]
    three, info = load_foundation(foundation / "models/best", **asked, members=3)
    with torch.inference_mode():
        own = parent.features(codes)
        assert torch.allclose(three.eval().features(codes), own.repeat(1, 3), atol=1e-5)
    assert (info.config.members, three.class_head.weight.shape[0]) == (3, 6)


def test_only_the_patients_that_are_named_are_learnt_from(corpus: Corpus, foundation: Path) -> None:
    config = FinetuneConfig(task="statements", statements="INVERTED", patients="leads/r00,leads/r03", members=1)
    task = task_of("statements").learning(config, corpus)
    assert task.rows.tolist() == rows_of_patients(corpus, np.arange(20), config.patient_ids).tolist() == [0, 3]


def test_weights_that_are_kept_learn_more_slowly(corpus: Corpus, foundation: Path) -> None:
    config = FinetuneConfig(task="statements", statements="INVERTED", members=1)
    settings = {}, {"run": foundation}, {"run": foundation, "from_scratch": True}
    tasks = [task_of("statements").learning(replace(config, **more), corpus) for more in settings]
    assert [task.config.learning_rate for task in tasks] == [3e-3, 3e-4, 3e-3]


def test_the_memory_of_a_transformer_over_leads_is_not_planned(corpus: Corpus, refused: Refused) -> None:
    assert "tokens of the leads tokenizer found" in refused("plan", "memory", "--corpus", corpus.folder)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pretrain", "--objective", "causal"], "objective: causal found, masked expected"),
        (["pretrain", "--depth", "8"], "depth: 8 found, 4 expected"),
        (["pretrain", "--window", "128", "--accumulation", "2", "--batch-size", "4"], "accumulation: 2 found"),
        (["pretrain", "--window", "300"], "window: 300 found, 600 expected"),
        (["finetune", "FOUNDATION", "--task", "statements", "--network", "residual"], "network: residual found"),
        (["finetune", "FOUNDATION", "--task", "beats"], "reads all leads"),
    ],
)
def test_what_does_not_fit_is_refused(
    corpus: Corpus,
    foundation: Path,
    tmp_path: Path,
    refused: Refused,
    words: list[str],
    expected: str,
) -> None:
    given = [str(foundation) if word == "FOUNDATION" else word for word in words]
    assert expected in refused(*given, "--corpus", corpus.folder, "--out", tmp_path / "run", "--steps", "1")
    assert not (tmp_path / "run").exists()
