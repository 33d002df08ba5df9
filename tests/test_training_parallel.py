"""Many ranks are one: the same losses however the global batch is split, wrapped, stopped or resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from heartlm.distributed.parallel import HostAllReduce, take_cores, together
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError
from heartlm.models.heart import HeartModel
from heartlm.models.store import load_model, whole_tensors
from heartlm.system.cores import usable_cores
from heartlm.training.batches import Batch, LabelBatches, MaskedBatches
from heartlm.training.checkpoint import Checkpoints
from heartlm.training.config import TrainingConfig
from heartlm.training.learner import dropout_keys
from heartlm.training.loop import Stopped, train
from heartlm.training.objectives import FacetLoss, LabelLoss
from tests.ranks import run_in_a_process_of_its_own, run_ranks
from tests.synthetic_corpus import SIZES, every_window, job, small_model, synthetic_corpus
from tests.synthetic_run import losses

STEPS, STOP_AFTER = 100, 45
SAME = 1e-5
"""Losses of different layouts differ by rounding alone; relative, over all steps."""


@dataclass
class StoppingLoss:
    """The loss of pretraining; in the second rank the signal to stop comes while one of the first steps computes."""

    calls_left: int

    def __call__(self, model: HeartModel, batch: Batch, keys: Tensor | None) -> Any:
        self.calls_left -= 1
        if self.calls_left == 0 and this().rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return FacetLoss(("count", "half"))(model, batch, keys)


def this() -> Ranks:
    """This process among the ranks of its group."""
    rank, of = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return Ranks(rank, of, rank, of)


def train_as_rank(folder: str, settings: dict[str, Any], dropout: float, stop: bool, resume: bool) -> None:
    """Pretrain the small model. One recording is shorter than a window, so ranks hold different numbers of tokens."""
    corpus = synthetic_corpus((400, 300, 7, 7))
    often = {"log_every": 1, "validate_every": 50, "checkpoint_every": 75}
    shape = {"window": 16, "batch_size": 8, "steps": STEPS, "learning_rate": 2e-3, "warmup_steps": 20}
    config = TrainingConfig(**{**shape, **often, "device": "cpu", **settings})
    before_last = config.accumulation * (STOP_AFTER - 1)
    work = job(
        corpus,
        small_model(dropout=dropout),
        Path(folder),
        config,
        make_batch=MaskedBatches(corpus, np.array(SIZES), 0.3, 4, seed=0),
        loss=StoppingLoss(before_last if stop else 0),
        validation=every_window(corpus, 16)[:7],
        ranks=this(),
    )
    try:
        train(work, resume)
    except Stopped:
        assert stop, "nobody asked for it"
    else:
        assert not stop, "it was asked to stop"


def in_turn(calls: list[tuple[int, str, list[Any]]]) -> None:
    """Make calls, each in its number of ranks; all must end well."""
    for num_ranks, function, arguments in calls:
        assert run_ranks(num_ranks, globals()[function], *arguments) == [0] * num_ranks, (function, arguments)


def run(*calls: tuple[int, Callable[..., None], list[Any]]) -> None:
    """Make calls, each in its number of ranks, from one process that has imported torch; all must end well."""
    named = [(num_ranks, function.__name__, arguments) for num_ranks, function, arguments in calls]
    run_in_a_process_of_its_own("tests.test_training_parallel:in_turn", named)


# --- one run, however it is split -------------------------------------------------------------------------------------

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "1x4": (1, {"accumulation": 4}),
    "2x2": (2, {"accumulation": 2}),
    "4x1": (4, {}),
    "sharded": (2, {"accumulation": 2, "parallel": "fsdp", "activation_checkpointing": True}),
}
"""Ranks × micro-batches of a rank, and another way to compute the same."""

TRAINED = [*((layout, 0.2) for layout in LAYOUTS), ("1x4", 0.0), ("2x2", 0.0), ("4x1", 0.0)]
"""Layouts, and shares of activations to drop."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run for each of `TRAINED`."""
    folder = tmp_path_factory.mktemp("trained")
    for dropout in (0.0, 0.2):
        layouts = [layout for layout, of in TRAINED if of == dropout]
        run(
            *(
                (num_ranks, train_as_rank, [str(folder / f"{layout}-{dropout}"), settings, dropout, False, False])
                for layout in layouts
                for num_ranks, settings in [LAYOUTS[layout]]
            )
        )
    return folder


@pytest.mark.parametrize(("layout", "dropout"), TRAINED)
def test_losses_do_not_depend_on_how_a_batch_is_split(trained: Path, layout: str, dropout: float) -> None:
    expected = losses(trained / f"1x4-{dropout}")
    assert losses(trained / f"{layout}-{dropout}") == pytest.approx(expected, rel=SAME)
    assert len(expected) == STEPS + 2 and len(set(expected.values())) > STEPS / 2


def test_a_sharded_model_is_saved_whole(trained: Path) -> None:
    for layout in LAYOUTS:
        model, info = load_model(trained / f"{layout}-0.2" / "models" / "last")
        assert info.step == STEPS and model.num_parameters == small_model().num_parameters
        expected = load_model(trained / "1x4-0.2" / "models" / "last")[0].state_dict()
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-5)


ELSEWHERE = ("1x4", "4x1", "sharded")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two ranks, one of which was asked to stop, and what became of it on other ranks."""
    folder = tmp_path_factory.mktemp("resumed")
    run((2, train_as_rank, [str(folder / "stopped"), {"accumulation": 2}, 0.2, True, False]))
    assert max(step for _, step in losses(folder / "stopped")) == STOP_AFTER
    assert Checkpoints(folder / "stopped" / "checkpoints").complete()[-1].name == f"step-{STOP_AFTER:09d}"
    for layout in ELSEWHERE:
        shutil.copytree(folder / "stopped", folder / layout)
    run(
        *(
            (num_ranks, train_as_rank, [str(folder / layout), settings, 0.2, False, True])
            for layout in ELSEWHERE
            for num_ranks, settings in [LAYOUTS[layout]]
        )
    )
    return folder


@pytest.mark.parametrize("layout", ELSEWHERE)
def test_stopped_and_resumed_on_other_ranks_it_goes_on_as_if_never_stopped(
    trained: Path, resumed: Path, layout: str
) -> None:
    assert losses(resumed / layout) == pytest.approx(losses(trained / "1x4-0.2"), rel=SAME)


def test_another_bucket_size_changes_no_loss(tmp_path: Path) -> None:
    many = {"steps": 8, "bucket_cap_mb": 0.01, "spans": True}
    run(
        (2, train_as_rank, [str(tmp_path / "set"), {"steps": 8}, 0.0, False, False]),
        (2, train_as_rank, [str(tmp_path / "many"), many, 0.0, False, False]),
    )
    assert losses(tmp_path / "many") == losses(tmp_path / "set")
    spans = [json.loads(line) for line in (tmp_path / "many" / "spans" / "rank-1.jsonl").read_text().splitlines()]
    assert {span["name"] for span in spans} >= {"data", "forward_backward", "communication", "optimizer", "step"}
    assert {span["args"]["step"] for span in spans} >= set(range(1, 9))


def compile_as_rank(folder: str) -> None:
    torch.compile = partial(torch.compile, backend="aot_eager")  # no C++ compiler, which takes a minute
    how = {"steps": 4, "parallel": "fsdp", "compile": True, "activation_checkpointing": True}
    train_as_rank(folder, how, 0.2, False, False)


@pytest.mark.slow
def test_blocks_are_compiled_and_sharded(tmp_path: Path) -> None:
    run(
        (1, train_as_rank, [str(tmp_path / "plain"), {"steps": 4, "accumulation": 4}, 0.2, False, False]),
        (2, compile_as_rank, [str(tmp_path / "compiled")]),
    )
    expected = losses(tmp_path / "plain")
    assert len(expected) == 5 and losses(tmp_path / "compiled") == pytest.approx(expected, rel=SAME)


def label_as_rank(folder: str, parallel: str) -> None:
    how: dict[str, Any] = {"device": "cpu", "parallel": parallel, "warmup_steps": 0}
    corpus = synthetic_corpus((200, 9))
    labels = np.where(np.arange(209) % 3, corpus.beat_class, -1).astype(np.int64)
    model = small_model(num_classes=4, dropout=0.1)
    model.facet_heads.requires_grad_(False)
    work = job(
        corpus,
        model,
        Path(folder),
        TrainingConfig(window=16, batch_size=4, steps=12, learning_rate=1e-2, log_every=1, **how),
        make_batch=LabelBatches(corpus, labels, np.array(SIZES), False, 0.1, seed=0),
        loss=LabelLoss(torch.tensor([[1.0, 2.0, 0.5, 1.0]])),
        ranks=this(),
    )
    train(work, resume=False)


def test_fine_tuning_with_frozen_heads_is_the_same_on_two_ranks(tmp_path: Path) -> None:
    ways = {"alone": 1, "ddp": 2, "fsdp": 2}
    run(*((num, label_as_rank, [str(tmp_path / way), way.replace("alone", "auto")]) for way, num in ways.items()))
    begun = whole_tensors(small_model(num_classes=4))
    for way in ways:
        assert losses(tmp_path / way) == pytest.approx(losses(tmp_path / "alone"), rel=SAME)
        ended = load_file(tmp_path / way / "models" / "last" / "model.safetensors")
        assert torch.equal(ended["facet_heads.0.weight"], begun["facet_heads.0.weight"])
        assert not torch.equal(ended["class_head.weight"], begun["class_head.weight"])


# --- dropout ----------------------------------------------------------------------------------------------------------


def test_keys_of_dropout_belong_to_windows() -> None:
    whole = dropout_keys(3, 7, 5, 0, 12)
    assert whole.shape == (5, 12) and whole.dtype == torch.int32
    assert torch.equal(torch.cat([dropout_keys(3, 7, 5, first, 3) for first in range(0, 12, 3)], dim=1), whole)
    assert len(set(whole.flatten().tolist())) == whole.numel()
    assert not torch.equal(dropout_keys(3, 8, 5, 0, 12), whole)
    assert not torch.equal(dropout_keys(4, 7, 5, 0, 12), whole)


# --- ranks and cores --------------------------------------------------------------------------------------------------


def take_cores_as_rank(expected: list[list[int]], num_threads: list[int], pinned: bool) -> None:
    rank = this().rank
    take_cores(this(), None, pinned=pinned)
    assert sorted(os.sched_getaffinity(0)) == expected[rank]
    assert torch.get_num_threads() == num_threads[rank]


@pytest.mark.skipif(len(usable_cores()) < 2, reason="two ranks want two cores, this process has one")
def test_two_ranks_take_cores_of_their_own() -> None:
    """On the machine it runs on; what each rank gets on others is written down in test_cores."""
    first, second = (list(core.cpus) for core in usable_cores()[:2])
    code = f"{__name__}:on_two_cores"
    run_in_a_process_of_its_own(code, first, second)


def on_two_cores(first: list[int], second: list[int]) -> None:
    os.sched_setaffinity(0, [*first, *second])
    both = sorted([*first, *second])
    in_turn([(2, "take_cores_as_rank", [[both, both], [1, 1], False])])
    in_turn([(2, "take_cores_as_rank", [[first, second], [1, 1], True])])


def test_where_nobody_set_ranks_a_process_is_alone() -> None:
    assert Ranks.from_environment({}) == Ranks(0, 1, 0, 1)
    set_by_torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert Ranks.from_environment(set_by_torchrun) == Ranks(5, 8, 1, 4)


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", None), ("RANK", "8"), ("WORLD_SIZE", "many"), ("LOCAL_RANK", "-1"), ("LOCAL_RANK", "4")],
)
def test_impossible_ranks_are_named(name: str, value: str | None) -> None:
    environment = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", name: value}
    with pytest.raises(HeartlmError, match=rf"^{name}: "):
        Ranks.from_environment({key: number for key, number in environment.items() if number is not None})


def lose_before_the_first_step(folder: str) -> None:
    if this().rank:
        os._exit(0)
    with pytest.raises(HeartlmError, match=r"^rank 0 lost another rank before the first step"):
        train_as_rank(folder, {"timeout_s": 2.0}, 0.0, False, False)


def test_a_rank_lost_before_the_first_step_is_told_of(tmp_path: Path) -> None:
    run((2, lose_before_the_first_step, [str(tmp_path / "run")]))


def together_as_rank() -> None:
    sums, rank = HostAllReduce(), this().rank
    assert sums(1.0, rank) == [2.0, 1.0]
    assert together(lambda: f"rank {rank}") == f"rank {rank}"

    def fail_on_one() -> None:
        if rank == 1:
            raise HeartlmError("disk full")

    with pytest.raises(HeartlmError, match=r"^disk full$" if rank else r"^rank 1: disk full$"):
        together(fail_on_one)


def test_what_fails_on_one_rank_fails_on_all() -> None:
    run((2, together_as_rank, []))


def test_alone_everything_is_its_own_sum() -> None:
    assert HostAllReduce()(1.5, 2.0) == [1.5, 2.0]
    assert together(lambda: 7) == 7
    with pytest.raises(HeartlmError, match=r"^no$"):
        together(lambda: (_ for _ in ()).throw(HeartlmError("no")))
