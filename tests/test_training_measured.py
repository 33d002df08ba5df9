"""What a rank keeps of every step for a study: parts that add up."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heartlm.instrumentation.measured import MeasuredSteps
from heartlm.instrumentation.meters import PARTS, Meters
from heartlm.training.batches import MaskedBatches
from heartlm.training.config import TrainingConfig
from heartlm.training.feed import TOGETHER
from heartlm.training.loop import train
from heartlm.training.objectives import FacetLoss
from tests.ranks import run_in_a_process_of_its_own, run_ranks
from tests.synthetic_corpus import SIZES, job, small_model, synthetic_corpus
from tests.test_training_parallel import this


class Hand:
    """A clock that shows what it was told."""

    def __init__(self) -> None:
        self.time_s = 10.0

    def __call__(self) -> float:
        return self.time_s

    def forward(self, seconds: float) -> None:
        self.time_s += seconds


def test_every_step_is_kept_with_its_parts(tmp_path: Path) -> None:
    hand = Hand()
    measured = MeasuredSteps(tmp_path / "rank-0.json")
    meters = Meters(now_s=hand, on_step=measured.add)
    for step in (1, 2, 3):
        with meters.step(step):
            with meters.span("data"):
                hand.forward(1)
            with meters.span("forward_backward"):
                hand.forward(5)
                with meters.span("communication"):
                    hand.forward(0.5)
            hand.forward(0.25)
            meters.count(100 * step)
            measured.loss(step, 7.0 / step if step < 3 else math.nan)
        with meters.paused("checkpoint"):
            hand.forward(60)
    measured.write(rank=0)
    told = json.loads((tmp_path / "rank-0.json").read_text())
    assert [step["num_tokens"] for step in told["steps"]] == [100, 200, 300]
    assert [step["loss"] for step in told["steps"]] == [7.0, 3.5, None]
    for step in told["steps"]:
        assert step["step_s"] == pytest.approx(6.75)
        seconds = [step[f"{name}_s"] for name in (*PARTS, "other")]
        assert seconds == pytest.approx([1, 5, 0.5, 0, 0.25])


def test_data_prepared_for_all_steps_counts_in_each(tmp_path: Path) -> None:
    num_steps = TOGETHER
    train_measured(str(tmp_path), {"measure": True, "device": "cpu", "steps": num_steps, "bucket_cap_mb": 25.0}, False)
    data_s = [step["data_s"] for step in json.loads((tmp_path / "measured" / "rank-0.json").read_text())["steps"]]
    assert len(data_s) == num_steps
    assert min(data_s) == data_s[0] > 0, "each has an equal part, and asking for what is ready comes on top"


# --- a real training of two ranks -------------------------------------------------------------------------------------


def train_measured(folder: str, settings: dict[str, Any], apart: bool) -> None:
    """Train a small model for some steps as one of the ranks of this group, or as if each had a machine of its own."""
    ranks = this()._replace(local_rank=0, local_world_size=1) if apart else this()
    corpus = synthetic_corpus((400, 300, 200))
    shape = {"window": 16, "batch_size": 8, "steps": 6, "learning_rate": 1e-3, "warmup_steps": 1}
    config = TrainingConfig(**{**shape, **settings})
    batches = MaskedBatches(corpus, np.array(SIZES), 0.3, 4, seed=0)
    loss = FacetLoss(("count", "half"))
    train(job(corpus, small_model(), Path(folder), config, make_batch=batches, loss=loss, ranks=ranks), False)


def in_two_ranks(folder: str, settings: dict[str, Any]) -> None:
    for apart in (False, True):
        assert run_ranks(2, train_measured, f"{folder}-{apart}", settings, apart) == [0, 0]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What two ranks keep: those of one machine, and those of two."""
    folder = tmp_path_factory.mktemp("measured") / "run"
    settings = {"measure": True, "device": "cpu", "checkpoint_every": 2, "bucket_cap_mb": 0.01}
    run_in_a_process_of_its_own("tests.test_training_measured:in_two_ranks", str(folder), settings)
    kept = {}
    for name, apart in (("together", False), ("apart", True)):
        run = folder.with_name(f"run-{apart}")
        assert not (run / "models").exists() and not list(run.glob("checkpoints/*"))
        kept[name] = [json.loads((run / "measured" / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    return kept


@pytest.mark.parametrize("where", ["together", "apart"])
def test_on_two_ranks_the_parts_add_up(told: dict[str, list[dict[str, Any]]], where: str) -> None:
    for each in told[where]:
        assert each["world_size"] == 2
        assert each["num_parameters"] > 0
        assert [step["step"] for step in each["steps"]] == [1, 2, 3, 4, 5, 6]
        for step in each["steps"]:
            parts_s = sum(step[f"{name}_s"] for name in (*PARTS, "other"))
            assert parts_s == pytest.approx(step["step_s"])
            assert step["forward_backward_s"] > 0
            assert step["communication_s"] > 0


def test_two_ranks_know_the_same_losses_wherever_they_are(told: dict[str, list[dict[str, Any]]]) -> None:
    losses = [[step["loss"] for step in each["steps"]] for ranks in told.values() for each in ranks]
    assert losses[0] == losses[1] and losses[2] == losses[3]
    assert losses[0] == pytest.approx(losses[2], rel=1e-6)
