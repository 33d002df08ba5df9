"""Training in bfloat16, which CPUs can do: close to single precision, resumed and split over ranks like it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heartlm.training.batches import LabelBatches, MaskedBatches
from heartlm.training.config import TrainingConfig
from heartlm.training.loop import train
from heartlm.training.objectives import FacetLoss, LabelLoss
from tests.ranks import run_in_a_process_of_its_own, run_ranks
from tests.synthetic_corpus import SIZES, every_window, job, small_model, synthetic_corpus
from tests.synthetic_run import losses
from tests.test_training_parallel import this

pytestmark = pytest.mark.slow

CORPUS = synthetic_corpus((400, 300, 7))
STEPS = 40
CLOSE = 0.02
"""Losses in bfloat16, whose significand has 8 bits, against those in single precision; relative, at every step."""


def run(folder: Path, labels: bool = False, resume: bool = False, dropout: float = 0.1, **changed: Any) -> None:
    """Train a small model; recordings of both kinds, longer and shorter than a window."""
    how = {"window": 16, "batch_size": 8, "steps": STEPS, "learning_rate": 2e-3, "warmup_steps": 5, "device": "cpu"}
    often = {"log_every": 1, "validate_every": STEPS // 2, "checkpoint_every": STEPS // 2, "precision": "bf16"}
    mask = np.array(SIZES)
    of_beats = LabelBatches(CORPUS, CORPUS.beat_class.astype(np.int64), mask, False, 0.2, seed=5)
    work = job(
        CORPUS,
        small_model(num_classes=4 if labels else 0, dropout=dropout),
        folder,
        TrainingConfig(**{**how, **often, **changed}),
        make_batch=of_beats if labels else MaskedBatches(CORPUS, mask, 0.3, 3, seed=5),
        loss=LabelLoss(torch.ones(1, 4)) if labels else FacetLoss(("count", "half")),
        validation=every_window(CORPUS, 16)[:7],
        ranks=this(),
    )
    train(work, resume)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in bfloat16 with a checkpoint in the middle."""
    folder = tmp_path_factory.mktemp("bf16") / "run"
    run(folder)
    return folder


@pytest.mark.parametrize("labels", [False, True])
def test_losses_are_close_to_those_of_single_precision(pretrained: Path, tmp_path: Path, labels: bool) -> None:
    run(tmp_path / "fp32", labels, precision="fp32")
    if labels:
        run(tmp_path / "bf16", labels)
    found, expected = losses(tmp_path / "bf16" if labels else pretrained), losses(tmp_path / "fp32")
    assert found == pytest.approx(expected, rel=CLOSE)
    training = [key for key in expected if key[0] == "train"]
    assert all(found[key] != expected[key] for key in training), "products are computed in the precision asked for"
    assert not labels or expected[("validation", STEPS)] < 0.95 * expected[("validation", STEPS // 2)], "it learns"


def test_wanted_tokens_without_dropout_are_not_read_as_single_precision(tmp_path: Path) -> None:
    """The last block's products are bfloat16 there: the kernel of attention would read and write past their end."""
    for precision in ("fp32", "bf16"):
        run(tmp_path / precision, dropout=0.0, precision=precision)
    assert losses(tmp_path / "bf16") == pytest.approx(losses(tmp_path / "fp32"), rel=CLOSE)


def test_a_resumed_run_repeats_the_unbroken_one(pretrained: Path, tmp_path: Path) -> None:
    shutil.copytree(pretrained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{STEPS:09d}")
    run(tmp_path / "run", resume=True)
    assert losses(tmp_path / "run") == losses(pretrained)


def test_accumulated_and_recomputed(pretrained: Path, tmp_path: Path) -> None:
    run(tmp_path, accumulation=4, activation_checkpointing=True)
    assert losses(tmp_path) == pytest.approx(losses(pretrained), rel=CLOSE / 4)


def as_rank(folder: str, parallel: str) -> None:
    run(Path(folder), parallel=parallel)


def in_two_ranks(folder: str) -> None:
    for parallel in ("ddp", "fsdp"):
        assert run_ranks(2, as_rank, f"{folder}/{parallel}", parallel) == [0, 0]


def test_two_ranks_are_one(pretrained: Path, tmp_path: Path) -> None:
    run_in_a_process_of_its_own("tests.test_training_bf16:in_two_ranks", str(tmp_path))
    for parallel in ("ddp", "fsdp"):
        assert losses(tmp_path / parallel) == pytest.approx(losses(pretrained), rel=CLOSE / 4)
