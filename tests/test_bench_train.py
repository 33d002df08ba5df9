"""`heartlm bench train` in small: heartlm and torch's own modules at one size, on one rank and on two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from heartlm.bench.plain_training import PlainModel, Shape
from heartlm.bench.train import Options, run
from heartlm.cli.main import main
from heartlm.models.config import ModelConfig
from heartlm.training.utilization import flops_per_token

TINY = {"depth": 1, "window": 16, "batch_size": 2, "steps": 2, "warm_up": 2, "rounds": 1, "device": "cpu"}


def test_one_rank_beside_plain_pytorch(tiny_corpus: Path, tmp_path: Path):
    (table,) = run(Options(out=tmp_path, corpus=tiny_corpus, ranks=(1, 999), **TINY))
    assert table.column("way") == ["heartlm", "plain PyTorch"] and table.column("ranks") == [1, 1]
    ours, plain = (dict(zip(table.columns, cells, strict=True)) for cells in table.rows)
    assert plain["times plain"] == 1 and ours["times one rank"] == 1
    for row in (ours, plain):
        assert row["tokens/s"] * row["step ms"] / 1e3 == pytest.approx(2 * 16)
        parts = [row[name] for name in table.columns if name.endswith(" ms") and name != "step ms"]
        assert sum(part for part in parts if part is not None) == pytest.approx(row["step ms"], rel=0.05)
        assert row["MFU %"] is None
    assert any("999 ranks left out" in note for note in table.notes)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks want two cores")
def test_two_ranks_train_together(tiny_corpus: Path, tmp_path: Path):
    (table,) = run(Options(out=tmp_path, corpus=tiny_corpus, ranks=(2,), objective="masked", **TINY))
    assert table.column("ranks") == [2, 2]
    row = dict(zip(table.columns, table.rows[1], strict=True))
    assert row["tokens/s"] * row["step ms"] / 1e3 == pytest.approx(2 * 2 * 16)


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
    assert main(["bench", "train", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert told in lines[-1] and lines[-1].startswith("heartlm bench:")
