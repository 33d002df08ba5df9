"""Loss curves of 200 steps in fp32, compared with those of version 0.1.0 (`golden/loss_curves.json`).

`python -m tests.test_training_curves FILE` writes the curves of the code that it imports.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heartlm.training.batches import CausalBatches, LabelBatches, MakeBatch, MaskedBatches
from heartlm.training.config import TrainingConfig
from heartlm.training.loop import train
from heartlm.training.objectives import FacetLoss, LabelLoss
from tests.ranks import run_in_a_process_of_its_own, run_ranks
from tests.synthetic_corpus import SIZES, job, small_model, synthetic_corpus
from tests.test_training_parallel import this

GOLDEN = Path(__file__).parent / "golden" / "loss_curves.json"
CLOSE = 1e-4
CORPUS = synthetic_corpus((400, 300, 7))  # windows of the last recording are padded
MASK = np.array(SIZES)
MAKERS: dict[str, MakeBatch] = {
    "causal": CausalBatches(CORPUS),
    "masked": MaskedBatches(CORPUS, MASK, 0.3, 4, seed=3),
    "labels": LabelBatches(CORPUS, CORPUS.beat_class.astype(np.int64), MASK, False, 0.1, seed=3),
}


def curve(objective: str, folder: Path, resume: bool = False, **changed: Any) -> list[float]:
    """Train, or continue a training; return the loss of every step."""
    make_batch = changed.pop("make_batch", MAKERS[objective])
    labels = objective == "labels"
    how = {"window": 16, "batch_size": 8, "steps": 200, "warmup_steps": 20, "learning_rate": 1e-3, "log_every": 1}
    how |= {"threads": 1, "device": "cpu", "validate_every": 100, "checkpoint_every": 100, **changed}
    model = small_model(num_classes=4 * labels, causal=objective == "causal", dropout=0.1 * labels, depth=2)
    if labels:
        model.facet_heads.requires_grad_(False)
    work = job(
        CORPUS,
        model,
        folder,
        TrainingConfig(**how),
        make_batch=make_batch,
        loss=LabelLoss(torch.ones(1, 4)) if labels else FacetLoss(("count", "half")),
        ranks=this(),
    )
    train(work, resume)
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines]


@pytest.mark.parametrize("objective", sorted(MAKERS))
def test_the_curve_is_that_of_the_version_before(objective: str, tmp_path: Path) -> None:
    assert curve(objective, tmp_path / "run") == pytest.approx(json.loads(GOLDEN.read_text())[objective], abs=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("objective", sorted(MAKERS))
def test_a_run_resumed_in_the_middle_has_the_same_curve(objective: str, tmp_path: Path) -> None:
    curve(objective, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000000200")
    resumed = curve(objective, tmp_path / "run", resume=True)
    assert resumed == pytest.approx(json.loads(GOLDEN.read_text())[objective], abs=CLOSE)


def in_two_ranks(folder: str) -> None:
    for objective in MAKERS:
        assert run_ranks(2, partial(curve, objective), Path(folder) / objective) == [0, 0]


@pytest.mark.slow
def test_two_ranks_have_the_same_curve(tmp_path: Path) -> None:
    run_in_a_process_of_its_own("tests.test_training_curves:in_two_ranks", str(tmp_path))
    for objective, expected in json.loads(GOLDEN.read_text()).items():
        lines = map(json.loads, (tmp_path / objective / "metrics.jsonl").read_text().splitlines())
        assert [line["loss"] for line in lines] == pytest.approx(expected, abs=CLOSE)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        curves = {objective: curve(objective, Path(name) / objective) for objective in MAKERS}
    Path(sys.argv[1]).write_text(json.dumps(curves) + "\n")
