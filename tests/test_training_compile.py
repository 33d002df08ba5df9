"""Compiled blocks: the losses of a run that is not compiled, from a bounded number of graphs.

Every corpus here has recordings shorter than a window, so batches come with and without a mask, and validation has
batches of two sizes. `torch.compile` is real; its C++ compiler takes a minute, so all tests but one stop before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from heartlm.storage.atomic import cache_folder
from heartlm.training import batches
from heartlm.training.batches import CausalBatches, HostBatch, LabelBatches, MakeBatch, MaskedBatches
from heartlm.training.config import TrainingConfig
from heartlm.training.loop import train
from heartlm.training.objectives import FacetLoss, LabelLoss
from tests.ranks import run_in_a_process_of_its_own, run_ranks
from tests.synthetic_corpus import SIZES, every_window, job, small_model, synthetic_corpus
from tests.test_training_parallel import this

pytestmark = pytest.mark.slow

CORPUS = synthetic_corpus((400, 300, 7, 2))
MASK = np.array(SIZES)
MAKERS: dict[str, MakeBatch] = {
    "masked": MaskedBatches(CORPUS, MASK, 0.3, 3, seed=5),
    "causal": CausalBatches(CORPUS),
    "labels": LabelBatches(CORPUS, CORPUS.beat_class.astype(np.int64), MASK, False, 0.2, seed=5),
}
TRACED = partial(torch.compile, backend="aot_eager")
"""Traced and differentiated, but not handed to the C++ compiler."""


def losses(folder: Path, objective: str, dropout: float = 0.0, **changed: Any) -> list[float]:
    """Train a model of two blocks; return the losses of training and validation."""
    classes = 4 if objective == "labels" else 0
    how = {"window": 16, "batch_size": 4, "steps": 16, "validate_every": 8, "log_every": 1, "learning_rate": 2e-3}
    work = job(
        CORPUS,
        small_model(num_classes=classes, causal=objective == "causal", dropout=dropout, depth=2),
        folder,
        TrainingConfig(**{**how, "warmup_steps": 5, "device": "cpu", **changed}),
        make_batch=MAKERS[objective],
        loss=LabelLoss(torch.ones(1, 4)) if classes else FacetLoss(("count", "half")),
        validation=every_window(CORPUS, 16)[:7],
        ranks=this(),
    )
    train(work, resume=False)
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines]


def num_graphs() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch, "compile", TRACED)
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=4):  # torch's own is 8
        yield


@pytest.mark.parametrize(
    ("objective", "dropout", "graphs"),
    # blocks before the last and the last one, with and without a mask; causal attention needs none
    [("masked", 0.0, 4), ("causal", 0.0, 2), ("labels", 0.1, 2)],
)
def test_masks_wanted_tokens_and_validation_need_few_graphs(
    traced: None, tmp_path: Path, objective: str, dropout: float, graphs: int
) -> None:
    plain = losses(tmp_path / "plain", objective, dropout)
    assert num_graphs() == 0
    assert losses(tmp_path / "compiled", objective, dropout, compile=True) == pytest.approx(plain, rel=1e-5)
    assert num_graphs() == graphs


def test_with_the_compiler_of_cpus_in_both_precisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of labels the blocks are those of hidden tokens before the last one, so they need no minute of their own."""
    counters.clear()
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    for objective, precision, close in (("masked", "fp32", 1e-4), ("causal", "bf16", 0.02)):
        plain = losses(tmp_path / f"{precision} plain", objective, precision=precision)
        compiled = losses(tmp_path / precision, objective, precision=precision, compile=True)
        assert compiled == pytest.approx(plain, rel=close)
    assert num_graphs() <= 6
    assert list((cache_folder() / "compiled").rglob("*.so")), "kept for later runs"


def test_a_step_that_hides_more_than_the_bound_is_not_compiled(
    traced: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It happens in step 2,024 of the default seed at batch 16 and window 128; to compile it took 16 s on an H100."""
    sizes = list[int]()
    choose = MaskedBatches.choose

    def chosen(make: MaskedBatches, draft: HostBatch, is_static: bool = False) -> HostBatch:
        found = choose(make, draft, is_static)
        sizes.append(len(found.chosen)) if is_static and found.chosen is not None else None
        return found

    monkeypatch.setattr(MaskedBatches, "choose", chosen)
    monkeypatch.setattr(batches, "most_hidden", lambda *of_batch: 24)
    plain = losses(tmp_path / "plain", "masked")
    assert losses(tmp_path / "compiled", "masked", compile=True) == pytest.approx(plain, rel=1e-5)
    assert min(sizes) == 24 < max(sizes) and num_graphs() == 4


def test_recomputed_and_split_into_micro_batches(traced: None, tmp_path: Path) -> None:
    how = {"activation_checkpointing": True, "accumulation": 4}  # single windows: some ask for a single token
    plain = losses(tmp_path / "plain", "masked", **how)
    assert losses(tmp_path / "compiled", "masked", compile=True, **how) == pytest.approx(plain, rel=1e-5)
    assert 0 < num_graphs() <= 4


def test_runs_of_one_process_do_not_use_up_each_others_graphs(traced: None, tmp_path: Path) -> None:
    for batch_size in (4, 6):
        losses(tmp_path / str(batch_size), "masked", compile=True, batch_size=batch_size, steps=10)
    assert num_graphs() > 4


def compile_as_rank(folder: str, compiled: bool) -> None:
    torch.compile = TRACED
    losses(Path(folder), "masked", compile=compiled, activation_checkpointing=True)
    assert (0 < num_graphs() <= 4) if compiled else num_graphs() == 0


def in_two_ranks(folder: str) -> None:
    for compiled in (False, True):
        assert run_ranks(2, compile_as_rank, f"{folder}/{compiled}", compiled) == [0, 0]


def test_two_ranks_of_ddp_with_activation_checkpointing(tmp_path: Path) -> None:
    run_in_a_process_of_its_own("tests.test_training_compile:in_two_ranks", str(tmp_path))
    plain, compiled = (
        [json.loads(line)["loss"] for line in (tmp_path / str(how) / "metrics.jsonl").read_text().splitlines()]
        for how in (False, True)
    )
    assert compiled == pytest.approx(plain, rel=1e-5)
