"""`benchmarks/machine.py train` in small: heartlm and torch's own modules at one size, on one rank and on two."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.plain_training import PlainModel, Shape
from bench.train import PARTS, Options, _empty_table, _fill, run
from bench.trainings import Trained, Trainer, size_of
from machine import main

from heartlm.instrumentation.utilization import flops_per_token
from heartlm.models.config import ModelConfig
from heartlm.storage.reading import read_json

pytestmark = pytest.mark.slow

TINY = {"depth": 1, "window": 16, "batch_size": 2, "steps": 2, "warm_up": 2, "rounds": 1, "device": "cpu"}
two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks want two cores")


def trainer_of(corpus: Path, scratch: Path, **more: Any) -> Trainer:
    options = Options(out=scratch, corpus=corpus, **TINY | more)
    return Trainer(size_of(options, corpus), corpus, scratch)


def longest_s(ranks: list[dict[str, Any]], first: int) -> float:
    return max(sum(step["step_s"] for step in rank["steps"][first:]) for rank in ranks)


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=two_cores)])
def test_both_ways_count_the_steps_after_the_warm_up_and_no_others(num_ranks: int, tiny_corpus: Path, tmp_path: Path):
    """Counted again here, from what the ranks noted of every step."""
    trainer = trainer_of(tiny_corpus, tmp_path, steps=3, warm_up=2)
    ours, plain = trainer.heartlm(num_ranks), trainer.plain(num_ranks)
    noted = [read_json(tmp_path / "training-0" / "measured" / f"rank-{rank}.json") for rank in range(num_ranks)]
    plainly = [read_json(tmp_path / "training-1" / f"rank-{rank}.json") for rank in range(num_ranks)]
    assert all(len(rank["steps"]) == 5 for rank in noted + plainly)
    assert plain.tokens == num_ranks * 3 * 2 * 16
    assert 0 < ours.tokens <= num_ranks * 3 * 2 * 16
    assert ours.tokens == sum(step["num_tokens"] for step in noted[0]["steps"][2:])
    mean_s = [sum(step["step_s"] for step in rank["steps"][2:]) for rank in noted]
    assert ours.seconds == pytest.approx(sum(mean_s) / num_ranks)
    assert plain.seconds == pytest.approx(longest_s(plainly, 2))


def test_one_rank_beside_plain_pytorch(tiny_corpus: Path, tmp_path: Path):
    (table,) = run(Options(out=tmp_path, corpus=tiny_corpus, ranks=(1, 999), **TINY))
    assert table.column("way") == ["heartlm", "plain PyTorch"] and table.column("ranks") == [1, 1]
    ours, plain = (dict(zip(table.columns, cells, strict=True)) for cells in table.rows)
    assert plain["times plain"] == 1 and ours["times one rank"] == 1
    assert ours["times plain"] == pytest.approx(ours["tokens/s"] / plain["tokens/s"])
    for row in (ours, plain):
        parts = [row[name] for name in table.columns if name.endswith(" ms") and name != "step ms"]
        assert sum(part for part in parts if part is not None) == pytest.approx(row["step ms"], rel=0.05)
        assert row["MFU %"] is None
    assert any("999 ranks left out" in note for note in table.notes)


def training_of(seconds: float, tokens: int) -> Trained:
    return Trained(seconds, tokens, dict.fromkeys(PARTS, 0.001), 7, 6.0)


def test_a_table_of_two_ranks_has_rates_of_all_ranks_and_times_of_a_step(tmp_path: Path, tiny_corpus: Path):
    options = Options(out=tmp_path, corpus=tiny_corpus, **TINY)
    size = replace(size_of(options, tiny_corpus), steps=4)
    table = _empty_table(options, size)
    _fill(table, {("heartlm", 2): [training_of(2.0, 800)], ("plain PyTorch", 2): [training_of(4.0, 1000)]}, size)
    ours, plain = (dict(zip(table.columns, cells, strict=True)) for cells in table.rows)
    assert (ours["tokens/s"], plain["tokens/s"]) == (400, 250)
    assert (ours["step ms"], plain["step ms"]) == (500, 1000)
    assert ours["times plain"] == pytest.approx(1.6)


@pytest.mark.parametrize("causal", [True, False])
def test_the_plain_model_learns_what_it_is_asked(causal: bool):
    torch.manual_seed(0)
    model = PlainModel(Shape((5, 3), 2, 32, 2, 12, causal))
    codes = torch.arange(13).repeat(4, 1)[..., None] % torch.tensor([5, 3])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(60):
        loss = model(codes[:, :-1], codes[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_the_plain_causal_model_does_not_look_ahead():
    torch.manual_seed(0)
    model = PlainModel(Shape((5,), 2, 32, 2, 12, True)).eval()
    codes = torch.randint(5, (1, 12, 1))
    later = codes.clone()
    later[:, 6:] = (later[:, 6:] + 1) % 5
    target = torch.full_like(codes, -1)
    target[:, :6] = 1
    with torch.no_grad():
        assert torch.allclose(model(codes, target), model(later, target), atol=1e-6)


def test_both_models_are_of_one_size():
    shape = Shape((128,), 4, 128, 4, 128, True)
    ours = ModelConfig((128,), 4, 128, 4, causal=True).resolve()
    assert shape.flops_per_token == pytest.approx(flops_per_token(ours, 128), rel=0.02)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--corpus", "/nowhere"], "/nowhere: no manifest.json"),
        (["--depth", "0"], "depth: 0 found"),
        (["--ranks", "[]"], "ranks: nothing found"),
        (["--ranks", "[4096]", "--device", "cpu"], "ranks: 4096 found, at most"),
        (["--window", "4"], "window: 4 found, at least 8 tokens"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["train", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert told in lines[-1] and lines[-1].startswith("machine.py:")
